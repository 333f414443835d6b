"""Arguments of `python -m store import`, `merge` and `subset`."""

import argparse
from typing import Any

from store.cli.arguments import (
    Commands,
    Parser,
    add_columns,
    add_ignore_space,
    add_out,
    add_part,
    add_score_columns,
    add_score_threshold,
    expand,
    finite,
    layers,
    path,
)
from store.traces.question_split import SPLITS

__all__ = ["add_import", "add_merge", "add_subset"]

IMPORT_EXAMPLES = """\
The kind of each file is recognised from its content: raw traces (.pkl, .pkl.gz), or preprocessed
ones (.pt, for the LSTM and for graphs; files of both kinds are joined); safetensors files of
vLLM's hidden states. Other arrays (.npz, .npy, .safetensors, Arrow, Parquet, HDF5, JSON lines,
pickles and .pt) become the columns that --map names: a column of the field has its own shape, any
other that of the array; ids are trace_id and question_id. --inspect shows what is in a file, and
proposes a command.

Raw traces of six generations, A to F (docs/guide.md), are read: states by step or per layer, tokens
of the whole sequence or of the answer alone. Ids of tokens that a file does not hold are -1. Files
without question ids are numbered: the position over all files, sorted by name. Each generation
makes a store of its own; of a folder with several, the commands for the others are printed.

Stopped, the same command continues where it stopped. Exit status 0: all read; 1: some files or
records were left out; 75: a part (--part) failed that may succeed if it is tried again, e.g. on a
full disk.

examples:
  python -m store import traces.zarr traces/ --scores ground_truth_scores.csv
  python -m store import graphs.zarr preprocessed_data/gnn preprocessed_data/lstm_solo
  python -m store import part1.zarr 'traces/*.pkl.gz' --part 1/4
  python -m store import vllm.zarr states/ --requests requests.jsonl --layers 8,16,24
  python -m store import arrays.zarr features.npz --map hs_last=layers,label=y
  python -m store import --inspect features.npz
"""

MERGE_EXAMPLES = """\
The stores must have the same columns, and no trace id twice. Their large files are not copied: OUT
gets second names for them (hard links), and all of the stores stay whole, whichever is removed or
appended to. On another file system they are copied. Stopped, the same command continues where it
stopped; finished, it does nothing.

examples:
  python -m store merge traces.zarr part1.zarr part2.zarr part3.zarr
  python -m store merge traces.zarr --parts parts/
  python -m store merge --copy compact.zarr traces.zarr
"""

SUBSET_EXAMPLES = """\
The splits are those of python -m train with the same seed; unlabelled traces come along. Stopped,
the same command continues where it stopped.

examples:
  python -m store subset few.zarr traces.zarr --ids ids.txt
  python -m store subset test.zarr traces.zarr --split test --seed 0
  python -m store subset asked.zarr traces.zarr --questions questions.txt
"""


def add_import(commands: Commands) -> None:
    parser = commands.add_parser(
        "import",
        help="make a store of pickled or preprocessed traces",
        description="Make a store of pickled or preprocessed traces.",
        epilog=IMPORT_EXAMPLES,
    )
    add_out(parser)
    parser.add_argument(
        "sources", metavar="SOURCE", nargs="*", type=expand, help="files, folders or patterns"
    )
    _add_arrays(parser)
    parser.add_argument(
        "--scores",
        metavar="FILE",
        type=path,
        help="scores or labels by question_id or trace_id, which alone decide the labels; see "
        "python -m store label --help (default: the labels in the traces)",
    )
    add_score_columns(parser)
    add_score_threshold(parser)
    add_columns(parser)
    parser.add_argument(
        "--keep-attention",
        action="store_true",
        help="keep the full attention maps (large) beside their reductions",
    )
    parser.add_argument(
        "--attn-threshold",
        metavar="A",
        type=finite,
        help="attention from which on the graphs were given an edge (default: read from the "
        "smallest edges in the files)",
    )
    add_part(parser, "file")
    parser.add_argument(
        "--max-file-gb",
        metavar="GB",
        type=finite,
        default=16,
        help="refuse files that unpack to more gigabytes (default: %(default)s)",
    )
    add_ignore_space(parser)


def _add_arrays(parser: Parser) -> None:
    parser.add_argument(
        "--inspect",
        action="store_true",
        help="show what files hold and the command that imports them; write nothing, no OUT",
    )
    parser.add_argument(
        "--map",
        metavar="MAP",
        help="COLUMN=KEY,COLUMN=KEY: columns of the store and the arrays they are from; "
        "COLUMN:AXIS=KEY for a ragged one that the field does not know; COLUMN=KEY[AXIS,AXIS] "
        "names the axes of an array, e.g. [records,layers,hidden]",
    )
    parser.add_argument(
        "--requests",
        metavar="FILE",
        type=path,
        help="responses of vLLM's server, one JSON object a line, or requests: id (the name of "
        "its file), question, answer, label or score, prompt_len; all but id may be left out",
    )
    parser.add_argument(
        "--layers",
        metavar="LAYERS",
        type=layers,
        help="numbers of the layers in arrays or files of vLLM, e.g. 8,16,24 (default: counted "
        "from 1)",
    )


class _Instead(argparse.Action):
    """An option that stands for positional arguments, which are then not required.

    As arguments that may be absent (`*`) they would not be found behind an option: `OUT --mixed A`.
    """

    def __init__(self, *names: Any, of: argparse.Action, **options: Any) -> None:
        super().__init__(*names, **options)
        self.of = of

    def __call__(
        self, _: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, *__: Any
    ) -> None:
        setattr(namespace, self.dest, value)
        self.of.required = False


def add_merge(commands: Commands) -> None:
    parser = commands.add_parser(
        "merge",
        help="make one store of several",
        description="Make one store of several.",
        epilog=MERGE_EXAMPLES,
    )
    add_out(parser)
    stores = parser.add_argument(
        "sources", metavar="STORE", nargs="+", type=path, default=[], help="stores to merge"
    )
    parser.add_argument(
        "--parts",
        metavar="DIR",
        type=path,
        action=_Instead,
        of=stores,
        help="merge the whole parts of one command (--part K/N) in this folder, and no STORE; exit "
        "status 1 and nothing made if some are missing",
    )
    parser.add_argument(
        "--partial", action="store_true", help="go on without the missing parts of --parts"
    )
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="allow traces of different models, layers or prompts (default: refuse)",
    )
    parser.add_argument(
        "--copy",
        action="store_true",
        help="copy all traces, into files of full size that no other store shares (default: share "
        "the files)",
    )
    add_ignore_space(parser)


def add_subset(commands: Commands) -> None:
    parser = commands.add_parser(
        "subset",
        help="make a store of some traces of another",
        description="Make a store of some traces of another.",
        epilog=SUBSET_EXAMPLES,
    )
    add_out(parser)
    parser.add_argument("source", metavar="STORE", type=path, help="the store to choose from")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--ids", metavar="FILE", type=path, help="trace ids, one a line, in the order wanted"
    )
    which.add_argument(
        "--questions", metavar="FILE", type=path, help="question ids, one a line: all their traces"
    )
    which.add_argument(
        "--split", choices=SPLITS, help=f"the questions of a split: {', '.join(SPLITS)}"
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="seed of --split (default: %(default)s)"
    )
    add_ignore_space(parser)
