"""Are traces of two stores comparable? What their provenance says of the model, its layers and the
prompts. Pure.

Traces of other weights, other layers or other prompts are other data: a detector that was trained
on the ones says nothing about the others, though the shapes may fit. Only what both sides record is
compared.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["LAYERS", "ORIGIN_KEYS", "Difference", "find_difference", "origins_of", "records_of"]

LAYERS = "layers"
CHAT = "chat_template"
ORIGIN_KEYS = (
    "weights_sha256",
    "weights_crc32c",
    "config_sha256",
    "tokenizer_sha256",
    LAYERS,
    "layer_convention",
    "trace_convention",
    "prompt_template",
    CHAT,
)
_DAY = re.compile(
    r"\d+|(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun)[a-z]*", re.I
)


class Difference(NamedTuple):
    """What two origins do not agree on."""

    key: str
    expected: Any
    found: Any


def origins_of(provenance: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a store records of where its traces come from: an entry for each origin, through all
    merges, each once.

    Returns
    -------
    list of dict
        Those of `ORIGIN_KEYS` that are recorded; of a store that records none one empty entry.
    """
    found: list[dict[str, Any]] = []
    for record in records_of(provenance):
        origin = {key: record[key] for key in ORIGIN_KEYS if key in record}
        if "prompt_template" in record:
            chat = record.get("chat_prompt")
            # which may name the day
            origin[CHAT] = _DAY.sub("", chat) if isinstance(chat, str) else None
        if origin not in found:
            found.append(origin)
    return found


def records_of(provenance: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The provenance of a store, or of each store that it was merged from, through all merges."""
    parts = provenance.get("stores")
    is_merged = provenance.get("source") == "merge" and isinstance(parts, list) and bool(parts)
    if not is_merged or not all(isinstance(part, dict) for part in parts):
        yield provenance
        return
    for part in parts:
        yield from records_of(part)


def find_difference(
    known: Iterable[Mapping[str, Any]], origin: Mapping[str, Any], without: Iterable[str] = ()
) -> Difference | None:
    """The first thing in which an origin differs from the known one that is most like it; None if
    one agrees.

    Parameters
    ----------
    known
        Entries of `origins_of`.
    origin
        Another entry.
    without
        Keys that may differ.
    """
    differences = [_differences(one, origin, set(without)) for one in known]
    closest = min(differences, key=len, default=[])
    return closest[0] if closest else None


def _differences(
    expected: Mapping[str, Any], found: Mapping[str, Any], without: set[str]
) -> list[Difference]:
    both = [key for key in ORIGIN_KEYS if key in expected and key in found and key not in without]
    return [
        Difference(key, expected[key], found[key]) for key in both if expected[key] != found[key]
    ]
