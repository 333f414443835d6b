"""What the responses say of traces that were recorded while vLLM served, added to their store."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from store.errors import SchemaError
from store.format.schema import Column
from store.importers.damage import one_line
from store.importers.vllm_requests import (
    Requests,
    checked_prompt,
    columns_of,
    fields_of,
    row_of,
)
from store.labels.rule import UNLABELLED
from store.read.store import TraceStore
from store.traces.columns import TRACE_COLUMNS
from store.traces.fields import Fields, find_fields
from store.write.writer import StoreWriter

__all__ = ["Joined", "join_responses"]

NO_LABELS = {"score": np.float32("nan"), "label": UNLABELLED}


class Joined(NamedTuple):
    """What was found: traces with a response, all traces, and responses without a trace."""

    n_joined: int
    n_traces: int
    n_left: int
    contradicted: list[str]  # traces whose response says otherwise, and what


def join_responses(
    writer: StoreWriter, requests: Requests, wanted: list[str] | None = None
) -> Joined:
    """Add to all traces, in one commit, the columns that some response has a value for.

    A trace without a response has empty texts, no label, and NaN as log-probabilities; so has one
    whose response contradicts its tokens. `wanted` names fields, as of `find_fields`. Raises
    SchemaError if no response is of a trace, or the store has one of the columns.
    """
    store = TraceStore.open(writer.root)
    found = {trace_id: requests[trace_id] for trace_id in store.ids if trace_id in requests}
    if not found:
        raise SchemaError(
            f"{store.path}: expected responses with ids of its traces, as {store.ids[0]!r:.80}, "
            f"found {next(iter(requests))!r:.80}"
        )
    fields = find_fields([fields_of(request) for request in found.values()], wanted)
    columns = _columns(found, fields)
    there = [name for name in columns if name in store.schema.columns]
    if there:
        raise SchemaError(
            f"{store.path}: expected no column {there[0]!r} yet: responses are joined once, when "
            "recording has ended; record into another store, and merge both"
        )
    contradicted: list[str] = []
    writer.set_columns(columns, _rows(store, found, columns, fields, contradicted))
    n_joined = len(found) - len(contradicted)
    return Joined(n_joined, len(store), len(requests) - len(found), contradicted)


def _columns(requests: Requests, fields: Fields) -> dict[str, Column]:
    labels = {
        name for name in NO_LABELS if any(one.get(name) is not None for one in requests.values())
    }
    names = {"question_id", *columns_of(requests), *labels} - {"prompt_len"}
    known = {name: TRACE_COLUMNS[name].stored({}) for name in TRACE_COLUMNS if name in names}
    return {**known, **fields.columns}


def _rows(
    store: TraceStore,
    requests: Requests,
    columns: Mapping[str, Column],
    fields: Fields,
    contradicted: list[str],
) -> Iterator[dict[str, Any]]:
    """The values of each trace; `contradicted` is told of responses that are left out."""
    names = set(columns)
    for trace in store:
        request = requests.get(trace.id, {})
        tokens = np.asarray(trace["tokens"])
        try:
            checked_prompt(request, tokens)
            row = row_of(request, names, tokens)
        except (SchemaError, LookupError) as error:
            contradicted.append(f"trace {trace.id!r}: {one_line(error)}")
            request = {}
            row = row_of(request, names, tokens)
        question = str(request.get("question_id", trace.id))
        row = NO_LABELS | row | {"question_id": question} | fields.row(fields_of(request))
        yield {name: row[name] for name in columns}
