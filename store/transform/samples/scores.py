"""Columns that are made from the several traces of each question: scores of how much they agree.

A value is of a question, on each of its traces (of `selfcheck_nli` it is of the trace); NaN where a
question has one trace only. What scores are made from is checked before anything is computed. The
traces of a question are taken in the order of their ids, so that values do not depend on the order
of the rows.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.errors import NotFoundError, SchemaError
from store.format.schema import TRACE_ID, Column
from store.read.batches.batch import Batch
from store.read.questions import QUESTION_ID, read_texts
from store.read.store import TraceStore
from store.traces.layers import LAYERS_AXIS, choose_layers
from store.transform.samples.agreement import (
    ALPHA,
    Nli,
    Samples,
    cluster_meanings,
    contradicted,
    eigen_score,
    entropy_of_likelihoods,
    entropy_of_numbers,
    lexical_similarity,
)
from store.transform.samples.names import NEEDS, NLI, STATES, TEXTS
from store.write.source import Progress

__all__ = ["PASSES", "ScoreSettings", "check_needs", "check_scores", "describe_score", "score_rows"]


class ScoreSettings(NamedTuple):
    """What decides the numbers beside the traces."""

    layer: int | None = None  # of EigenScore, as the model numbers it; None: the one in the middle
    nli: Nli | None = None


def _is_of_layers(column: Column) -> bool:
    is_fixed = column.axis is None and len(column.item_shape) == 2
    return is_fixed and column.axis_names[:1] in ((), (LAYERS_AXIS,))


TEXT = ("texts", lambda column: column.is_text)
NUMBER = ("a number for each trace", lambda column: not (column.axis or column.item_shape))
KINDS: dict[str, tuple[str, Callable[[Column], bool]]] = {  # column -> what it holds; else NUMBER
    **dict.fromkeys((QUESTION_ID, *TEXTS), TEXT),
    STATES: ("states of layers for each trace", _is_of_layers),
    "hidden_states": ("states of each token", lambda one: bool(one.axis) and not one.is_text),
    "logprob": ("a number for each token", lambda one: bool(one.axis) and not one.item_shape),
}


def check_needs(
    store: TraceStore, name: str, needed: Sequence[str], columns: Mapping[str, Column]
) -> None:
    """Raise NotFoundError or SchemaError unless a column can be made from those that it needs.

    `columns` are those that the store has or is about to get.
    """
    for one in needed:
        if one not in columns:
            way = f"; python -m store derive {store.location} {one} adds it"
            advice = way if one == STATES and "hidden_states" in columns else ""
            raise NotFoundError(
                f"{store.location}: {name} is made from column {one!r}, found only "
                f"{', '.join(columns)}{advice}"
            )
        expected, fits = KINDS.get(one, NUMBER)
        if not fits(columns[one]):
            raise SchemaError(
                f"{store.location}: column {one!r}: expected {expected}, found {columns[one]}"
            )


def check_scores(
    store: TraceStore, names: Sequence[str], columns: Mapping[str, Column], settings: ScoreSettings
) -> None:
    """Raise unless a store has what scores are made from; see `check_needs`.

    That is the layer as well (NotFoundError), and a question with several traces (SchemaError).
    """
    for name in names:
        check_needs(store, name, (QUESTION_ID, *NEEDS[name]), columns)
    if "eigenscore" in names and STATES in store.schema.columns:
        choose_layer(store, settings.layer)
    if names:
        questions_of(store)


def questions_of(store: TraceStore) -> list[NDArray[np.int64]]:
    """The rows of each question with several traces, int64, by the traces' ids.

    Raises SchemaError if every question has one trace.
    """
    rows_of = defaultdict(list)
    for row, question in enumerate(read_texts(store, QUESTION_ID)):
        rows_of[question].append(row)
    several = [rows for rows in rows_of.values() if len(rows) > 1]
    if not several:
        raise SchemaError(
            f"{store.location}: expected several traces of a question, whose answers are compared, "
            f"found one trace of each of {len(rows_of):,} questions; make the traces with "
            "python -m store extract --num-samples N"
        )
    ids = read_texts(store, TRACE_ID)
    return [np.array(sorted(rows, key=ids.__getitem__), np.int64) for rows in several]


def layers_of_states(store: TraceStore) -> list[int]:
    """The layers of `hs_last` as the model numbers them, from 1 where its axes have no names."""
    n_layers = store.schema.columns[STATES].item_shape[0]
    return store.layers(STATES) or list(range(1, n_layers + 1))


def choose_layer(store: TraceStore, layer: int | None) -> int:
    """The position of a layer among those of `hs_last`, by default of the one in the middle.

    Of the layers 1 to L it is layer (L + 1) // 2, as in the authors' code of EigenScore, which
    counts the embedding as well: 16 of 32.
    """
    numbers = layers_of_states(store)
    if layer is not None:
        where = f"{store.location}: column {STATES!r}"
        return choose_layers(str(layer), numbers, where)[0]
    blocks = [position for position, number in enumerate(numbers) if number > 0]
    return blocks[(len(blocks) - 1) // 2] if blocks else 0


Block = Sequence[NDArray[np.int64]]  # rows of each of some questions
Values = dict[str, Sequence[float]]  # column -> a number for each row of a block
# the numbers of columns that are made together, those that the store allows
Score = Callable[[TraceStore, ScoreSettings, Block], Values]


def score_rows(
    store: TraceStore, names: Sequence[str], settings: ScoreSettings, progress: Progress
) -> Iterator[dict[str, np.float32]]:
    """Rows of columns of one of `PASSES`; all are computed before the first is yielded."""
    (together,) = (columns for columns in PASSES if names[0] in columns)
    score, n_questions = PASSES[together]
    found = {name: np.full(len(store), np.nan, np.float32) for name in names}
    questions = questions_of(store)
    n_done = len(store) - sum(map(len, questions))
    for first in range(0, len(questions), n_questions):
        block = questions[first : first + n_questions]
        rows = np.concatenate(block)
        values = score(store, settings, block)
        for name in names:
            found[name][rows] = values[name]
        n_done += len(rows)
        progress(n_done)
    for i in range(len(store)):
        yield {name: numbers[i] for name, numbers in found.items()}


def describe_score(name: str, store: TraceStore, settings: ScoreSettings) -> dict[str, Any]:
    """What decided the numbers of a column, JSON-able."""
    described: dict[str, Any] = {"from": list(NEEDS[name])}
    if name == "eigenscore":
        position = choose_layer(store, settings.layer)
        described |= {"layer": layers_of_states(store)[position], "alpha": ALPHA}
    if name in NLI:
        described["nli"] = _nli_of(settings).describe()
    return described


def _nli_of(settings: ScoreSettings) -> Nli:
    if settings.nli is None:
        raise ValueError("settings: expected a classifier, found none")
    return settings.nli


def _eigen_scores(store: TraceStore, settings: ScoreSettings, block: Block) -> Values:
    position = choose_layer(store, settings.layer)
    part = {}
    if store.schema.columns[STATES].axis_names:
        part = {STATES: {LAYERS_AXIS: slice(position, position + 1)}}
    states = store.read_arrays(np.concatenate(block), [STATES], part).numbers(STATES)
    at_layer = states[:, 0 if part else position].astype(np.float64)  # of (n, 1 or L, d)
    of_questions = _split(at_layer, block)
    return {"eigenscore": _on_each_trace(map(eigen_score, of_questions), block)}


def _similarities(store: TraceStore, settings: ScoreSettings, block: Block) -> Values:
    batch = store.read_arrays(np.concatenate(block), ["answer"])
    answers = _split(batch.texts("answer"), block)
    return {"lexical_similarity": _on_each_trace(map(lexical_similarity, answers), block)}


def _semantic_entropies(store: TraceStore, settings: ScoreSettings, block: Block) -> Values:
    """Both columns; the one of the likelihoods is left out where the store has none."""
    rows = np.concatenate(block)
    samples = _read_samples(store, block, with_question=True)
    clusters = cluster_meanings(samples, _nli_of(settings).infer)
    values = {"semantic_entropy_discrete": _on_each_trace(map(entropy_of_numbers, clusters), block)}
    needed = NEEDS["semantic_entropy"][2:]
    if set(needed) <= store.schema.columns.keys():
        likelihoods = _split(mean_log_likelihoods(store.read_arrays(rows, needed)), block)
        entropies = map(entropy_of_likelihoods, clusters, likelihoods)
        values["semantic_entropy"] = _on_each_trace(entropies, block)
    return values


def _contradictions(store: TraceStore, settings: ScoreSettings, block: Block) -> Values:
    samples = _read_samples(store, block)
    by_question = contradicted(samples, _nli_of(settings).infer)
    return {"selfcheck_nli": [number for numbers in by_question for number in numbers]}


def _read_samples(store: TraceStore, block: Block, with_question: bool = False) -> list[Samples]:
    names = ["answer", *(["question"] if with_question else [])]
    batch = store.read_arrays(np.concatenate(block), names)
    answers = _split([text.strip() for text in batch.texts("answer")], block)
    if not with_question:
        return [Samples("", texts) for texts in answers]
    questions = _split(batch.texts("question"), block)
    return [Samples(asked[0], texts) for asked, texts in zip(questions, answers, strict=True)]


def mean_log_likelihoods(batch: Batch) -> NDArray[np.float64]:
    """Mean log-probability of each answer's tokens, `(n_rows,)`.

    NaN for an answer without tokens, or one whose place in the trace is not known.
    """
    logprob = batch.numbers("logprob")
    offsets = batch.ragged("logprob").offsets.tolist()
    starts, lengths = (batch.numbers(name).tolist() for name in ("prompt_len", "answer_len"))
    means = np.full(len(batch.rows), np.nan)
    for i, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        first = max(1, start)  # nothing predicted token 0
        of_trace = logprob[offsets[i] : offsets[i + 1]]
        numbers = of_trace[first : start + length].astype(np.float64)
        if start >= 0 and len(numbers):
            means[i] = numbers.mean()
    return means


def _split(values: Any, block: Block) -> list[Any]:
    """Values of the rows of a block, question by question."""
    ends = np.cumsum([0, *map(len, block)])
    return [values[start:end] for start, end in pairwise(ends)]


def _on_each_trace(numbers: Iterable[float], block: Block) -> Sequence[float]:
    lengths = [*map(len, block)]
    return np.repeat([*numbers], lengths).tolist()


# columns that are made together -> how; and the questions of a block, which are in memory at once
PASSES: dict[tuple[str, ...], tuple[Score, int]] = {
    ("eigenscore",): (_eigen_scores, 256),
    ("lexical_similarity",): (_similarities, 256),
    # few: a classifier may take a second for each pair of texts
    ("semantic_entropy", "semantic_entropy_discrete"): (_semantic_entropies, 16),
    ("selfcheck_nli",): (_contradictions, 16),
}
