"""What a committed state consists of: every array of a store, and every file. Pure.

The writer removes other files, `verify` reports them; both take the list from here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from store.format.ids import Run
from store.format.layout import ArrayLayout, checksums_layout, index_layouts, offsets_layout
from store.format.manifest import GROUP_FILE, Manifest
from store.format.schema import NAME, Schema
from store.format.segments import Segments
from store.format.zarr_json import RUN_INFO, ArrayInfo, array_infos, array_json, group_json

__all__ = [
    "GROUPS",
    "WORKING_DIR",
    "StoredArray",
    "arrays_of",
    "checked_arrays",
    "column_array",
    "could_be_ours",
    "data_files",
    "files_of",
    "infos_of",
    "metadata_files",
    "offsets_array",
    "run_arrays",
    "run_name",
    "with_schema",
]

WORKING_DIR = "_tmp"
GROUPS = ("_offsets", "_checksums", "_index")
_COLUMN = rf"{NAME.pattern}(@\d+)?"
_RUN = r"_index/\d+-\d+"
_ARRAYS = (
    _COLUMN,
    f"_offsets/{NAME.pattern}",
    rf"_checksums/(offsets\.)?{_COLUMN}",
    f"{_RUN}/(hash|row)",
)
_ARRAY_FILE = rf"({'|'.join(_ARRAYS)})/(zarr\.json|c/\d+(/0)*)"
_GROUP_FILE = rf"(_offsets|_checksums|_index|{_RUN})/zarr\.json"
_OURS = re.compile(rf"{_ARRAY_FILE}|{_GROUP_FILE}|{WORKING_DIR}/[^/]+|zarr\.json\.new")


class StoredArray(NamedTuple):
    """One array of a store: how its bytes lie, and its committed items.

    Its column is the one whose values it holds, if any; its axis the ragged one of that column, or
    the one whose offsets these are. Without segments, item i is at place i.
    """

    layout: ArrayLayout
    n_items: int
    column: str | None = None
    axis: str | None = None
    segments: Segments | None = None

    @property
    def n_places(self) -> int:
        """Items of the Zarr array: the committed ones, and the padding between segments."""
        return self.n_items if self.segments is None else self.segments.n_places

    @property
    def n_shards(self) -> int:
        return self.layout.n_shards(self.n_places)

    @property
    def checksums(self) -> "StoredArray":
        """The array of the checksums of its chunks, but for a padded last one."""
        chunk_items = self.layout.chunk_items
        n_chunks = self.n_places // chunk_items
        if self.segments is not None:
            n_chunks = self.segments.n_chunks - (self.n_places % chunk_items > 0)
        return StoredArray(checksums_layout(self.layout), n_chunks)

    def sum_of_chunk(self, chunk: int) -> int:
        """Where the checksums of a chunk are, counted through all shards, in `checksums`."""
        return chunk if self.segments is None else self.segments.sum_of_chunk(chunk)

    def items_of_chunk(self, chunk: int) -> tuple[int, int]:
        """The items of a chunk, counted through all shards: first, and after the last."""
        chunk_items = self.layout.chunk_items
        return self.items_of_places(chunk * chunk_items, (chunk + 1) * chunk_items)

    def items_of_shard(self, shard: int) -> tuple[int, int]:
        """The items of a shard: first, and after the last."""
        shard_items = self.layout.shard_items
        return self.items_of_places(shard * shard_items, (shard + 1) * shard_items)

    def items_of_places(self, start: int, stop: int) -> tuple[int, int]:
        """The items at the places `start:stop` of one shard: first, and after the last."""
        if self.segments is None:
            return start, min(stop, self.n_items)
        return self.segments.items_of_places(start, stop)


def column_array(manifest: Manifest, name: str) -> StoredArray:
    """The array of a column."""
    schema = manifest.schema
    layout = schema.layout(name)
    n_items = manifest.n_items_of(name)
    firsts = manifest.segments.get(layout.path)
    segments = Segments(layout, firsts, n_items) if firsts else None
    return StoredArray(layout, n_items, name, schema.axis_of(name), segments)


def offsets_array(axis: str, n_rows: int) -> StoredArray:
    """The array of the offsets of a ragged axis."""
    return StoredArray(offsets_layout(axis), n_rows + 1, axis=axis)


def run_name(run: Run) -> str:
    """The name of a run of the id table: its first row, and the one after its last."""
    return f"{run[0]}-{run[1]}"


def run_arrays(run: Run) -> tuple[StoredArray, StoredArray]:
    """The two arrays of a run of the id table: hashes, and their rows."""
    first, stop = run
    n_rows = stop - first
    hashes, rows = index_layouts(run_name(run), n_rows)
    return StoredArray(hashes, n_rows), StoredArray(rows, n_rows)


def checked_arrays(manifest: Manifest) -> Iterator[StoredArray]:
    """The arrays that have checksums beside them: columns and offsets."""
    for axis in manifest.schema.axes:
        yield offsets_array(axis, manifest.n_rows)
    for name in manifest.schema.stored:
        yield column_array(manifest, name)


def with_schema(
    manifest: Manifest,
    schema: Schema,
    n_items: Mapping[str, int],
    tails: Mapping[str, list[int]],
    provenance: dict,
) -> Manifest:
    """The manifest of the next generation, with other columns.

    What the manifest says of axes and arrays that `schema` still has is kept; `n_items` and `tails`
    are of those that are new.
    """
    counts = {**manifest.n_items, **n_items}
    changed = manifest.next(
        schema=schema,
        n_items={axis: counts.get(axis, 0) for axis in schema.axes},
        provenance=provenance,
    )
    paths = {array.layout.path for array in checked_arrays(changed)}
    kept = {path: sums for path, sums in manifest.tails.items() if path in paths}
    segments = {path: firsts for path, firsts in manifest.segments.items() if path in paths}
    return replace(changed, tails={**kept, **tails}, segments=segments)


def arrays_of(manifest: Manifest) -> Iterator[StoredArray]:
    """Every array of a committed state."""
    for array in checked_arrays(manifest):
        yield from (array, array.checksums)
    for run in manifest.runs:
        yield from run_arrays(run)


def infos_of(manifest: Manifest) -> dict[str, ArrayInfo]:
    """Path of every array of a committed state -> its dimension names and attributes."""
    infos = array_infos(manifest.schema, manifest.segments)
    infos |= {array.checksums.layout.path: ArrayInfo() for array in checked_arrays(manifest)}
    for run in manifest.runs:
        infos |= {array.layout.path: RUN_INFO for array in run_arrays(run)}
    return infos


def metadata_files(manifest: Manifest) -> dict[str, bytes]:
    """The `zarr.json` of every group and array inside the store -> its text.

    Only other clients read them.
    """
    texts = dict.fromkeys(_group_files(manifest), group_json())
    infos = infos_of(manifest)
    for array in arrays_of(manifest):
        path = array.layout.path
        texts[f"{path}/{GROUP_FILE}"] = array_json(array.layout, array.n_places, infos[path])
    return texts


def data_files(manifest: Manifest) -> set[str]:
    """Every file of a committed state that is no `zarr.json`, relative to the store."""
    arrays = arrays_of(manifest)
    return {array.layout.shard_path(i) for array in arrays for i in range(array.n_shards)}


def files_of(manifest: Manifest) -> set[str]:
    """Every file of a committed state, relative to the store."""
    metadata = {f"{array.layout.path}/{GROUP_FILE}" for array in arrays_of(manifest)}
    return {GROUP_FILE, *_group_files(manifest), *metadata, *data_files(manifest)}


def _group_files(manifest: Manifest) -> list[str]:
    """The metadata of the groups below the store itself."""
    groups = [*GROUPS, *(f"_index/{run_name(run)}" for run in manifest.runs)]
    return [f"{group}/{GROUP_FILE}" for group in groups]


def could_be_ours(path: str) -> bool:
    """Whether a writer could have made a file of this name, relative to the store."""
    return _OURS.fullmatch(path) is not None
