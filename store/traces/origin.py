"""Are traces of two stores comparable? Their provenance names model, layers and prompts. Pure.

Traces of other weights, other layers or other prompts are other data: a detector that was trained
on the ones says nothing about the others, though the shapes may fit. Only keys that both stores
record are compared.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from store.traces.label_keys import (
    LABEL_KEYS,
    LABEL_NAMES_KEY,
    LABEL_RULES_KEY,
    RULE_BEFORE_KEY,
    RULE_KEY,
)

__all__ = [
    "COMMON",
    "FINAL_NORM",
    "LAYERS",
    "PARTS",
    "TRACE_CONVENTION",
    "Difference",
    "as_compared",
    "find_difference",
    "origins_of",
    "records_of",
    "share_equal",
]

PARTS = "stores"  # of a merge: what differs in the provenances of its parts
COMMON = "common"  # and what all of them have
LAYERS = "layers"
LAYER_CONVENTION = "layer_convention"
# whether the model's last layer is kept after the output norm; None where it is not kept
FINAL_NORM = "final_norm"
TRACE_CONVENTION = (
    "prompt tokens, then answer tokens; the end-of-sequence token is left out unless the answer is "
    "nothing else"
)
CHAT = "chat_template"
ORIGIN_KEYS = (
    "weights_sha256",
    "weights_crc32c",
    "config_sha256",
    "tokenizer_sha256",
    LAYERS,
    LAYER_CONVENTION,
    FINAL_NORM,
    "trace_convention",
    "prompt_template",
    CHAT,
)
_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_WEEKDAYS = "mon|tue|wed|thu|fri|sat|sun"
_DAY = re.compile(rf"\d+|({_MONTHS}|{_WEEKDAYS})[a-z]*", re.IGNORECASE)


class Difference(NamedTuple):
    """A key on which two origins differ, and both values."""

    key: str
    expected: object
    found: object


def origins_of(provenance: Mapping[str, object]) -> list[dict[str, object]]:
    """The distinct origins of a store's traces, through all merges.

    Each has those of `ORIGIN_KEYS` that are recorded; a store that records none has one empty
    entry.
    """
    origins: list[dict[str, object]] = []
    for record in records_of(provenance):
        origin = {key: record[key] for key in ORIGIN_KEYS if key in record}
        if "prompt_template" in record:
            prompt = record.get("chat_prompt")  # it may name the day
            origin[CHAT] = _DAY.sub("", prompt) if isinstance(prompt, str) else None
        if origin not in origins:
            origins.append(origin)
    return origins


def as_compared(
    origin: Mapping[str, object], read: Sequence[int] | None = None
) -> dict[str, object]:
    """What counts of an entry of `origins_of`; see `find_difference`.

    Earlier versions did not record the output norm. Their stores that say how layers are numbered
    are of transformers, and count as if they kept the last layer.
    """
    norm = origin.get(FINAL_NORM, LAYER_CONVENTION in origin or None)
    layers = origin.get(LAYERS)
    if read is not None and isinstance(layers, list) and layers and layers[-1] not in read:
        norm = None
    dropped = (FINAL_NORM,) if read is None else (FINAL_NORM, LAYERS)
    rest = {key: value for key, value in origin.items() if key not in dropped}
    return rest if norm is None else {**rest, FINAL_NORM: norm}


def records_of(provenance: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """The provenance of a store, or of each store that it was merged from, through all merges.

    Where a merged store was labelled again, its records say so: as its own labels came about, and
    as those of its parts did, if some rows kept them.
    """
    parts = provenance.get(PARTS) if provenance.get("source") == "merge" else None
    if isinstance(parts, list) and parts and all(isinstance(part, dict) for part in parts):
        common = provenance.get(COMMON)
        shared = common if isinstance(common, dict) else {}
        for part in parts:
            for record in records_of({**shared, **part}):
                yield from _labelled_again(record, provenance)
    else:
        yield provenance


def _labelled_again(
    record: Mapping[str, object], merged: Mapping[str, object]
) -> Iterator[dict[str, object]]:
    """The record of a part with the labels that the merged store was given since."""
    part = dict(record)
    if LABEL_NAMES_KEY in merged:
        part[LABEL_NAMES_KEY] = merged[LABEL_NAMES_KEY]
    before, added = part.get(LABEL_RULES_KEY), merged.get(LABEL_RULES_KEY)
    if isinstance(added, dict):
        part[LABEL_RULES_KEY] = (before if isinstance(before, dict) else {}) | added
    if RULE_KEY not in merged or RULE_BEFORE_KEY in merged:
        yield part
    if RULE_KEY in merged:
        rest = {key: value for key, value in part.items() if key not in LABEL_KEYS}
        yield rest | {key: merged[key] for key in LABEL_KEYS if key in merged}


def share_equal(
    records: Sequence[Mapping[str, object]], own: Collection[str]
) -> tuple[dict[str, object], list[dict[str, object]]]:
    """What all records have, once, and what else each of them has.

    Parts of an extraction are alike but for a few keys: 3 KB of each would be 3 MB of a thousand,
    in a manifest that every `open` reads.

    Keys in `own` stay in each record. Returns `common` and `rests`, where `{**common, **rests[i]}`
    has the keys and values of `records[i]`.
    """
    first, *others = [
        {key: json.dumps(value, sort_keys=True) for key, value in record.items()}
        for record in records
    ]
    shared = {
        key
        for key, text in first.items()
        if key not in own and all(other.get(key) == text for other in others)
    }
    common = {key: value for key, value in records[0].items() if key in shared}
    rests = [
        {key: value for key, value in record.items() if key not in shared} for record in records
    ]
    return common, rests


def find_difference(
    known: Iterable[Mapping[str, object]],
    origin: Mapping[str, object],
    read: Sequence[int] | None = None,
) -> Difference | None:
    """The first difference between an origin and the known one that is most like it.

    `known` and `origin` are entries of `origins_of`; `read` are the numbers of the layers that are
    read of both, which may keep others, or None if all are. Returns None if one agrees, or none is
    known.
    """
    origin = as_compared(origin, read)
    compared = [key for key in ORIGIN_KEYS if key in origin]

    def differences(other: Mapping[str, object]) -> list[Difference]:
        pairs = [(key, other.get(key, origin[key])) for key in compared]
        return [Difference(key, value, origin[key]) for key, value in pairs if value != origin[key]]

    closest = min((differences(as_compared(one, read)) for one in known), key=len, default=[])
    return closest[0] if closest else None
