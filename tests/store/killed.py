"""A command of `python -m store` that is killed at random moments, and then run once more.

As a script: `killed.py MODULES COMMIT_ROWS SHARE KILLS COMMAND ARGUMENT...`; `kill_at_random` runs
it.
"""

import os
import random
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

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
    settings = [",".join(modules), str(commit_rows), str(share), str(kills), command]
    done = subprocess.run(
        [sys.executable, __file__, *settings, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert f"{kills} kills of " in done.stdout
    print(done.stdout)
    return sorted(cwd.glob("[0-9]*.zarr"))


def kill_runs(
    modules: str, commit_rows: str, share: str, n_kills: str, command: str, *arguments: str
) -> None:
    """The script."""
    import torch

    import store.write.writer
    from store.cli.main import main

    for module in modules.split(","):
        import_module(module)
    torch.set_num_threads(1)
    store.write.writer.COMMIT_ROWS = int(commit_rows)
    began = time.monotonic()
    assert main([command, "whole.zarr", *arguments]) == 0
    seconds = time.monotonic() - began
    random.seed(0)
    kills, stores = 0, 1
    while kills < int(n_kills):
        child = os.fork()
        if not child:
            os._exit(main([command, f"{stores}.zarr", *arguments]))
        time.sleep(random.uniform(0, seconds * float(share)))  # noqa: S311 - no secret
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


if __name__ == "__main__":
    kill_runs(*sys.argv[1:])
