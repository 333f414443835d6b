"""`sbatch` and `squeue` of a cluster of one machine; a script, whose first argument is either.

It understands what the launch uses: an array of tasks, `%W` of which run at once, their log, and a
dependency. Jobs are folders of `$FAKE_SLURM`, with a file `ended` in them once they have.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

JOBS = Path(os.environ["FAKE_SLURM"])
POLL_S = 0.02


def sbatch(arguments):
    """Put a job into the queue and print its number; it runs when this has returned."""
    job = JOBS / str(100 + len(list(JOBS.iterdir())))
    job.mkdir()
    (job / "script").write_bytes(Path(arguments[-1]).read_bytes())
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    run = [sys.executable, "-S", __file__, "run", str(job), *arguments[:-1]]
    subprocess.Popen(run, **quiet, start_new_session=True)
    print(job.name)


def squeue(arguments):
    """List a job that has not ended."""
    (number,) = (text.partition("=")[2] for text in arguments if text.startswith("--jobs="))
    if not (JOBS / number).is_dir():
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    if not (JOBS / number / "ended").exists():
        print(number)


def run_job(job, *arguments):
    """Run a job behind the one that it depends on."""
    for text in arguments:
        if text.startswith("--dependency=afterany:"):
            while not (job.parent / text.rpartition(":")[2] / "ended").exists():
                if not job.is_dir():  # the test was stopped
                    return
                time.sleep(POLL_S)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", (job / "script").read_text(), re.M))
    numbers, _, at_once = options.get("array", "0").partition("%")
    with ThreadPoolExecutor(int(at_once or 1)) as pool:
        for number in expand(numbers):
            pool.submit(run_task, job, number, *shlex.split(options["output"]))
    (job / "ended").touch()


def expand(numbers):
    """'1-3,7' -> 1, 2, 3, 7."""
    for piece in numbers.split(","):
        first, _, last = piece.partition("-")
        yield from range(int(first), int(last or first) + 1)


def run_task(job, number, pattern):
    """Run one task of an array."""
    log = pattern.replace("%4a", f"{number:04d}").replace("%%", "%")
    environment = os.environ | {"SLURM_ARRAY_TASK_ID": str(number)}
    with Path(log).open("ab") as out:
        script = ["bash", str(job / "script")]
        subprocess.run(script, stdout=out, stderr=out, env=environment, check=False)


if __name__ == "__main__":
    called, *rest = sys.argv[1:]
    if called == "run":
        run_job(Path(rest[0]), *rest[1:])
    else:
        {"sbatch": sbatch, "squeue": squeue}[called](rest)
