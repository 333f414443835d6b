"""Runs the command of a part as a process of its own, with its output in a log.

What runs on the workers of a cluster is here: it needs this package there, and nothing of Ray or
Dask. `python -P -m store.launch.task PARENT COMMAND ARGUMENT...` is a command of `python -m store`
that is asked to end when the process PARENT ends: the kernel sends SIGTERM, however that ended, so
that no part goes on writing unseen beside the next attempt at it.
"""

import os
import platform
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from store.launch.completed_parts import record_path
from store.launch.job import Task
from store.system import end_with_parent
from store.write.build import partial_path
from store.write.lock import has_writer

__all__ = [
    "FINAL",
    "AttemptError",
    "end_tasks",
    "last_line",
    "make_check",
    "package_root",
    "run_task",
    "start_command",
    "status_text",
    "stop_processes",
]

MISTAKE = 2
ENDED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # in order, as it was asked to
FINAL = (MISTAKE, *ENDED)  # exit statuses after which a part is not tried again
PAUSE_S = 1.0  # before a part is tried again
LOOK_S = 5.0  # between two looks whether an earlier attempt still runs
STOP_S = 30.0  # for a commit; then a process is killed
TAIL_BYTES = 1 << 16
HEADING = b"--- attempt"
LONGEST_LINE = 300  # characters of a log's line in a message

_running: set[subprocess.Popen] = set()  # by run_task of this process


class AttemptError(Exception):
    """An attempt at a part that failed; another one may succeed, perhaps on another worker."""


def run_task(
    task: Task,
    environment: dict[str, str] | None = None,
    pause: Callable[[float], object] | None = None,
) -> int:
    """Make an attempt at a part; return the exit status if the part is whole, or will not be.

    An earlier attempt that still runs somewhere is waited for. Raises AttemptError, after a pause,
    if the part is to be tried again, and OSError if its log cannot be written.
    """
    pause = pause or time.sleep
    problem = make_check(task.version, str(task.folder))()
    if problem:
        raise AttemptError(f"worker {platform.node()}: {problem}")
    while _is_written(task.store):
        pause(LOOK_S)
    with task.log.open("ab") as log:
        with suppress(OSError):  # a full disk: the part may need no more of it
            log.write(HEADING + f" on {platform.node()}\n".encode())
            log.flush()
        process = start_command(task.arguments, task.folder, log.fileno(), environment)
    _running.add(process)
    try:
        status = process.wait()
    finally:
        stop_processes([process])  # if this worker is asked to end
        _running.remove(process)
    if status in FINAL or record_path(task.store).exists():
        return status
    pause(PAUSE_S)
    raise AttemptError(status_text(status))


def make_check(version: str, folder: str) -> Callable[[], str]:
    """Return a function that says what a worker lacks; nothing if it can make parts.

    It stands in a function, so that it travels as code: a worker without this package could not
    look it up.
    """

    def check() -> str:
        import os

        try:
            from store.extras import version_text

            found = version_text()
        except ImportError as error:
            found = str(error)
        if found != version:
            return f"expected {version}, found {found}; install the same version there"
        if not os.path.isdir(folder):  # noqa: PTH112 - it knows nothing of our imports
            return (
                f"expected the folder {folder} of the launch, found none; parts need a file "
                "system that all workers share"
            )
        return ""

    return check


def status_text(status: int) -> str:
    return f"ended by signal {-status}" if status < 0 else f"exit status {status}"


def _is_written(store: Path) -> bool:
    """Whether another process makes a store now."""
    with suppress(OSError):
        return has_writer(partial_path(store))
    return False


def package_root() -> str:
    return str(Path(__file__).resolve().parents[2])


def start_command(
    arguments: Sequence[str],
    folder: Path | None = None,
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
    child = [sys.executable, "-P", "-m", "store.launch.task", str(os.getpid())]
    return subprocess.Popen(
        [*child, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log if log is None else subprocess.STDOUT,
        env=variables | (environment or {}),
        start_new_session=True,  # Ctrl-C is for the launch, which then ends its parts in order
    )


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


def last_line(log: Path) -> list[str]:
    """Return the last line of the last attempt in a log, shortened; none if there is none."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read()
    except OSError:
        return []
    of_last = text.rpartition(HEADING)[2].partition(b"\n")[2] if HEADING in text else text
    lines = of_last.decode(errors="backslashreplace").splitlines()
    shown = ["".join(filter(str.isprintable, line)).strip() for line in lines if line.strip()]
    return [line[:LONGEST_LINE] for line in shown[-1:]]


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    del sys.argv[1]
    runpy.run_module("store", run_name="__main__")
