"""Columns of a store that follow from others of it: states of single tokens, and their mean."""

from collections.abc import Iterator, Sequence
from typing import Any

from store.errors import NotFoundError, SchemaError, closest
from store.format.schema import Column
from store.read.store import TraceStore
from store.sources.states import DERIVED, derive_states
from store.write.copy import Progress
from store.write.writer import StoreWriter

__all__ = ["derive_columns", "plan_columns"]

STATES = "hidden_states"
PROMPT = "prompt_len"
DERIVED_KEY = "derived"  # in the provenance: names of columns that were added, and from what


def plan_columns(store: TraceStore, names: Sequence[str]) -> dict[str, Column]:
    """Return the columns to add.

    Parameters
    ----------
    store
        Whose columns they are made from.
    names
        Some of `DERIVED`.

    Returns
    -------
    dict
        Name -> column, without those that the store has.

    Raises
    ------
    NotFoundError
        A name cannot be derived, or the store lacks what it is made from.
    """
    present = store.schema.columns
    for name in names:
        if name not in DERIVED:
            like = closest(name, DERIVED)
            raise NotFoundError(f"expected some of {', '.join(DERIVED)}, found {name!r:.80}{like}")
    missing = [name for name in dict.fromkeys(names) if name not in present]
    for name in missing:
        for needed in (STATES, *([PROMPT] if name != "hs_last" else [])):
            if needed not in present:
                raise NotFoundError(
                    f"{store.path}: {name} is made from column {needed!r}, found only "
                    f"{', '.join(present)}"
                )
    if not missing:
        return {}
    states = present[STATES]
    if states.axis is None or states.is_text:
        raise SchemaError(f"{store.path}: expected {STATES} of each token, found a fixed column")
    # the sizes of chunks and shards are chosen again, for one item a row
    fixed = Column(
        states.dtype,
        states.item_shape,
        axis_names=states.axis_names,
        split=states.split,
        codec=states.codec,
    )
    return dict.fromkeys(missing, fixed)


def derive_columns(
    writer: StoreWriter, names: Sequence[str], progress: Progress = lambda done: None
) -> None:
    """Add columns that follow from others, in one commit; one row is in memory at a time.

    Parameters
    ----------
    writer
        Of the store.
    names
        Some of `DERIVED`; those that the store has stay as they are.
    progress
        Called with the number of rows done after each.

    Raises
    ------
    StoreError
        See `plan_columns`; or a trace has no tokens of an answer. The store is as it was.
    """
    store = TraceStore.open(writer.root)
    columns = plan_columns(store, names)
    if not columns:
        return
    made = dict(writer.provenance.get(DERIVED_KEY) or {})
    made |= dict.fromkeys(columns, STATES)
    provenance = {**writer.provenance, DERIVED_KEY: made}
    writer.set_columns(columns, _rows(store, list(columns), progress), provenance)


def _rows(store: TraceStore, names: list[str], progress: Progress) -> Iterator[dict[str, Any]]:
    has_prompt = PROMPT in store.schema.columns
    for i in range(len(store)):
        trace = store[i]
        states = trace[STATES]
        prompt_len = int(trace[PROMPT]) if has_prompt else None
        try:
            yield {name: derive_states(name, states, prompt_len) for name in names}
        except SchemaError as error:
            raise SchemaError(f"{store.path}: trace {trace.id!r}: {error}") from error
        progress(i + 1)
