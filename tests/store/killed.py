"""A command of `python -m store` that is killed at random moments, and then run once more."""

import os
import random
import signal
import time
from importlib import import_module
from pathlib import Path

import store.write.writer
from store.cli.main import main

KILLS = 20


def kill_at_random(
    cwd: Path,
    command: str,
    arguments: list[str],
    modules: list[str],
    commit_rows: int,
    share: float,
    kills: int = KILLS,
) -> list[Path]:
    """The stores that killed runs of a command ended with; `whole.zarr` beside them is that of a
    run nobody killed.

    Parameters
    ----------
    cwd
        Where the stores are made.
    command, arguments
        But for the store's path, which is the first argument.
    modules
        What the command imports when it is run: done once, for all runs.
    commit_rows
        Rows that make a commit.
    share
        The latest moment to kill, as a share of the time that a whole run takes.
    kills
        How often.
    """
    for module in modules:
        import_module(module)
    child = os.fork()
    if not child:
        status = 70
        try:
            os.chdir(cwd)
            store.write.writer.COMMIT_ROWS = commit_rows
            kill_runs(command, arguments, share, kills)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return sorted(cwd.glob("[0-9]*.zarr"))


def kill_runs(command: str, arguments: list[str], share: float, n_kills: int) -> None:
    """In a process of its own, which has threads of nobody else."""
    began = time.monotonic()
    assert main([command, "whole.zarr", *arguments]) == 0
    seconds = time.monotonic() - began
    random.seed(0)
    kills, stores = 0, 1
    while kills < n_kills:
        child = os.fork()
        if not child:
            os._exit(main([command, f"{stores}.zarr", *arguments]))
        time.sleep(random.uniform(0, seconds * share))  # noqa: S311 - no secret
        done, status = os.waitpid(child, os.WNOHANG)
        if done:  # a busy machine measured too many seconds: kill the making of another store
            assert status == 0, status
            stores += 1
            continue
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
    assert main([command, f"{stores}.zarr", *arguments]) == 0
    print(f"{kills} kills of {stores} builds of {seconds:.1f} s each")
