"""Columns of a store that follow from others of it.

States of single tokens and their mean follow from the states of a trace, scores of agreement from
the several traces of a question.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from store.errors import NotFoundError, SchemaError, closest
from store.format.schema import Column
from store.read.store import TraceStore
from store.traces.states import DERIVED, derive_states
from store.transform.samples.names import NEEDS
from store.transform.samples.scores import (
    PASSES,
    ScoreSettings,
    check_needs,
    check_scores,
    describe_score,
    score_rows,
)
from store.write.source import Progress
from store.write.writer import StoreWriter

__all__ = ["derive_columns", "plan_columns", "plan_passes"]

STATES = "hidden_states"
PROMPT = "prompt_len"
STATES_NEED = dict.fromkeys(DERIVED, (STATES, PROMPT)) | {"hs_last": (STATES,)}
DERIVED_KEY = "derived"  # in the provenance: names of columns that were added, and from what
NAMES = (*DERIVED, *NEEDS)
NO_SETTINGS = ScoreSettings()


def plan_columns(
    store: TraceStore,
    names: Sequence[str],
    settings: ScoreSettings = NO_SETTINGS,
    *,
    again: bool = False,
) -> dict[str, Column]:
    """Return the columns to add, in an order in which they can be made, but those that are there.

    Raises NotFoundError: a name cannot be derived, or the store lacks what it is made from;
    SchemaError: what it is made from is of another kind, or no question has several traces.
    """
    present = store.schema.columns
    for name in names:
        if name not in NAMES:
            like = closest(name, NAMES)
            raise NotFoundError(f"expected some of {', '.join(NAMES)}, found {name!r:.80}{like}")
    states = [name for name in DERIVED if name in names and name not in present]
    for name in states:
        check_needs(store, name, STATES_NEED[name], present)
    columns = {name: _without_tokens(present[STATES]) for name in states}
    scores = [name for name in NEEDS if name in names and (again or name not in present)]
    check_scores(store, scores, {**present, **columns}, settings)
    return columns | dict.fromkeys(scores, Column("float32"))


def _without_tokens(states: Column) -> Column:
    """The column of one state a trace; the sizes of its chunks and shards are chosen again."""
    return Column(
        states.dtype,
        states.item_shape,
        axis_names=states.axis_names,
        split=states.split,
        codec=states.codec,
    )


def plan_passes(names: Sequence[str]) -> list[list[str]]:
    """Columns that are made together and committed together, in the order of the passes."""
    together = [tuple(DERIVED), *PASSES]
    passes = [[name for name in one if name in names] for one in together]
    return [one for one in passes if one]


def derive_columns(
    writer: StoreWriter,
    names: Sequence[str],
    progress: Progress = lambda done: None,
    settings: ScoreSettings = NO_SETTINGS,
    *,
    again: bool = False,
) -> None:
    """Add columns that follow from others, in a commit for each of `plan_passes`.

    One row of states is in memory at a time, and the texts of a few questions.

    Those that the store has stay as they are, unless scores are made `again`. `progress` is called
    with the number of rows done, in each pass from 0 on. Raises as `plan_columns` does, and for a
    trace without tokens of an answer: the store is as it was before the pass.
    """
    columns = plan_columns(TraceStore.open(writer.root, check=True), names, settings, again=again)
    for together in plan_passes(list(columns)):
        store = TraceStore.open(writer.root, check=True)  # a new column would hide what is damaged
        rows: Iterator[dict[str, Any]]
        described: dict[str, Any]
        if together[0] in DERIVED:
            rows = _state_rows(store, together, progress)
            described = dict.fromkeys(together, STATES)
        else:
            rows = score_rows(store, together, settings, progress)
            described = {name: describe_score(name, store, settings) for name in together}
        made = dict(writer.provenance.get(DERIVED_KEY) or {}) | described
        chosen = {name: columns[name] for name in together}
        writer.set_columns(chosen, rows, {**writer.provenance, DERIVED_KEY: made})


def _state_rows(
    store: TraceStore, names: list[str], progress: Progress
) -> Iterator[dict[str, Any]]:
    has_prompt = PROMPT in store.schema.columns
    for i in range(len(store)):
        trace = store[i]
        states = trace[STATES]
        prompt_len = int(trace[PROMPT]) if has_prompt else None
        try:
            yield {name: derive_states(name, states, prompt_len) for name in names}
        except SchemaError as error:
            raise SchemaError(f"{store.location}: trace {trace.id!r}: {error}") from error
        progress(i + 1)
