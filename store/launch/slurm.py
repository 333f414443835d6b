"""SLURM: a script whose array of tasks makes the parts, and one that merges them behind it.

The scripts are in the folder of the parts, and so are the numbers of the jobs, so that a second
launch does not submit what is in the queue.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from store.errors import NotFoundError, SchemaError, StoreError
from store.launch.found import numbers_text
from store.launch.job import Job, parts_folder
from store.launch.records import SUFFIX
from store.launch.task import package_root
from store.write.files import DISK

__all__ = ["Scripts", "jobs_at_work", "submit", "write_scripts"]

JOBS = "slurm.json"
MAX_BYTES = 1 << 12
NUMBER = re.compile(r"[0-9]{1,20}")
MOST_SECONDS = 60.0  # for an answer of sbatch or squeue
ENDED = "Invalid job id"  # what squeue says of a job that it has forgotten
PARTS = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array={array}
#SBATCH --output={log}
#SBATCH --open-mode=append
{options}
{start}
export PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}}
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
MERGE = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --output={log}
#SBATCH --open-mode=append
{options}
{start}
export PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}}
exec {command}
"""


@dataclass(frozen=True)
class Scripts:
    """What is submitted: a script for the parts, and one for the merge; their texts."""

    parts: str
    merge: str


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

    Parameters
    ----------
    job
        What to make.
    left
        Numbers of the parts, ascending.
    merge
        Arguments of `python -m store` that merge the parts.
    workers
        Parts at once; None for as many as the queue admits.
    gpus_per_part, retries
        See the command.
    options
        Further options of sbatch, for both.
    """
    folder = parts_folder(job.out)
    further = [f"#SBATCH {option}" for option in options]
    gpus = [f"#SBATCH --gres=gpu:{gpus_per_part}"] if gpus_per_part else []
    at_once = f"%{workers}" if workers else ""
    python = shlex.join([sys.executable, "-P", "-m", "store"])
    number = "$SLURM_ARRAY_TASK_ID"
    part_option = f'--part "{number}/{job.n_parts}"'
    command, *rest = map(shlex.quote, job.arguments)
    rest[job.out_index - 1] = '"$part"'
    arguments = [command, part_option, *rest]
    both = {
        "start": f"cd {shlex.quote(str(job.folder))} || exit 2",
        "root": shlex.quote(package_root()),
    }
    padded = f'{shlex.quote(str(folder))}/"$(printf {job.part_name("%04d")}.zarr {number})"'
    parts = PARTS.format(
        name=shlex.quote(job.out.name),
        array=numbers_text(left) + at_once,
        log=_log_option(folder, f"{job.part_name('%4a')}.log"),
        options="\n".join([*gpus, *further]),
        part=padded,
        attempts=" ".join(map(str, range(1, retries + 2))),
        command=" ".join([python, *arguments]),
        suffix=SUFFIX,
        **both,
    )
    merged = MERGE.format(
        name=shlex.quote(f"merge-{job.out.name}"),
        log=_log_option(folder, "merge.log"),
        options="\n".join(further),
        command=" ".join([python, shlex.join(merge)]),
        **both,
    )
    return Scripts(parts, merged)


def _log_option(folder: Path, pattern: str) -> str:
    """The path of a log as `#SBATCH --output` takes it; raises SchemaError if it cannot."""
    if not str(folder).isprintable():
        raise SchemaError(f"{str(folder)!r}: expected a path that fits on one line of a script")
    return shlex.quote(f"{folder}/".replace("%", "%%") + pattern)


def submit(job: Job, scripts: Scripts) -> tuple[str, str]:
    """Submit the parts, and the merge behind them; return the numbers of both jobs.

    Raises
    ------
    StoreError
        sbatch is not there, or refuses them.
    """
    folder = parts_folder(job.out)
    DISK.replace_text(folder / "parts.sbatch", scripts.parts.encode())
    DISK.replace_text(folder / "merge.sbatch", scripts.merge.encode())
    parts = _submit([str(folder / "parts.sbatch")])
    _remember(folder, [parts])
    # also behind parts that failed: the merge then says which are missing
    merge = _submit([f"--dependency=afterany:{parts}", str(folder / "merge.sbatch")])
    _remember(folder, [parts, merge])
    return parts, merge


def _submit(arguments: list[str]) -> str:
    answer = _run(["sbatch", "--parsable", *arguments])
    number = answer.strip().partition(";")[0]  # with the cluster's name behind it
    if not NUMBER.fullmatch(number):
        raise StoreError(f"sbatch: expected the number of a job, found {answer!r:.100}")
    return number


def _remember(folder: Path, jobs: list[str]) -> None:
    DISK.replace_text(folder / JOBS, json.dumps(jobs).encode())


def jobs_at_work(out: Path) -> list[str]:
    """Return the jobs of an earlier launch that are in the queue; [] if there are none."""
    try:
        with (parts_folder(out) / JOBS).open("rb") as file:
            jobs = json.loads(file.read(MAX_BYTES))
    except (FileNotFoundError, ValueError):
        return []
    if not isinstance(jobs, list):
        return []
    numbers = [job for job in jobs if isinstance(job, str) and NUMBER.fullmatch(job)]
    return [number for number in numbers if _is_queued(number)]


def _is_queued(number: str) -> bool:
    """Whether squeue lists a job; it fails for one that ended a while ago."""
    try:
        return bool(_run(["squeue", "--noheader", "--format=%i", f"--jobs={number}"]).strip())
    except StoreError as error:
        if ENDED in str(error):
            return False
        raise


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
