"""Pictures of a trace, tokens by layers, reduced from its states before they leave the server.

States are read a block of tokens at a time: of a trace of hundreds of megabytes a few are in
memory, and its picture is some kilobytes.

512 tokens of 32 layers of width 4096 are 134 MB. To read them takes 5 ms at the speed of memory, to
copy them here, widen them to float32 and reduce them 45 ms of one core: most of it is the widening.
"""

from collections.abc import Callable

import numpy as np

from store.errors import NotFoundError
from store.format.schema import Schema
from store.read.store import TraceStore
from store.view.traces import count_items, read_column

__all__ = ["layer_picture", "pictures"]

STATES = "hidden_states"
LENS = "lens_entropy"
BLOCK_BYTES = 4 * 1024 * 1024  # of states, in float32: what a processor keeps at hand


def norms(states: np.ndarray) -> np.ndarray:
    """Euclidean norms of states float32 `(T, L, d)`: float32 `(T, L)`."""
    return np.sqrt(np.vecdot(states, states))


def cosines_below(states: np.ndarray) -> np.ndarray:
    """Cosines of states to those one layer below: float32 `(T, L)`, NaN for the lowest layer.

    `states` are float32 `(T, L, d)`.
    """
    cosines = np.full(states.shape[:2], np.nan, np.float32)
    lengths = norms(states)
    dots = np.vecdot(states[:, 1:], states[:, :-1])
    products = lengths[:, 1:] * lengths[:, :-1]
    np.divide(dots, products, out=cosines[:, 1:], where=products > 0)
    return cosines


REDUCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "norm": norms,
    "cosine": cosines_below,
}


def pictures(schema: Schema) -> list[str]:
    """What `layer_picture` can show of a store's traces."""
    found = [*REDUCTIONS] if _has(schema, STATES, 2) else []
    return [*found, LENS] if _has(schema, LENS, 1) else found


def _has(schema: Schema, name: str, n_axes: int) -> bool:
    """Whether there is a column with an array of so many axes for each token."""
    column = schema.columns.get(name)
    return column is not None and column.axis is not None and len(column.item_shape) == n_axes


def layer_picture(store: TraceStore, row: int, what: str) -> np.ndarray:
    """A number for each token and layer of a trace: float32 `(T, L)`.

    `what` is "norm" of the state, "cosine" to the state one layer below in the store, or
    "lens_entropy", a column. Raises NotFoundError if the store has no columns for it, and
    IndexError if there is no such row.
    """
    known = pictures(store.schema)
    if what not in known:
        names = ", ".join(known) or "nothing"
        raise NotFoundError(f"layers: expected one of: {names}; found {what!r:.80}")
    if what == LENS:
        return read_column(store, row, LENS)
    n_layers, width = store.schema.columns[STATES].item_shape
    n_tokens = count_items(store, STATES, row)
    block = max(1, BLOCK_BYTES // (n_layers * width * 4))
    picture = np.empty((n_tokens, n_layers), np.float32)
    for start in range(0, n_tokens, block):
        tokens = slice(start, start + block)
        states = read_column(store, row, STATES, tokens=tokens)
        with np.errstate(over="ignore", invalid="ignore"):  # the states may be infinite or NaN
            picture[tokens] = REDUCTIONS[what](states)
    return picture
