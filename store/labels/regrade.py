"""Labels the answers of a store by rules, from the questions, answers and references that it keeps.

Nothing here writes; `relabel` commits the plan.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from store.errors import SchemaError
from store.format.schema import TRACE_ID
from store.labels.answer_scores import as_thought, opens_thought
from store.labels.grading import Case, Grade, Grader, asked_and_judged, count_verdicts
from store.labels.plan import LabelPlan, plan_labels
from store.labels.rule import ScoreTable, is_given
from store.read.store import TraceStore
from store.reports import count
from store.text_records import parse_list
from store.traces.label_keys import (
    LABEL_RULES_KEY,
    NORMALIZATION_KEY,
    RULE_BEFORE_KEY,
    RULE_KEY,
)
from store.traces.origin import records_of

__all__ = ["plan_rules", "stored_cases"]

BLOCK_ROWS = 256  # texts of so many rows are in memory at once, and progress is shown after them
MIN_VERDICTS = 0.05  # fewer than this share of the answers: their labels would all be removed
COLUMNS = ("question", "answer", "references")


def plan_rules(
    store: TraceStore,
    grader: Grader,
    *,
    replace_all: bool = False,
    progress: Callable[[int], None] = lambda n_rows: None,
) -> LabelPlan:
    """Plan the labels that rules give the answers of a store; nothing is written.

    Rows on which the first rule cannot decide, because the store has no references for them, keep
    score and label.

    The store has `question`, `answer` and `references` as `extract` writes them. With
    `replace_all`, rows without references lose score and label, and labels that came with the
    answers are replaced.

    Raises SchemaError if the store lacks one of those columns, holds something else there, or has
    no references at all, if its labels came with the answers, if the judge gave nearly no verdicts,
    or as `plan_labels` does.
    """
    if not replace_all:
        _check_not_given(store)
    grades: list[Grade] = []
    scores = {}
    for trace_ids, cases in _blocks(store):
        graded = grader.grade(cases)
        for trace_id, case, grade in zip(trace_ids, cases, graded, strict=True):
            if _is_decided(grader, case, grade):
                scores[trace_id] = grade.score
        grades += graded
        progress(len(grades))
    if not scores:
        raise SchemaError(
            f"{store.path}: expected references in some rows, found none: no rule can label them; "
            "give scores with --scores, or a judge whose template has no {references}"
        )
    verdicts = dict(sorted(count_verdicts(grades).items()))
    _check_verdicts(store, verdicts)
    described = grader.describe()
    source = f"{store.path}: rule {grader.rules[0]}"
    table = ScoreTable(
        source,
        threshold=grader.threshold,
        by_trace=scores,
        rule_text=described[RULE_KEY],
    )
    plan = plan_labels(store, table, replace_all=replace_all)
    provenance = dict(plan.provenance)
    provenance[NORMALIZATION_KEY] = described[NORMALIZATION_KEY]
    if LABEL_RULES_KEY in described:
        rules = described[LABEL_RULES_KEY]
        if verdicts:  # beside the judge, whose column stays when score and label are undone
            rules["judge"]["verdicts"] = verdicts
        earlier = provenance.get(LABEL_RULES_KEY)
        provenance[LABEL_RULES_KEY] = (earlier if isinstance(earlier, dict) else {}) | rules
    return replace(
        plan,
        provenance=provenance,
        examples=(),
        verdicts=verdicts,
        by_rule=_labels_by_rule(grades, grader),
    )


def _check_verdicts(store: TraceStore, verdicts: Mapping[str, int]) -> None:
    """Raise SchemaError where a judge would leave nearly all answers without a label."""
    n_asked, n_given = asked_and_judged(verdicts)
    if n_given < MIN_VERDICTS * n_asked:
        raise SchemaError(
            f"{store.path}: expected verdicts of the judge, found {n_given:,} on "
            f"{count(n_asked, 'answer')}; the labels stay as they are: ask a model that follows "
            "instructions, or in another way (--judge-template)"
        )


def stored_cases(store: TraceStore) -> Iterator[Case]:
    """The answers of a store with their questions and references, row by row.

    Raises SchemaError for a store that lacks one of these columns, or holds something else there.
    """
    for _, cases in _blocks(store):
        yield from cases


def _is_decided(grader: Grader, case: Case, grade: Grade) -> bool:
    """Whether the first rule could decide; a judge that said nothing of use had its chance."""
    if grader.rules[0] == "judge":
        return grade.verdict != "no references"
    return bool(case.references) or grader.rules[0] == "none"


def _labels_by_rule(grades: Sequence[Grade], grader: Grader) -> dict[str, NDArray[np.int64]]:
    """The labels of each of several rules; none of a single one, which are `label`."""
    rules = grader.rules if grader.columns else []
    return {rule: np.array([grade.labels[rule] for grade in grades], np.int64) for rule in rules}


def _check_not_given(store: TraceStore) -> None:
    """Raise SchemaError where labels of people would be lost to a rule."""
    records = records_of(store.provenance)
    rules = (str(record.get(key)) for record in records for key in (RULE_KEY, RULE_BEFORE_KEY))
    if any(map(is_given, rules)):
        raise SchemaError(
            f"{store.path}: its labels came with the answers, and a rule would replace them; add "
            "--replace-all if it shall, or extract again with several --labels, which keeps them "
            "and adds a column for each rule"
        )


def _blocks(store: TraceStore) -> Iterator[tuple[list[str], list[Case]]]:
    """The ids and the answers of some rows at a time."""
    for name in COLUMNS:
        column = store.schema.columns.get(name)
        if column is None or not column.is_text:
            raise SchemaError(
                f"{store.path}: expected texts in a column {name!r}, which rules compare, found "
                f"{'none' if column is None else column}; label it with --scores"
            )
    are_thoughts = all(map(_begins_in_thought, records_of(store.provenance)))
    for first in range(0, len(store), BLOCK_ROWS):
        rows = range(first, min(first + BLOCK_ROWS, len(store)))
        batch = store.read_arrays(rows, [TRACE_ID, *COLUMNS])
        texts = zip(*map(batch.texts, [TRACE_ID, *COLUMNS]), strict=True)
        cases = [
            Case(
                question,
                _references(store, trace_id, references),
                as_thought(answer) if are_thoughts else answer,
            )
            for trace_id, question, answer, references in texts
        ]
        yield batch.texts(TRACE_ID), cases


def _begins_in_thought(record: Mapping[str, object]) -> bool:
    """Whether the prompts of an extraction opened a thought, within which the model went on."""
    decoding = record.get("decoding")
    is_given = not isinstance(decoding, dict) or "given" in decoding
    return not is_given and opens_thought(
        str(record.get("chat_prompt", record.get("prompt_template")))
    )


def _references(store: TraceStore, trace_id: str, text: str) -> list[str]:
    """The references of a trace, a JSON list of texts; none where the text is empty."""
    if not text.strip():
        return []
    references = parse_list(text)
    if references is None or not all(isinstance(one, str) for one in references):
        raise SchemaError(
            f"{store.path}: column 'references', trace {trace_id!r}: expected a JSON list of "
            f"texts, found {text!r:.100}"
        )
    return references
