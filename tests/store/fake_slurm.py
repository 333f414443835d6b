"""`sbatch` and `squeue` of a cluster of one machine; a script, whose first argument is either.

It understands what the launch uses: names, an array of tasks, `%W` of which run at once, their log,
and a dependency. Jobs are folders of `$FAKE_SLURM`, with a file `ended` in them once they have.
"""

import json
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
KNOWN = ("array", "comment", "dependency", "job-name", "open-mode", "output", "parsable")


def sbatch(arguments):
    """Put a job into the queue and print its number; it runs when this has returned.

    Options of the command line win over those of the script.
    """
    *given, script = arguments
    text = Path(script).read_text()
    lines = re.findall(r"^#SBATCH (.*)$", text, re.M)
    options = parse([token for line in lines for token in shlex.split(line)]) | parse(given)
    for number in options.get("dependency", "afterany").split(":")[1:]:
        if not (JOBS / number).is_dir():
            sys.exit("sbatch: error: Batch job submission failed: Job dependency problem")
    job = JOBS / str(100 + len(list(JOBS.iterdir())))
    job.mkdir()
    (job / "script").write_text(text)
    (job / "options").write_text(json.dumps(options))
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    run = [sys.executable, "-S", __file__, "run", str(job)]
    subprocess.Popen(run, **quiet, start_new_session=True)
    print(job.name)


def parse(tokens):
    """['--array=1', '--parsable'] -> {"array": "1", "parsable": ""}; refuses what is unknown."""
    options = {}
    for token in tokens:
        name, _, value = token.removeprefix("--").partition("=")
        if not token.startswith("--") or name not in KNOWN:
            sys.exit(f"sbatch: unrecognized option '{token}'")
        options[name] = value
    return options


def squeue(arguments):
    """List the jobs of some names that have not ended, an array once for each of its tasks."""
    *flags, given = arguments
    name, _, names = given.partition("=")
    if (flags, name) != (["--me", "--noheader", "--format=%F %j"], "--name"):
        sys.exit(f"squeue: unrecognized option '{arguments}'")
    for job in sorted(JOBS.iterdir()):
        options = json.loads((job / "options").read_text())
        if options["job-name"] in names.split(",") and not (job / "ended").exists():
            for _ in expand(options.get("array", "0").partition("%")[0]):
                print(job.name, options["job-name"])


def run_job(job):
    """Run a job behind those that it depends on."""
    options = json.loads((job / "options").read_text())
    for number in options.get("dependency", "").split(":")[1:]:
        while not (job.parent / number / "ended").exists():
            if not job.is_dir():  # the test was stopped
                return
            time.sleep(POLL_S)
    numbers, _, at_once = options.get("array", "0").partition("%")
    with ThreadPoolExecutor(int(at_once or 1)) as pool:
        for number in expand(numbers):
            pool.submit(run_task, job, number, options["output"])
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
        run_job(Path(rest[0]))
    else:
        {"sbatch": sbatch, "squeue": squeue}[called](rest)
