"""Arguments of `python -m store project`."""

import argparse
import re

from store.cli.arguments import Commands, add_ignore_space, add_store, positive
from store.transform.projection import METHODS, Projection

__all__ = ["add_project"]

EXAMPLES = """\
The column holds a few float32 coordinates for each trace, two of them unless --dimensions says
otherwise: a map of the traces, and of what a detector makes of them.
  pca    the first principal components, computed in float64
  umap   UMAP of the first 50 principal components; needs the extra umap, and far more time

The map is fitted to a random sample, then all traces are projected in one pass; memory does not
grow with the store. A trace whose states are not finite gets NaN, and is counted. The provenance
says what was projected, and how much of the variance each component has.

The column is added in one commit, and nothing else is rewritten. A command that was stopped has
added nothing: run it again. The same seed gives the same map.

States of each token (hidden_states) are not projected; python -m store derive makes columns of one
state a trace of them, hs_last and hs_mean.

examples:
  python -m store project traces.zarr --layer 16
  python -m store project traces.zarr --column hs_mean --layer -1 --dimensions 3
  python -m store project traces.zarr --column hs_last --layer 16 --method umap --name map
"""


def add_project(commands: Commands) -> None:
    parser = commands.add_parser(
        "project",
        help="add a column of two coordinates a trace, for a map of states",
        description="Add a column of coordinates that are projected from states.",
        epilog=EXAMPLES,
    )
    add_store(parser)
    parser.add_argument(
        "--column",
        metavar="NAME",
        default=Projection.column,
        help="column of one state a trace (default: %(default)s)",
    )
    parser.add_argument(
        "--layer",
        metavar="N",
        type=_layer,
        help="its layer, as the model numbers them; -1 is the last (default: the only one)",
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        default=Projection.method,
        help="how they are projected (default: %(default)s)",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="column to add (default: from the three above, e.g. hs_last_16_pca)",
    )
    parser.add_argument(
        "--dimensions",
        metavar="K",
        type=positive,
        default=Projection.dimensions,
        help="coordinates a trace (default: %(default)s)",
    )
    parser.add_argument(
        "--sample",
        metavar="N",
        type=positive,
        default=Projection.sample,
        help="traces that the map is fitted to (default: %(default)s, or all if there are fewer)",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=_seed,
        default=Projection.seed,
        help="of the sample, and of UMAP (default: %(default)s)",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="replace a projection of that name that was made otherwise (default: stop)",
    )
    add_ignore_space(parser)


def _layer(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,6}", text):
        raise argparse.ArgumentTypeError(
            f"expected the number of one layer, e.g. 16 or -1, found {text!r:.80}"
        )
    return int(text)


def _seed(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 0 to 999999999, found {text!r:.80}"
        )
    return int(text)
