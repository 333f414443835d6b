"""A column of a few coordinates a trace, projected from states: what a map of the traces shows.

The map is fitted to a random sample, then every row is projected in one pass. Rows are read in
blocks, so memory does not grow with the store. The column appears in one commit or not at all.
"""

import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from store.errors import NotFoundError, SchemaError
from store.extras import needs_extra
from store.format.schema import Column, Schema
from store.read.store import TraceStore
from store.reports import count
from store.traces.layers import LAYERS_AXIS, choose_layers, format_layers, layer_numbers
from store.traces.maps import FLOATS, PROJECTIONS_KEY, own_projections, recorded_projections
from store.traces.states import DERIVED
from store.transform.projection import Pca, Projection, fit_pca, mask_finite, sample_rows
from store.write.source import Progress
from store.write.writer import StoreWriter

__all__ = ["plan_projection", "project_column"]

STATES = "hidden_states"
BLOCK_BYTES = 32 * 1024 * 1024  # of rows in float64
MAX_WIDTH = 16_384  # the square of it, in float64, is 2 GB
# UMAP is of the first principal components: fast and small at any width of the states
UMAP_WIDTH = 50
UMAP_NEIGHBORS = 15

Transform = Callable[[np.ndarray], np.ndarray]  # states (n, width) -> coordinates (n, dimensions)


class Plan(NamedTuple):
    """A projection, checked against a store."""

    name: str
    column: Column  # of the coordinates
    projection: Projection
    select: Mapping[str, Mapping[str, int]]  # what is read of the column of states
    width: int  # numbers that are read of a row
    record: dict[str, Any]  # what the provenance says of it, but what only the computation tells
    n_reads: int  # rows that are read in all, by every pass


def plan_projection(store: TraceStore, projection: Projection, name: str | None = None) -> Plan:
    """Check a projection before anything is computed.

    `name` is that of the column to make; None: column, layer and method, e.g. `hs_last_16_pca`. An
    earlier projection of that name is replaced.

    Raises NotFoundError: there is no such column or layer; SchemaError: the column has not the same
    floating numbers for each row, or another column has the name.
    """
    states = _check_states(store, projection)
    layer, select = _choose_layer(store, projection, states)
    width = math.prod(states.item_shape)
    if select:
        width //= dict(zip(states.axis_names, states.item_shape, strict=True))[LAYERS_AXIS]
    _check_sizes(store, projection, width)
    parts = [projection.column, layer, projection.method]
    name = name or "_".join(str(part) for part in parts if part is not None)
    column = Column("float32", (projection.dimensions,), axis_names=("dimensions",))
    Schema({**store.schema.columns, name: column})  # refuses the name now, not after the work
    if name in store.schema.columns and name not in recorded_projections(store.provenance):
        raise SchemaError(
            f"{store.location}, column {name!r}: it is there, and no projection; choose another "
            "--name"
        )
    record = asdict(projection)
    n_sampled = min(record.pop("sample"), len(store))
    record |= {"layer": layer, "sample_rows": n_sampled, "rows": len(store)}
    n_passes = 2 if projection.method == "umap" else 1  # over the sample
    n_reads = n_passes * n_sampled + len(store)
    return Plan(name, column, projection, select, width, record, n_reads)


def _check_states(store: TraceStore, projection: Projection) -> Column:
    """The column to project; raises unless it has floating numbers, as many for each row."""
    name = projection.column
    where = f"{store.location}, column {name!r}"
    derive = f"python -m store derive {shlex.quote(str(store.path))}"
    present = store.schema.columns
    if name in DERIVED and name not in present and STATES in present:
        raise NotFoundError(f"{where}: it is not there; {derive} {name} adds it")
    states = store.schema.column(name, store.path)
    if states.axis is not None:
        advice = "choose another with --column"
        if name == STATES:
            advice = f"{derive} hs_mean (or hs_last) adds one that --column can name"
        raise SchemaError(
            f"{where}: expected a column of one state a trace, found one along {states.axis!r}; "
            f"{advice}"
        )
    if states.dtype not in FLOATS:
        raise SchemaError(f"{where}: expected floating numbers, found {states.dtype}")
    return states


def _choose_layer(
    store: TraceStore, projection: Projection, states: Column
) -> tuple[int | None, dict[str, dict[str, int]]]:
    """The number of the layer, and what is read of the column for it."""
    where = f"{store.location}, column {projection.column!r}"
    sizes = dict(zip(states.axis_names, states.item_shape, strict=False))
    if LAYERS_AXIS not in sizes:
        if projection.layer is not None:
            raise SchemaError(f"{where}: it has no axis of layers; leave --layer out")
        return None, {}
    numbers = layer_numbers(store.provenance, sizes[LAYERS_AXIS])
    if projection.layer is None and len(numbers) > 1:
        known = format_layers(numbers)
        raise SchemaError(f"{where}: expected --layer, one of its layers {known}; -1 is the last")
    layer = -1 if projection.layer is None else projection.layer
    (position,) = choose_layers(str(layer), numbers, where)
    return numbers[position], {projection.column: {LAYERS_AXIS: position}}


def _check_sizes(store: TraceStore, projection: Projection, width: int) -> None:
    where = f"{store.location}, column {projection.column!r}"
    if not 1 <= projection.dimensions <= width:
        raise SchemaError(
            f"{where}: expected 1 to {width} dimensions, as many as it has numbers for each trace, "
            f"found {projection.dimensions}"
        )
    if width > MAX_WIDTH:
        raise SchemaError(
            f"{where}: expected at most {MAX_WIDTH} numbers for each trace, found {width}; "
            "their covariances would not fit in memory"
        )
    if not len(store):
        raise SchemaError(f"{store.location}: expected traces to project, found an empty store")


def project_column(
    writer: StoreWriter,
    projection: Projection,
    name: str | None = None,
    progress: Progress = lambda done: None,
) -> dict[str, Any]:
    """Add a column float32 `(dimensions,)` of coordinates, in one commit.

    A row whose states are not all finite gets NaN, and is no part of the sample. Stopped, it has
    added nothing. The same store, projection and seed give the same numbers on one machine.
    `progress` is called with the number of rows read so far, of `Plan.n_reads`.

    Returns what the provenance says of the column, under `PROJECTIONS_KEY`: what was asked for,
    `rows_fitted`, `rows_not_finite` (NaN), and `explained_variance` of each principal component as
    a fraction. Raises as `plan_projection` does, and if no row of the sample is finite; the store
    is as it was.
    """
    store = TraceStore.open(writer.root, check=True)  # coordinates would hide what is damaged
    plan = plan_projection(store, projection, name)
    reader = _Reader(store, plan, progress)
    pca, transform = _fit(reader)
    made = {
        **plan.record,
        "rows_fitted": pca.n_rows,
        "rows_not_finite": 0,  # counted on the way; the provenance is written after the rows
        "explained_variance": [round(float(part), 4) for part in pca.explained],
    }
    projections = {**own_projections(store.provenance), plan.name: made}
    provenance = {**writer.provenance, PROJECTIONS_KEY: projections}
    rows = _project_rows(reader, transform, made)
    writer.set_columns({plan.name: plan.column}, rows, provenance)
    return made


class _Reader:
    """Reads the states of a plan in blocks of float64 `(n, width)`, and reports how many."""

    def __init__(self, store: TraceStore, plan: Plan, progress: Progress) -> None:
        self.store = store
        self.plan = plan
        self.n_read = 0
        self._progress = progress
        self._block_rows = max(1, BLOCK_BYTES // (8 * plan.width))

    def blocks(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """The states of rows."""
        name = self.plan.projection.column
        for start in range(0, len(rows), self._block_rows):
            block = rows[start : start + self._block_rows]
            states = self.store.read_arrays(block, [name], self.plan.select).numbers(name)
            yield states.astype(np.float64).reshape(len(block), -1)
            self.n_read += len(block)
            self._progress(self.n_read)

    def sample(self) -> Iterator[np.ndarray]:
        """The states of the sample, without rows that are not finite."""
        projection = self.plan.projection
        for states in self.blocks(sample_rows(len(self.store), projection.sample, projection.seed)):
            yield states[mask_finite(states)]


def _fit(reader: _Reader) -> tuple[Pca, Transform]:
    """The principal components of the sample, and the map from states to coordinates."""
    plan = reader.plan
    projection = plan.projection
    is_umap = projection.method == "umap"
    if is_umap:
        _import_umap()  # before anything is computed
    n_components = min(UMAP_WIDTH, plan.width) if is_umap else projection.dimensions
    pca = fit_pca(reader.sample(), plan.width, n_components)
    least = UMAP_NEIGHBORS + 1 if is_umap else 1
    if pca.n_rows < least:
        raise SchemaError(
            f"{reader.store.location}, column {projection.column!r}: expected at least "
            f"{count(least, 'trace')} with finite numbers in the sample of "
            f"{plan.record['sample_rows']}, found {pca.n_rows}"
        )
    if is_umap:
        return pca, _fit_umap(reader, pca)
    return pca, pca.project


def _import_umap() -> Any:
    with needs_extra("umap", "method umap: "):
        import umap
    return umap


def _fit_umap(reader: _Reader, pca: Pca) -> Transform:
    """UMAP of the sample's principal components (McInnes et al. 2018, arXiv:1802.03426)."""
    projection = reader.plan.projection
    reduced = np.vstack([pca.project(states) for states in reader.sample()])
    model = _import_umap().UMAP(
        n_components=projection.dimensions,
        n_neighbors=UMAP_NEIGHBORS,
        random_state=projection.seed,
        transform_seed=projection.seed,
        n_jobs=1,  # a seed allows no more
    )
    model.fit(reduced.astype(np.float32))
    return lambda states: model.transform(pca.project(states).astype(np.float32))


def _project_rows(
    reader: _Reader, transform: Transform, made: dict[str, Any]
) -> Iterator[dict[str, np.ndarray]]:
    """The coordinates of every row; those that are not finite are counted in `made`."""
    name = reader.plan.name
    dimensions = reader.plan.projection.dimensions
    for states in reader.blocks(np.arange(len(reader.store))):
        points = np.full((len(states), dimensions), np.nan, np.float32)
        is_finite = mask_finite(states)
        if is_finite.any():
            points[is_finite] = transform(states[is_finite])
        made["rows_not_finite"] += int((~is_finite).sum())
        yield from ({name: point} for point in points)
