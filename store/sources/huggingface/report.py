"""The report of an extraction: what the store holds, what was left out, how traces are labelled.

With it comes what looks wrong about the answers.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from store.labels.grading import label_column_name
from store.labels.normalization import normalize_answer
from store.labels.report import one_class_warning, rule_table, stored_counts, verdict_lines
from store.read.store import TraceStore
from store.reports import LeftOut, count
from store.sources.huggingface.generation import end_ids
from store.sources.huggingface.source import HuggingFaceSource
from store.traces.label_keys import VERDICTS

__all__ = ["extraction_report", "label_report"]

BLOCK_ROWS = 4096  # texts of so many rows are in memory at once
MIN_ROWS = 10  # fewer answers are too few to say how a model ends them
# under these rules an answer is wrong, however right, that has more words than so many times the
# longest reference: F1 is below one half from three times on
LONGEST_RATIO = {"exact": 1, "f1": 3}
JUDGE_ADVICE = (
    "use --labels contains, or let a model judge them (python -m store label STORE --labels judge "
    "--judge-model NAME)"
)


def extraction_report(
    path: Path,
    store: TraceStore,
    source: HuggingFaceSource,
    skipped: LeftOut,
) -> str:
    """Describe the outcome of an extraction, with what looks wrong about the labels.

    `skipped` are the questions that were not asked.
    """
    n_traces = count(len(store), "trace")
    n_questions = len({one.question["question_id"] for one in source.questions})
    lines = [f"{path}: {n_traces} of {count(n_questions, 'question')}"]
    longest = None if source.is_given else source.decoding.max_new_tokens
    lines += label_report(store, source.grader.rules, longest)
    n_examples = sum(one.is_example for one in source.questions)
    if n_examples:
        asked = count(n_examples, "question is", "questions are")
        lines.append(f"  {asked} among the examples (--few-shot), left out of their own prompts")
    lines += _bos_warning(source)
    if not (source.is_given or source.decoding.stop or end_ids(source.model)):
        lines.append(
            "warning: the model has no token that ends an answer (eos_token_id of its "
            "generation_config.json): end answers with a text (--stop)"
        )
    if skipped.n:
        lines += [f"  {count(skipped.n, 'question')} left out", *skipped.lines()]
    if source.left_out.n:
        lines += [f"  {count(source.left_out.n, 'trace')} left out", *source.left_out.lines()]
        lines.append(f"  to have all: {source.advice}, into a new store")
    return "\n".join(lines)


def _bos_warning(source: HuggingFaceSource) -> list[str]:
    """A warning where prompts lack the token that texts of the model begin with."""
    token = source.model.config.get_text_config().bos_token_id
    begun = {int(one.prompt[0]) for one in source.questions}
    # a token that ends texts parts documents
    if token is None or not begun or token in begun | end_ids(source.model):
        return []
    text = source.prompts.tokenizer.convert_ids_to_tokens(token)
    return [
        f"warning: texts of the model begin with {text!r} "
        "(bos_token_id of its configuration), which the tokenizer does not add: put it into "
        "--prompt-template, if the model was trained with it"
    ]


def label_report(store: TraceStore, rules: Sequence[str], max_new_tokens: int | None) -> list[str]:
    """Count the labels of an extraction, compare its rules, and warn.

    `max_new_tokens` is the longest answer; None if the answers were given.
    """
    lines: list[str] = []
    is_given = max_new_tokens is None  # then labels need not come from a rule
    columns = store.schema.columns.keys()
    if not len(store):
        return lines
    counts = stored_counts(store)
    if counts is not None:
        rule = None if is_given else rules[0]
        lines += [*counts.lines, *one_class_warning(counts, rule)]
        lines += _length_warning(store, rule)
    by_rule = {rule: label_column_name(rule) for rule in rules}
    if columns >= set(by_rule.values()):
        labels = {rule: np.asarray(store.column(name)) for rule, name in by_rule.items()}
        lines += rule_table(labels)
    lines += verdict_lines(store.provenance.get(VERDICTS, {}))
    if max_new_tokens is not None:
        lines += _endless_warning(store, max_new_tokens)
    return lines


def _length_warning(store: TraceStore, rule: str | None) -> list[str]:
    """A warning where a rule compares whole sentences with short references."""
    ratio = LONGEST_RATIO.get(rule or "")
    if ratio is None or not {"answer", "references"} <= store.schema.columns.keys():
        return []
    are_longer = list(_are_longer(store, ratio))
    n_longer = sum(are_longer)
    if n_longer <= len(are_longer) / 2:
        return []
    return [
        f"warning: {n_longer / len(are_longer):.0%} of the answers are longer than each of "
        f"their references, and {rule} counts all of those as wrong; {JUDGE_ADVICE}"
    ]


def _are_longer(store: TraceStore, ratio: int) -> Iterator[bool]:
    """Whether the answer of each trace with references has more than `ratio` times their words."""
    for first in range(0, len(store), BLOCK_ROWS):
        rows = range(first, min(first + BLOCK_ROWS, len(store)))
        batch = store.read(rows, ["answer", "references"])
        for answer, references in zip(
            batch.texts("answer"), batch.texts("references"), strict=True
        ):
            n_words = [_count_words(reference) for reference in json.loads(references)]
            if n_words:
                yield _count_words(answer) > ratio * max(n_words)


def _count_words(text: str) -> int:
    return len(normalize_answer(text).split())


def _endless_warning(store: TraceStore, max_new_tokens: int) -> list[str]:
    """A warning where most answers have no end, as those of base models that run on."""
    if "answer_len" not in store.schema.columns or len(store) < MIN_ROWS:
        return []
    share = float((np.asarray(store.column("answer_len")) >= max_new_tokens).mean())
    if share <= 0.5:
        return []
    ways = ["allow more tokens"]
    if not store.provenance.get("decoding", {}).get("stop"):
        ways.append(r"end those of a base model, which runs on, with a text (--stop '\n')")
    if "chat_prompt" not in store.provenance:
        ways.append("ask a chat model with --chat-template")
    return [
        f"warning: {share:.0%} of the answers have {max_new_tokens} tokens (--max-new-tokens) and "
        f"no end: {', or '.join(ways)}"
    ]
