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
from pathlib import Path
from typing import NamedTuple

from store.errors import NotFoundError, SchemaError, StoreError
from store.launch.completed_parts import SUFFIX, numbers_text
from store.launch.engine import Workers
from store.launch.job import Job, parts_folder
from store.launch.task import FINAL, package_root
from store.reports import count
from store.write.files import DISK

__all__ = ["submit", "write_scripts"]

NUMBER = re.compile(r"[0-9]{1,20}")
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")
LONGEST_NAME = 40
DIGITS = 16  # of a checksum
JOB_NAME = ("-J", "--job-name")
MAX_ANSWER_S = 60.0  # of sbatch or squeue
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
    case $status in {final}) exit $status ;; esac
done
exit $status
"""


class Scripts(NamedTuple):
    """What is submitted: a script for the parts, and one for the merge; their texts."""

    parts: str
    merge: str


def write_scripts(
    job: Job, left: Sequence[int], merge: Sequence[str], workers: Workers, options: Sequence[str]
) -> Scripts:
    """Return the scripts that make the parts that are left, and merge all; pure.

    `left` are the numbers of the parts, ascending; `merge` the arguments of `python -m store` that
    merge them; `options` further ones of sbatch, for both scripts. Raises SchemaError if a path or
    an option fits on no line of a script, or names the jobs.
    """
    parts_name, merge_name = _job_names(job.out)
    further = [_quoted_option(option) for option in options]
    at_once = f"%{workers.n}" if workers.n else ""
    of_parts = [f"--array={numbers_text(left)}{at_once}"]
    if workers.gpus_per_part:
        of_parts.append(f"--gres=gpu:{workers.gpus_per_part}")
    python = shlex.join([sys.executable, "-P", "-m", "store"])
    number = "$SLURM_ARRAY_TASK_ID"
    words = [python, job.key.command, "--part", f'"{number}/{job.n_parts}"']
    words += ['"$part"', *map(shlex.quote, job.arguments)]
    name = f"$(printf {job.part_name('%04d')}.zarr {number})"
    attempts = ATTEMPTS.format(
        part=f'{shlex.quote(str(parts_folder(job.out)))}/"{name}"',
        attempts=" ".join(map(str, range(1, workers.retries + 2))),
        command=" ".join(words),
        suffix=SUFFIX,
        final=" | ".join(map(str, FINAL)),
    )
    log = f"{job.part_name('%4a')}.log"
    parts_head = _head(job, parts_name, log, [*of_parts, *further])
    merge_head = _head(job, merge_name, "merge.log", further)
    return Scripts(parts_head + attempts, f"{merge_head}exec {python} {shlex.join(merge)}\n")


def _head(job: Job, name: str, log: str, options: Sequence[str]) -> str:
    """What sbatch reads of a script, and where its commands run."""
    folder = f"{parts_folder(job.out)}/"
    return HEAD.format(
        name=name,
        log=shlex.quote(_one_line(folder).replace("%", "%%") + log),
        options="\n".join(f"#SBATCH {option}" for option in options),
        folder=shlex.quote(str(job.folder)),
        root=shlex.quote(package_root()),
    )


def _quoted_option(option: str) -> str:
    """An option as `#SBATCH` takes it: its value, behind = or a space, may have spaces."""
    if option.startswith(JOB_NAME):
        raise SchemaError(
            f"--sbatch: the launch finds its jobs by their names; drop {option!r:.80}"
        )
    name, sign, value = _one_line(option).partition("=" if "=" in option else " ")
    return name + sign + (value and shlex.quote(value))


def _one_line(text: str) -> str:
    if not text.isprintable():  # a new line would be a line of the script
        raise SchemaError(f"expected what fits on one line of a script, found {text!r:.80}")
    return text


def submit(job: Job, scripts: Scripts, n_left: int) -> str:
    """Submit what is not in the queue, the merge behind the parts; say what was and what is there.

    Raises StoreError if sbatch or squeue is not there, or refuses.
    """
    parts_name, merge_name = _job_names(job.out)
    parts, merges = _find_queued(parts_name, merge_name)
    if merges:
        jobs = [f"job {number} (parts)" for number in parts]
        jobs += [f"job {number} (the merge)" for number in merges]
        return f"{_whole_text(job, n_left)}; in the queue: {', '.join(jobs)}; nothing was submitted"
    is_new = not parts
    if is_new:
        parts = [_submit(job, "parts.sbatch", scripts.parts, f"--job-name={parts_name}")]
    shown = ", ".join(f"job {number}" for number in parts)
    try:
        # also behind parts that failed: the merge then says which are missing
        behind = f"--dependency=afterany:{':'.join(parts)}"
        merge = _submit(job, "merge.sbatch", scripts.merge, f"--job-name={merge_name}", behind)
    except (StoreError, KeyboardInterrupt) as error:
        error.add_note(f"the parts are in the queue as {shown}; the same command goes on")
        raise
    if is_new:
        return (
            f"{count(n_left, 'part')} submitted as {shown}, the merge behind them as job {merge}; "
            f"logs in {parts_folder(job.out)}; squeue --jobs={parts[0]},{merge} shows how far they "
            "are"
        )
    whole = _whole_text(job, n_left)
    added = f"the merge was submitted behind them as job {merge}"
    return f"{whole}; in the queue: {shown} (parts); {added}"


def _whole_text(job: Job, n_left: int) -> str:
    return f"{job.n_parts - n_left} of {job.n_parts} parts are whole"


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


def _find_queued(*names: str) -> list[list[str]]:
    """Return the numbers of the jobs in the queue that have each name.

    The jobs of an earlier launch are known by their names: no file has to be written at the moment
    of a submission, which a launch that is killed then would not have done.
    """
    # %F: the number that all tasks of an array share
    options = ["--me", "--noheader", "--format=%F %j", f"--name={','.join(names)}"]
    found: dict[str, dict[str, None]] = {name: {} for name in names}
    for line in _run(["squeue", *options]).splitlines():
        number, _, name = line.strip().partition(" ")
        if not NUMBER.fullmatch(number) or name.strip() not in names:
            raise StoreError(f"squeue: expected number and name of a job, found {line!r:.100}")
        found[name.strip()][number] = None
    return [list(numbers) for numbers in found.values()]


def _run(command: Sequence[str]) -> str:
    name = command[0]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=MAX_ANSWER_S
        )
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{name}: expected SLURM's command, found none; run this where jobs are submitted, or "
            "--print the script"
        ) from error
    except subprocess.TimeoutExpired as error:
        message = f"{name}: expected an answer in {MAX_ANSWER_S:.0f} s, found none"
        raise StoreError(message) from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise StoreError(f"{name}: expected exit status 0, found {done.returncode}: {said[-300:]}")
    return done.stdout
