"""Arguments of `python -m store launch`."""

import argparse
import re

from store.cli.arguments import Commands, positive
from store.launch.engine import ENGINES

__all__ = ["add_launch"]

MOST_PARTS = 100_000
EXAMPLES = """\
COMMAND is an import or an extraction as it would be typed for one store, without --part. Its parts
are made in OUT.parts, each with a log and, once it is whole, a completion record; then they are
merged. Cut finer than there are workers, 4 to 16 parts for each: the last ones then end together.

  processes   this machine; the cores are shared out, and with --gpus-per-part the GPUs
  ray, dask   the cluster at --address, or one on this machine that ends with the command
  slurm       an array of tasks, and a job behind it that merges; the command ends once both are
              in the queue, and repeated it submits what is missing then

A part that fails is tried again, the others go on; one that ends with exit status 2, a mistake, is
not. Stopped or killed, the same command goes on with the parts that are not whole. Workers need the
same version of this package, and a file system that they share. Exit status 0: OUT is whole, or in
SLURM's queue; 1: a part failed, or left out files or records; 2: nothing was started.

examples:
  python -m store launch --engine processes --parts 16 -- import traces.zarr traces/
  python -m store launch --engine processes --parts 64 --gpus-per-part 1 -- \\
      extract traces.zarr --model ./model --questions triviaqa.jsonl
  python -m store launch --engine ray --address 10.0.0.1:6379 --parts 256 --gpus-per-part 1 -- \\
      extract traces.zarr --model ./model --questions triviaqa.jsonl
  python -m store launch --engine dask --address tcp://10.0.0.1:8786 --parts 64 -- \\
      import traces.zarr traces/
  python -m store launch --engine slurm --parts 256 --gpus-per-part 1 \\
      --sbatch=--partition=gpu --sbatch=--time=8:00:00 -- \\
      extract traces.zarr --model ./model --questions triviaqa.jsonl
"""


def add_launch(commands: Commands) -> None:
    parser = commands.add_parser(
        "launch",
        help="import or extract in parts, on many processes or machines",
        description="Run an import or an extraction in parts, and merge them.",
        usage="%(prog)s --engine ENGINE --parts N [options] -- COMMAND OUT ...",
        epilog=EXAMPLES,
    )
    parser.add_argument("--engine", choices=ENGINES, required=True, help="what runs the parts")
    parser.add_argument(
        "--parts",
        metavar="N",
        type=_n_parts,
        required=True,
        help="cut the command into N parts, 2 or more; a launch that goes on keeps the number",
    )
    parser.add_argument(
        "--workers",
        metavar="W",
        type=positive,
        help="parts at once (default: as many as there are cores, or GPUs with --gpus-per-part; of "
        "a cluster all that are free; of slurm what its queue admits)",
    )
    parser.add_argument(
        "--gpus-per-part",
        metavar="G",
        type=_count,
        default=0,
        help="GPUs for each part alone (default: %(default)s, parts get none from Ray or SLURM)",
    )
    parser.add_argument(
        "--address",
        metavar="A",
        help="HOST:PORT of a Ray or Dask cluster that runs (default: one on this machine)",
    )
    parser.add_argument(
        "--retries",
        metavar="R",
        type=_count,
        default=2,
        help="attempts at a part after one that failed (default: %(default)s)",
    )
    parser.add_argument(
        "--sbatch",
        metavar="OPTION",
        action="append",
        default=[],
        help="one option for sbatch, e.g. --sbatch=--time=8:00:00; not a job's name, by which the "
        "launch finds it in the queue (repeatable)",
    )
    parser.add_argument(
        "--print",
        dest="print_only",
        action="store_true",
        help="print the scripts of --engine slurm, and submit nothing",
    )
    parser.add_argument(
        "job", metavar="COMMAND", nargs=argparse.REMAINDER, help="-- and the command to run"
    )


def _n_parts(text: str) -> int:
    n = _count(text)
    if not 2 <= n <= MOST_PARTS:
        raise argparse.ArgumentTypeError(f"expected 2 to {MOST_PARTS} parts, found {text!r:.80}")
    return n


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r:.80}")
    return int(text)
