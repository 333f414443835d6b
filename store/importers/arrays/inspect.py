"""What files hold, and the command that makes a store of them; nothing is written."""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice

import numpy as np

from store.errors import SchemaError
from store.format.schema import NAME
from store.importers.arrays.axes import has_rows, has_tokens_and_layers, readings
from store.importers.arrays.contents import (
    LIST,
    TEXT,
    Contents,
    Key,
    Record,
    first_whole,
    key_of,
)
from store.importers.arrays.mapping import KNOWN, RECORDS, Mapped, column_of, parse_map, value_of
from store.importers.damage import DAMAGE, one_line
from store.importers.files import ARRAYS, PICKLES, READ, Given
from store.importers.legacy.source import FileReader
from store.importers.openhaldet import is_openhaldet
from store.importers.vllm import is_vllm
from store.reports import count
from store.traces.layers import LAYERS_AXIS

__all__ = ["inspect_lines"]

LOOKED_AT = 100  # records of a table
SHOWN_FILES = 3  # of each kind
SHOWN_KEYS = 40
SHOWN_TEXT = 60  # characters
ALIASES = {  # name in files of others -> column
    "trace_id": ("trace_ids", "id", "ids", "uid"),
    "question_id": ("question_ids", "qid", "qids", "question_idx"),
    "label": ("labels", "y", "hallucination", "is_hallucination", "target", "targets"),
    "score": ("scores", "correct", "is_correct", "iscorrect", "correctness", "accuracy"),
    "question": ("questions", "prompt", "query", "input"),
    "answer": ("answers", "response", "responses", "output", "generated_text"),
    "references": ("reference", "gold_answers"),
    "tokens": ("token_ids", "input_ids", "ids_of_tokens"),
    "hs_last": ("layers", "hs", "last_hidden", "last_token", "embeddings", "features", "x"),
    "hidden_states": ("states", "hidden", "hiddens", "activations"),
    "logprob": ("logprobs", "log_probs", "token_logprobs"),
    "entropy": ("entropies",),
    "prompt_len": ("prompt_length", "n_prompt"),
}
MEANINGS = {
    "label": "1 is a hallucination; map it to score where 1 is right",
    "score": "higher is better",
}
# of TransformerLens and SAELens: the residual stream, which has these axes
_HOOK = re.compile(r"blocks\.(\d+)\.hook_resid_post|hook_(?:pos_)?embed")
_HOOK_AXES = (RECORDS, "tokens", "hidden")
_COLUMNS = {alias: name for name, aliases in ALIASES.items() for alias in aliases}


def inspect_lines(given: Sequence[Given], max_bytes: int) -> tuple[list[str], bool]:
    """Describe files, none of which may unpack to more than `max_bytes`.

    Returns lines for people: kind, keys, numbers of records, and a command; and whether each file
    that was opened could be read.
    """
    lines: list[str] = []
    whole = True
    ordered = sorted(given, key=lambda item: item.kind)
    for _, group in groupby(ordered, lambda item: item.kind):
        items = list(group)
        for item in items[:SHOWN_FILES]:
            try:
                lines += _describe(item, max_bytes)
            except DAMAGE as error:
                whole = False
                lines.append(f"{item.path}: {item.kind}, cannot be read: {one_line(error)}")
        n_more = len(items) - SHOWN_FILES
        if n_more > 0:
            lines.append(f"... and {count(n_more, f'more {items[0].kind} file')}")
    return lines, whole


def _describe(item: Given, max_bytes: int) -> Iterator[str]:
    if item.kind in PICKLES:
        return _describe_pickle(item, max_bytes)
    if is_openhaldet(item):
        return iter([f"{item.path}: states of OpenHalDet", _import_line(item)])
    if item.kind in (*ARRAYS, "JSON lines"):
        return _describe_arrays(item, item.open(max_bytes))
    path = shlex.quote(str(item.path))
    advice = {
        "gzip text": f"a gzip text file: gunzip {path} unpacks it",
        "store": f"a store: python -m store info {path}",
        "text": f"a text file: python -m store label STORE --scores {path} reads scores, "
        f"python -m store extract OUT --questions {path} reads questions",
    }
    return iter(
        [f"{item.path}: {advice.get(item.kind, f'none of the kinds that are read: {READ}')}"]
    )


def _describe_pickle(item: Given, max_bytes: int) -> Iterator[str]:
    """Yield what a file of an older format, or of arrays, holds, as an import reads it."""
    try:
        traces = FileReader(keep_attention=False, max_bytes=max_bytes).read(item)
    except SchemaError:
        yield from _describe_arrays(item, item.open(max_bytes))
        return
    kind = f"{traces.kind} traces in a {item.kind} file"
    yield f"{item.path}: {kind}, {count(len(traces), 'record')}"
    if len(traces):
        row = traces.row(0)
        yield from _key_lines({name: key_of(value) for name, value in row.items()})
    yield _import_line(item)


def _import_line(item: Given) -> str:
    return f"  python -m store import OUT.zarr {shlex.quote(str(item.path))}"


def _describe_arrays(item: Given, contents: Contents) -> Iterator[str]:
    mapped = _propose(contents.keys, {})
    by_row = contents.is_table or _has_rows(mapped, contents.keys)  # None: shapes do not tell
    if by_row is not None:
        mapped = _propose(contents.keys, _first_values(contents, by_row))
    ragged = _ragged_keys(contents) if contents.is_table else set()
    mapped = [  # ragged columns of others have an axis of their own
        replace(one, axis=one.column) if one.key in ragged and one.axes is None else one
        for one in mapped
    ]
    yield f"{item.path}: {contents.kind}{_n_records(contents, mapped, by_row)}"
    yield from _key_lines(contents.keys, ragged)
    path = shlex.quote(str(item.path))
    if is_vllm(item):
        folder = shlex.quote(str(item.path.parent))
        yield "  vLLM's hidden states, one file a request:"
        yield f"  python -m store import OUT.zarr {folder} --requests REQUESTS.jsonl"
    elif mapped:
        ways = _ways(contents, mapped, by_row)
        if len(ways) > 1:
            yield "  nothing tells its axes: choose the command that names them as they are"
        for one in mapped:
            if one.column in MEANINGS:
                yield f"  {one.column}={one.key}: {MEANINGS[one.column]}"
        for pieces in ways:
            shown = shlex.quote(",".join(pieces))
            yield f"  python -m store import OUT.zarr {path} --map {shown}"
    else:
        yield "  no keys: nothing to import"


def _ragged_keys(contents: Contents) -> set[str]:
    """Return the keys of a table whose lists are longer in some of the first records."""
    lengths: dict[str, set[int]] = {name: set() for name in contents.keys}
    for record in islice(contents.records(list(contents.keys), True), LOOKED_AT):
        for name, value in record.items():
            lengths[name].update(key_of(value).shape[:1])
    return {name for name, found in lengths.items() if len(found) > 1}


def _has_rows(mapped: Sequence[Mapped], keys: Mapping[str, Key]) -> bool | None:
    try:
        return has_rows(mapped, keys)
    except DAMAGE:  # the import says which arrays contradict each other
        return None


def _ways(contents: Contents, mapped: Sequence[Mapped], by_row: bool | None) -> list[list[str]]:
    """Return the pieces of each map that the file can be read by."""
    unclear = [item for item in mapped if item.axes and LAYERS_AXIS in item.axes[1]]
    if by_row is not None:
        unclear = [
            item for item in unclear if has_tokens_and_layers(item) or _may_be_of_tokens(item)
        ]
    pieces = {item: [_piece(item)] for item in mapped}
    for item in unclear:
        shape = contents.keys[item.key].shape
        pieces[item] = readings(item, shape, by_row and not contents.is_table) or pieces[item]
    n_ways = max(map(len, pieces.values()))
    return [[ways[min(i, len(ways) - 1)] for ways in pieces.values()] for i in range(n_ways)]


def _may_be_of_tokens(item: Mapped) -> bool:
    """Return whether states are called fixed by a name that says nothing of layers."""
    is_fixed = item.axes is not None and item.axes[0] is None
    return is_fixed and item.key.lower() not in (item.column, LAYERS_AXIS)


def _n_records(contents: Contents, mapped: Sequence[Mapped], by_row: bool | None) -> str:
    if contents.is_table:
        n_records = sum(1 for _ in contents.records([], True))
    elif by_row is None:
        return ", one record or several"
    elif not by_row or not mapped:
        return ", one record"
    else:
        n_records = next(iter(contents.keys[mapped[0].key].shape), 1)
    return f", {count(n_records, 'record')}"


def _key_lines(keys: Mapping[str, Key], ragged: Collection[str] = ()) -> Iterator[str]:
    for name, key in islice(keys.items(), SHOWN_KEYS):
        more = ", of other lengths in other records" if name in ragged else ""
        yield f"  {name[:SHOWN_TEXT]}: {key}{more}"
    if len(keys) > SHOWN_KEYS:
        yield f"  ... and {len(keys) - SHOWN_KEYS:,} more"


def _propose(keys: Mapping[str, Key], values: Record) -> list[Mapped]:
    """Propose a map for the keys of a file: columns of the field by their names and by others'.

    There is at most one for each column, which takes the value of the first record, where that is
    known. A hook of the residual stream is a column with its axes. A key that is none of them keeps
    its name, if it can be one.
    """
    mapped: dict[str, Mapped] = {}
    for key in keys:
        for item in _readings_of(key, keys[key]):
            is_free = item.column not in mapped and _can_be_typed(item)
            if is_free and _fits(item, values.get(key)):
                mapped[item.column] = item
                break
    return list(mapped.values())


def _readings_of(name: str, key: Key) -> list[Mapped]:
    """Return what a key may be, the likeliest first."""
    hook = _HOOK.fullmatch(name)
    if hook and len(key.shape) in (2, 3):
        column = f"resid_{hook[1]}" if hook[1] else name
        return [Mapped(column, name, names=_HOOK_AXES[-len(key.shape) :])]
    column = name if name in KNOWN else _COLUMNS.get(name.lower(), name)
    return [Mapped(one, name) for one in dict.fromkeys((column, name))]


def _piece(item: Mapped) -> str:
    """Return an item as `--map` has it."""
    axis = f":{item.axis}" if item.axis else ""
    names = f"[{','.join(item.names)}]" if item.names else ""
    return f"{item.column}{axis}={item.key}{names}"


def _can_be_typed(item: Mapped) -> bool:
    """Return whether `--map` takes the column, and understands the key as it is."""
    if NAME.fullmatch(item.column) is None:
        return False
    try:
        return parse_map(_piece(item)) == [item]
    except SchemaError:
        return False


def _fits(item: Mapped, value: object) -> bool:
    """Return whether a column takes a value; perhaps one that the first record lacks."""
    try:
        return value is None or bool(column_of(item, value_of(item, value)))
    except DAMAGE:
        return False


def _first_values(contents: Contents, by_row: bool) -> Record:
    """Return the values of the first record; small ones like them where those are arrays."""
    if contents.is_table:
        return first_whole(contents.records(list(contents.keys), True))
    return {name: _like(key, by_row) for name, key in contents.keys.items()}


def _like(key: Key, by_row: bool) -> object:
    """Return a value of the kind of a key in a record; None where only the values tell."""
    if key.dtype == LIST:
        return None
    shape = tuple(min(n, 2) for n in key.shape[by_row:])
    try:
        return np.zeros(shape, "U1" if key.dtype == TEXT else key.dtype)[()]
    except TypeError:
        return {}  # no column takes it
