"""Whether a build goes on with what another one began: the provenance tells. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from store.format.schema import Schema
from store.traces.label_keys import (
    LABELS_BEFORE,
    VERDICTS,
    without_labelling,
    without_rule_columns,
)

__all__ = ["BATCHING", "COMMAND", "REMARKS", "difference_of_builds", "identity"]

# keys of the provenance
REMARKS = "left_out"  # what a source could not use
BATCHING = "batching"  # how many traces were computed at once: it decides no more than rounding
COMMAND = "command"  # the command line that made the store, or that continues making it
UNDECIDING = (REMARKS, VERDICTS, COMMAND, BATCHING)  # what does not tell one build from another

SHOWN_DIFFERENCES = 3
DIGEST = "_sha256"


def identity(provenance: Mapping[str, object]) -> dict[str, Any]:
    """What of the provenance decides the rows: not the remarks, nor the command that was typed."""
    kept = {key: value for key, value in provenance.items() if key not in UNDECIDING}
    return json.loads(json.dumps(kept))  # as a store gives it back


def difference_of_builds(
    begun: Mapping[str, object], schema: Schema, wanted: Mapping[str, object], wanted_schema: Schema
) -> str | None:
    """The first few things in which a store differs from what a source makes; None if equal.

    `begun` and `schema` are the store's provenance and columns, the others those of the source.
    """
    old = identity(begun)
    new = identity(wanted)
    if LABELS_BEFORE in old:  # it was labelled again since
        old = without_labelling(old)
        new = without_labelling(new)
        schema = without_rule_columns(schema, wanted_schema)
    columns = f"columns {list(schema.columns)} instead of {list(wanted_schema.columns)}"
    if schema.columns.keys() != wanted_schema.columns.keys():
        return columns
    if old == new and schema == wanted_schema:
        return None
    old = _flat(old)
    new = _flat(new)
    pairs = {key: (old.get(key), new.get(key)) for key in {**new, **old}}
    apart = [_in_words(key, *pair) for key, pair in pairs.items() if pair[0] != pair[1]]
    if not apart:
        return f"{columns}, or of other shapes"
    shown = apart[:SHOWN_DIFFERENCES]
    if len(apart) > len(shown):
        shown.append(f"and {len(apart) - len(shown)} more")
    return ", ".join(shown)


def _in_words(key: str, old: object, new: object) -> str:
    """A difference of the provenance; digests, which say nothing, are not shown."""
    if key.endswith(DIGEST) and None not in (old, new):
        return f"other {key.removesuffix(DIGEST)}"
    return f"{key} {old!r:.200} instead of {new!r:.200}"


def _flat(value: object, name: str = "") -> dict[str, object]:
    """{"a": {"b": 1}, "c": [{"d": 2}]} -> {"a.b": 1, "c.0.d": 2}, to show only what differs."""
    if isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return {name: value}
    flat: dict[str, object] = {}
    prefix = f"{name}." if name else ""
    for key, part in value.items():
        flat |= _flat(part, f"{prefix}{key}")
    return flat
