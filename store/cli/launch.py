"""`python -m store launch`: an import or an extraction in parts, and the merge of them."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from store.cli.arguments import as_called, path, positive, whole
from store.cli.command import Command, argument, flag, option
from store.cli.extract import Extract, read_asked
from store.cli.import_ import find_sources
from store.cli.main import parse
from store.cli.progress import Progress
from store.errors import SchemaError
from store.importers.files import check_apart, digest_given
from store.launch.completed_parts import JobKey, Part, numbers_text
from store.launch.driver import Parts, find_whole, held
from store.launch.engine import ENGINES, Workers, open_engine
from store.launch.job import Job, arguments_digest, parts_folder, questions_digest
from store.launch.slurm import submit, write_scripts
from store.launch.task import start_command, stop_processes
from store.read.directory import check_outside
from store.reports import count, say, terminal_text

__all__ = ["Launch", "parse_job"]

IN_PARTS = ("import", "extract")


EXAMPLES = """\
COMMAND is an import or an extraction as it would be typed for one store, without --part, with OUT
right behind its name. Its parts are made in OUT.parts, each with a log and, once it is whole, a
completion record; then they are merged. Cut finer than there are workers, 4 to 16 parts for each:
the last ones then end together.

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


class Launch(Command):
    """Run an import or an extraction in parts, and merge them."""

    usage = "%(prog)s --engine ENGINE --parts N [options] -- COMMAND OUT ..."
    epilog = EXAMPLES
    engine: str = option("what runs the parts", choices=ENGINES, required=True)
    parts: int = option(
        "cut the command into N parts, 2 or more; a launch that goes on keeps the number",
        "N",
        whole(2, 100_000),
        required=True,
    )
    workers: int | None = option(
        "parts at once (default: as many as there are cores, or GPUs with --gpus-per-part; of a "
        "cluster all that are free; of slurm what its queue admits)",
        "W",
        positive,
    )
    gpus_per_part: int = option(
        "GPUs for each part alone (default: %(default)s, parts get none from Ray or SLURM)",
        "G",
        whole(0, 999_999),
        0,
    )
    address: str | None = option(
        "HOST:PORT of a Ray or Dask cluster that runs (default: one on this machine)", "A"
    )
    retries: int = option("attempts at a part after one that failed", "R", whole(0, 999_999), 2)
    sbatch: list[str] = option(
        "one option for sbatch, e.g. --sbatch=--time=8:00:00; not a job's name, by which the "
        "launch finds it in the queue (repeatable)",
        "OPTION",
        default=[],
        action="append",
    )
    print_only: bool = flag(
        "print the scripts of --engine slurm, and submit nothing", name="--print"
    )
    job: list[str] = argument("-- and the command to run", "COMMAND", nargs=argparse.REMAINDER)

    def run(self) -> int:
        """Run the parts, and merge them; return 1 if one failed or left something out."""
        if self.engine != "slurm":
            self.refuse("is for --engine slurm; leave it out", "print_only", "sbatch")
        if self.engine not in ("ray", "dask"):
            self.refuse("is for --engine ray and dask; leave it out", "address")
        job = parse_job(self.job, self.parts)
        check_outside(job.out)
        whole = find_whole(job)
        left = whole.missing
        if job.out.exists() and left:
            raise SchemaError(
                f"{job.out}: expected a new path, found something there, and parts "
                f"{numbers_text(left)} of {job.n_parts} are not made; remove it or choose another"
            )
        if self.engine == "slurm":
            return _launch_slurm(self, job, left)
        with held(parts_folder(job.out)):
            if left:
                parts, failed = _run(self, job, left)
            else:
                parts, failed = whole.parts, []
            if len(parts) < job.n_parts:
                _report_failures(job, parts, failed)
                return 1
            status = _merge(job)
        return status or int(any(part.record.n_left_out for part in parts))


def parse_job(typed: Sequence[str], n_parts: int) -> Job:
    """Read the command behind `--`, as `python -m store` reads it.

    Raises SchemaError: there is no `--`, or what is behind it does not run in parts; SystemExit:
    its arguments are wrong, which is printed.
    """
    if not typed or typed[0] != "--":
        raise SchemaError(
            "expected -- before the command, as in: launch --engine processes --parts 8 -- import "
            f"OUT ..., found {' '.join(typed[:3])!r:.80}"
        )
    arguments = typed[1:]
    if not arguments or arguments[0] not in IN_PARTS:
        raise SchemaError(
            f"expected {' or '.join(IN_PARTS)} behind --, found {' '.join(arguments[:1])!r:.80}"
        )
    args = parse(arguments)
    if args.part != (1, 1):
        raise SchemaError("--part: expected none behind --, the launch numbers the parts itself")
    if getattr(args, "inspect", False):
        raise SchemaError("--inspect makes no store; run it without launch")
    if path(arguments[1]) != args.store:
        raise SchemaError(f"expected OUT right behind {args.command}, found {arguments[1]!r:.80}")
    arguments_sha256 = arguments_digest(args)
    if args.command == "import":
        check_apart(args.store, args.sources)
    inputs_sha256, n_inputs, noun = _present_inputs(args)
    if n_parts > n_inputs:
        raise SchemaError(
            f"--parts: expected at most {n_inputs:,}, as many as there are {noun}, found "
            f"{n_parts:,}"
        )
    return Job(
        arguments=tuple(arguments[2:]),
        out=args.store.absolute(),
        key=JobKey(args.command, arguments_sha256, inputs_sha256, n_parts),
        folder=Path.cwd(),
    )


def _present_inputs(args: Command) -> tuple[str, int, str]:
    """What a command would read now: its digest, as in the record of a part, how many and what.

    Raises StoreError if there are none, or no such file.
    """
    if isinstance(args, Extract):
        return questions_digest(args.questions), len(read_asked(args).questions), "questions"
    given, _ = find_sources(args)
    return digest_given(given), len(given), "files"


def _workers(args: Launch, n_left: int) -> Workers:
    return Workers(args.workers, n_left, args.retries, args.gpus_per_part, args.address)


def _run(args: Launch, job: Job, left: Sequence[int]) -> tuple[list[Part], list[int]]:
    """Run the parts that are left; return the whole ones, and the numbers of those that failed."""
    with open_engine(args.engine, _workers(args, len(left))) as engine:
        at_once = count(engine.n_workers, "worker")
        _say(f"{count(len(left), 'part')} of {job.n_parts} to make, {at_once}")
        launch = Parts(job, engine, _say)
        share, text = (lambda _, of: of.share), (lambda _, of: of.text())
        with Progress(share, text) as progress:
            try:
                parts = launch.run(progress)
            except KeyboardInterrupt as error:
                error.add_note("whole parts are kept; the same command goes on")
                raise
    return parts, launch.failed


def _say(line: str) -> None:
    """Print a line over the progress, which is shown again below it."""
    clear = "\r\033[K" if sys.stderr.isatty() else ""
    print(f"{clear}{terminal_text(line)}", file=sys.stderr, flush=True)


def _report_failures(job: Job, parts: Sequence[Part], failed: Sequence[int]) -> None:
    """Print which parts failed, and how to go on."""
    line = (
        f"{count(len(failed), 'part')} failed ({numbers_text(sorted(failed))}), {len(parts)} of "
        f"{job.n_parts} are whole; the same command tries the others again"
    )
    if parts:
        partial = shlex.join([*_merge_arguments(job), "--partial"])
        line += f", and python -m store {partial} goes on without them"
    say(as_called(line))


def _merge_arguments(job: Job) -> list[str]:
    return ["merge", str(job.out), "--parts", str(parts_folder(job.out))]


def _merge(job: Job) -> int:
    """Merge all parts, in a process that says itself what is wrong; return 1 if something is."""
    process = start_command(_merge_arguments(job))
    try:
        return int(process.wait() != 0)
    finally:
        stop_processes([process])


def _launch_slurm(args: Launch, job: Job, left: Sequence[int]) -> int:
    """Submit what is not in the queue, or print the scripts."""
    workers = _workers(args, len(left))
    scripts = write_scripts(job, left, _merge_arguments(job), workers, args.sbatch)
    if args.print_only:
        say(*scripts, sep="\n", end="")
        return 0
    with held(parts_folder(job.out)):
        if not left:
            return _merge(job)
        say(submit(job, scripts, len(left)))
    return 0
