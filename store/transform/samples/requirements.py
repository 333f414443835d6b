"""What scores of samples are made from, checked before anything is computed.

The traces of a question are taken in the order of their ids, so that values do not depend on the
order of the rows.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.errors import NotFoundError, SchemaError
from store.format.schema import TRACE_ID, Column
from store.read.store import TraceStore
from store.read.whole_columns import QUESTION_ID, read_texts
from store.traces.layers import LAYERS_AXIS, choose_layers
from store.transform.samples.meaning import Nli
from store.transform.samples.names import NEEDS, STATES, TEXTS

__all__ = [
    "ScoreSettings",
    "check_needs",
    "check_scores",
    "choose_layer",
    "layers_of_states",
    "questions_of",
]


class ScoreSettings(NamedTuple):
    """What decides the numbers beside the traces."""

    layer: int | None = None  # of EigenScore, as the model numbers it; None: the one in the middle
    nli: Nli | None = None


def _is_number(column: Column) -> bool:
    return column.axis is None and not column.item_shape


def _is_of_layers(column: Column) -> bool:
    is_fixed = column.axis is None and len(column.item_shape) == 2
    return is_fixed and column.axis_names[:1] in ((), (LAYERS_AXIS,))


TEXT = ("texts", lambda column: column.is_text)
NUMBER = ("a number for each trace", _is_number)
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
            way = f"; python -m store derive {store.path} {one} adds it"
            advice = way if one == STATES and "hidden_states" in columns else ""
            raise NotFoundError(
                f"{store.path}: {name} is made from column {one!r}, found only "
                f"{', '.join(columns)}{advice}"
            )
        expected, fits = KINDS.get(one, NUMBER)
        if not fits(columns[one]):
            raise SchemaError(
                f"{store.path}: column {one!r}: expected {expected}, found {columns[one]}"
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
            f"{store.path}: expected several traces of a question, whose answers are compared, "
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
        where = f"{store.path}: column {STATES!r}"
        return choose_layers(str(layer), numbers, where)[0]
    blocks = [position for position, number in enumerate(numbers) if number > 0]
    return blocks[(len(blocks) - 1) // 2] if blocks else 0
