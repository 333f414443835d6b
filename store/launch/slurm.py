"""SLURM: a script whose array of tasks makes the parts, and one that merges them behind it.

The scripts are in the folder of the parts. A second launch finds the jobs of the first one in the
queue by their names, which have a checksum of OUT's path, and submits only what is missing.
"""

import hashlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from store.errors import NotFoundError, SchemaError, StoreError
from store.launch.engine import MISTAKE
from store.launch.found import numbers_text
from store.launch.job import Job, parts_folder
from store.launch.records import SUFFIX
from store.launch.task import package_root
from store.write.files import DISK

__all__ = ["Queued", "Scripts", "find_queued", "submit", "submit_merge", "write_scripts"]

NUMBER = re.compile(r"[0-9]{1,20}")
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")
LONGEST_NAME = 40
DIGITS = 16  # of a checksum
# an option with its value behind = or spaces, which the shell that typed it has split off already
OPTION = re.compile(r"(--?[A-Za-z][\w-]*(?:=| +))(.+)")
JOB_NAME = re.compile(r"-J|--job-name")
MOST_SECONDS = 60.0  # for an answer of sbatch or squeue
HEAD = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --output={log}
#SBATCH --open-mode=append
{options}
cd {folder} || exit 2
export PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}}
"""
ATTEMPTS = """\
part={part}
for attempt in {attempts}; do
    {command}
    status=$?
    # whole, perhaps without some records
    if [ -e "$part{suffix}" ]; then exit 0; fi
    # a mistake, which no attempt mends, or asked to end
    case $status in {mistake} | 130 | 143) exit $status ;; esac
done
exit $status
"""


@dataclass(frozen=True)
class Scripts:
    """What is submitted: a script for the parts, and one for the merge; their texts."""

    parts: str
    merge: str


@dataclass(frozen=True)
class Queued:
    """Numbers of the jobs in the queue: those that make parts, and those that merge them."""

    parts: tuple[str, ...]
    merge: tuple[str, ...]


def write_scripts(
    job: Job,
    left: Sequence[int],
    merge: Sequence[str],
    *,
    workers: int | None,
    gpus_per_part: int,
    retries: int,
    options: Sequence[str],
) -> Scripts:
    """Return the scripts that make the parts that are left, and merge all; pure.

    `left` are the numbers of the parts, ascending; `merge` the arguments of `python -m store` that
    merge them. `workers` parts run at once; with None as many as the queue admits; `options` are
    further ones of sbatch, for both scripts. Raises SchemaError if a path or an option fits on no
    line of a script, or names the jobs.
    """
    parts_name, merge_name = _job_names(job.out)
    further = [_quoted_option(option) for option in options]
    at_once = f"%{workers}" if workers else ""
    of_parts = [f"--array={numbers_text(left)}{at_once}"]
    of_parts += [f"--gres=gpu:{gpus_per_part}"] if gpus_per_part else []
    python = shlex.join([sys.executable, "-P", "-m", "store"])
    number = "$SLURM_ARRAY_TASK_ID"
    command, *rest = map(shlex.quote, job.arguments)
    rest[job.out_index - 1] = '"$part"'
    name = f"$(printf {job.part_name('%04d')}.zarr {number})"
    attempts = ATTEMPTS.format(
        part=f'{shlex.quote(str(parts_folder(job.out)))}/"{name}"',
        attempts=" ".join(map(str, range(1, retries + 2))),
        command=" ".join([python, command, f'--part "{number}/{job.n_parts}"', *rest]),
        suffix=SUFFIX,
        mistake=MISTAKE,
    )
    log = f"{job.part_name('%4a')}.log"
    parts_head = _head(job, parts_name, log, [*of_parts, *further])
    merge_head = _head(job, merge_name, "merge.log", further)
    return Scripts(parts_head + attempts, f"{merge_head}exec {python} {shlex.join(merge)}\n")


def _head(job: Job, name: str, log: str, options: Sequence[str]) -> str:
    """What sbatch reads of a script, and where its commands run."""
    return HEAD.format(
        name=name,
        log=_log_option(parts_folder(job.out), log),
        options="\n".join(f"#SBATCH {option}" for option in options),
        folder=shlex.quote(str(job.folder)),
        root=shlex.quote(package_root()),
    )


def _quoted_option(option: str) -> str:
    """An option as `#SBATCH` takes it, whose value may have spaces."""
    if JOB_NAME.match(option):
        raise SchemaError(
            f"--sbatch: the launch finds its jobs by their names; drop {option!r:.80}"
        )
    if not option.isprintable():  # a new line would be a line of the script
        raise SchemaError(f"--sbatch: expected one line, found {option!r:.80}")
    with_value = OPTION.fullmatch(option)
    if with_value is None:
        return shlex.quote(option)
    name, value = with_value.groups()
    return name + shlex.quote(value)


def _log_option(folder: Path, pattern: str) -> str:
    """The path of a log as `#SBATCH --output` takes it; raises SchemaError if it cannot."""
    if not str(folder).isprintable():
        raise SchemaError(f"{str(folder)!r}: expected a path that fits on one line of a script")
    return shlex.quote(f"{folder}/".replace("%", "%%") + pattern)


def submit(job: Job, scripts: Scripts) -> tuple[str, str]:
    """Submit the parts, and the merge behind them; return the numbers of both jobs.

    Raises StoreError if sbatch is not there, or refuses them.
    """
    parts_name, _ = _job_names(job.out)
    parts = _submit(job, "parts.sbatch", scripts.parts, f"--job-name={parts_name}")
    try:
        return parts, submit_merge(job, scripts, [parts])
    except (StoreError, KeyboardInterrupt) as error:
        error.add_note(f"the parts are in the queue as job {parts}; the same command goes on")
        raise


def submit_merge(job: Job, scripts: Scripts, parts: Sequence[str]) -> str:
    """Submit the merge behind jobs that make parts; return its number.

    Raises StoreError if sbatch is not there, or refuses it.
    """
    _, merge_name = _job_names(job.out)
    # also behind parts that failed: the merge then says which are missing
    behind = f"--dependency=afterany:{':'.join(parts)}"
    return _submit(job, "merge.sbatch", scripts.merge, f"--job-name={merge_name}", behind)


def _submit(job: Job, name: str, script: str, *options: str) -> str:
    path = parts_folder(job.out) / name
    DISK.replace_text(path, script.encode())
    answer = _run(["sbatch", "--parsable", *options, str(path)])
    number = answer.strip().partition(";")[0]  # with the cluster's name behind it
    if not NUMBER.fullmatch(number):
        raise StoreError(f"sbatch: expected the number of a job, found {answer!r:.100}")
    return number


def _job_names(out: Path) -> tuple[str, str]:
    """The names of the jobs that make the parts and merge them, which no other OUT has.

    squeue takes them between commas.
    """
    digest = hashlib.sha256(os.fsencode(out.resolve())).hexdigest()[:DIGITS]
    shown = NOT_IN_NAMES.sub("_", out.name)[:LONGEST_NAME]
    return f"{shown}-{digest}", f"merge-{shown}-{digest}"


def find_queued(out: Path) -> Queued:
    """Ask squeue for the jobs of an earlier launch; raises StoreError if it does not answer.

    They are known by their names: no file has to be written at the moment of a submission, which
    a launch that is killed then would not have done.
    """
    names = _job_names(out)
    # %F: the number that all tasks of an array share
    options = ["--me", "--noheader", "--format=%F %j", f"--name={','.join(names)}"]
    found: dict[str, dict[str, None]] = {name: {} for name in names}
    for line in _run(["squeue", *options]).splitlines():
        number, _, name = line.strip().partition(" ")
        if not NUMBER.fullmatch(number) or name.strip() not in names:
            raise StoreError(f"squeue: expected number and name of a job, found {line!r:.100}")
        found[name.strip()][number] = None
    parts, merge = (tuple(found[name]) for name in names)
    return Queued(parts, merge)


def _run(command: list[str]) -> str:
    name = command[0]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=MOST_SECONDS
        )
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{name}: expected SLURM's command, found none; run this where jobs are submitted, or "
            "--print the script"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise StoreError(
            f"{name}: expected an answer in {MOST_SECONDS:.0f} s, found none"
        ) from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise StoreError(f"{name}: expected exit status 0, found {done.returncode}: {said[-300:]}")
    return done.stdout
