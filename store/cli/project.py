"""`python -m store project`: coordinates of every trace, for a map of states."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from store.cli import shared_options
from store.cli.arguments import positive, whole
from store.cli.command import Command, option
from store.cli.progress import Progress
from store.read.store import TraceStore
from store.reports import count, say
from store.transform.project import plan_projection, project_column
from store.transform.projection import METHODS, Projection
from store.write.space import check_space
from store.write.writer import StoreWriter

__all__ = ["Project"]

EXAMPLES = """\
The column holds a few float32 coordinates for each trace, two of them unless --dimensions says
otherwise: a map of the traces, and of what a detector makes of them.
  pca    the first principal components, computed in float64
  umap   UMAP of the first 50 principal components; needs the extra umap, and far more time

The map is fitted to a random sample, then all traces are projected in one pass; memory does not
grow with the store. A trace whose states are not finite gets NaN, and is counted. The provenance
says what was projected, and how much of the variance each component has.

The column is added in one commit, in place of an earlier map of its name, and nothing else is
rewritten. A command that was stopped has added nothing: run it again. The same seed gives the same
map.

States of each token (hidden_states) are not projected; python -m store derive makes columns of one
state a trace of them, hs_last and hs_mean.

examples:
  python -m store project traces.zarr --layer 16
  python -m store project traces.zarr --column hs_mean --layer -1 --dimensions 3
  python -m store project traces.zarr --column hs_last --layer 16 --method umap --name map
"""


class Project(Command):
    """Add a column of coordinates that are projected from states."""

    epilog = EXAMPLES
    store: Path = shared_options.STORE
    column: str = option("column of one state a trace", "NAME", default=Projection.column)
    layer: int | None = option(
        "its layer, as the model numbers them; -1 is the last (default: the only one)",
        "N",
        whole(-9999, 9999, "the number of one layer"),
    )
    method: str = option("how they are projected", default=Projection.method, choices=METHODS)
    name: str | None = option(
        "column to add (default: from the three above, e.g. hs_last_16_pca)", "NAME"
    )
    dimensions: int = option("coordinates a trace", "K", positive, Projection.dimensions)
    sample: int = option(
        "traces that the map is fitted to (default: %(default)s, or all if there are fewer)",
        "N",
        positive,
        Projection.sample,
    )
    seed: int = option(
        "of the sample, and of UMAP",
        "N",
        whole(0, 999_999_999),
        Projection.seed,
    )
    ignore_space: bool = shared_options.IGNORE_SPACE

    def run(self) -> int:
        projection = Projection(
            self.column, self.layer, self.method, self.dimensions, self.sample, self.seed
        )
        store = TraceStore.open(self.store, check=True)
        plan = plan_projection(store, projection, self.name)
        check_space(self.store, len(store) * plan.column.item_bytes, ignore=self.ignore_space)
        progress = Progress(
            lambda done: done / plan.n_reads, lambda done: f"{done:,} rows read", "rows"
        )
        with progress, StoreWriter.open(self.store) as writer:
            made = project_column(writer, projection, plan.name, progress)
        say(f"{self.store}: {plan.name} of {count(made['rows'], 'trace')} added; {_report(made)}")
        return 0


def _report(made: Mapping[str, Any]) -> str:
    """How much of the states the coordinates show, and which traces have none."""
    states = made["column"]
    if made["layer"] is not None:
        states = f"{states}, layer {made['layer']}"
    shares = made["explained_variance"]
    fitted = count(made["rows_fitted"], "trace")
    if made["method"] == "umap":
        text = (
            f"UMAP of {count(len(shares), 'principal component')} of {states}, which have "
            f"{sum(shares):.1%} of the variance in a sample of {fitted}"
        )
    else:
        listed = ", ".join(f"{share:.1%}" for share in shares)
        text = f"the principal components of {states} have {listed} of the variance in {fitted}"
    n_missing = made["rows_not_finite"]
    if n_missing:
        text += f"; {count(n_missing, 'trace')} whose states are not finite: NaN"
    return text
