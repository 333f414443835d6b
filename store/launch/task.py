"""Runs the command of a part as a process of its own, with its output in a log.

What runs on the workers of a cluster is here: it needs this package there, and nothing of Ray or
Dask.
"""

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from store.launch.job import Task

__all__ = [
    "end_tasks",
    "last_lines",
    "package_root",
    "run_task",
    "start_command",
    "stop_processes",
    "stop_tasks",
]

STOP_S = 30.0  # for a commit; then a process is killed
TAIL_BYTES = 1 << 16
HEADING = "--- attempt"
LONGEST_LINE = 300  # characters of a log's line in a message

_running: set[subprocess.Popen] = set()  # by run_task of this process


def package_root() -> str:
    """Return the folder that has this package in it."""
    return str(Path(__file__).resolve().parents[2])


def start_command(
    arguments: Sequence[str],
    folder: str | None = None,
    log: int | None = None,
    environment: dict[str, str] | None = None,
) -> subprocess.Popen:
    """Start a command of this package, which ends when the thread that started it ends.

    `arguments` are of `python -m store`, which is run in `folder`; it is this very package,
    whatever modules are there. `log` is the descriptor of the file that its output goes to, None
    for our own output; `environment` has variables to add.
    """
    paths = [package_root(), os.environ.get("PYTHONPATH")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    variables |= environment or {}
    child = [sys.executable, "-P", "-m", "store.launch.child", str(os.getpid())]
    return subprocess.Popen(
        [*child, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log if log is None else subprocess.STDOUT,
        env=variables,
        start_new_session=True,  # Ctrl-C is for the launch, which then ends its parts in order
    )


def run_task(task: Task, environment: dict[str, str] | None = None) -> int:
    """Make an attempt at a part; return its exit status, -n if signal n ended it.

    Raises OSError if its log cannot be written.
    """
    with Path(task.log).open("ab") as log:
        heading = f"{HEADING} {task.attempt} on {platform.node()}\n"
        with suppress(OSError):  # a full disk: the part may need no more of it
            log.write(heading.encode())
            log.flush()
        process = start_command(task.arguments, task.folder, log.fileno(), environment)
    _running.add(process)
    try:
        return process.wait()
    finally:
        stop_processes([process])  # if this worker is asked to end
        _running.remove(process)


def stop_tasks() -> None:
    """Ask the parts that this process runs to end; they commit what is whole."""
    for process in list(_running):
        process.terminate()


def end_tasks() -> None:
    """End the parts that this process runs, as `stop_processes` does."""
    stop_processes(list(_running))


def stop_processes(processes: Sequence[subprocess.Popen]) -> None:
    """End processes: they may commit what is whole, and are killed after half a minute."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()


def last_lines(log: Path, n: int) -> list[str]:
    """Return the last lines of the last attempt in a log, shortened; none if there is no log."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode(errors="backslashreplace")
    except OSError:
        return []
    of_last = text.rpartition(HEADING)[2].partition("\n")[2] if HEADING in text else text
    lines = [line.strip() for line in of_last.splitlines() if line.strip()]
    shown = ["".join(sign for sign in line if sign.isprintable()) for line in lines[-n:]]
    return [line[:LONGEST_LINE] for line in shown]
