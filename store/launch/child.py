"""A command of `python -m store` that is asked to end when the process that started it ends.

`python -P -m store.launch.child PARENT COMMAND ARGUMENT...`, with the number of that process. The
kernel sends SIGTERM, however the parent ended: no part goes on writing unseen beside the next
attempt at it.
"""

import ctypes
import os
import runpy
import signal
import sys

__all__ = ["end_with"]

PR_SET_PDEATHSIG = 1  # of the kernel


def end_with(parent: int) -> None:
    """Have SIGTERM sent to this process when its parent ends, or end at once if it has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    del sys.argv[1]
    runpy.run_module("store", run_name="__main__")
