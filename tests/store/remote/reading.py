"""Processes that read a store at an address through a mirror, and compare it with a local one."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from mirroring import disk_bytes

from store import Ragged, TraceLoader, TraceStore

RIGHT, WRONG = 0, 3  # exit statuses

# starts a process in milliseconds, without the threads of this one
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["reading"])


def same(batch, expected):
    """Whether two batches hold the same bits."""
    return all(
        np.array_equal(_bits(batch[name]), _bits(expected[name])) for name in expected.columns
    )


def _bits(values):
    if isinstance(values, list):
        return np.array(values)
    items = values.values if isinstance(values, Ragged) else values
    return items.contiguous().numpy().view(np.uint8)


def read_epochs(url, cache_dir, limit, local, progress, number, epochs, **options):
    """Read epochs of batches; exits with RIGHT or WRONG.

    `progress[number]` is when the last batch came, 0 before the first and after the last.
    """
    expected = TraceStore.open(local)
    store = TraceStore.open(url, limit, cache_dir=cache_dir)
    loader = TraceLoader(store, batch_size=5, shuffle=True, seed=number, **options)
    for _ in range(epochs):
        for batch in loader:
            if not same(batch, expected.read(batch.rows.numpy())):
                os._exit(WRONG)
            progress[number] = time.monotonic()
    progress[number] = 0.0
    sys.exit(RIGHT)


class Readers:
    """Several such processes, by number.

    Parameters
    ----------
    arguments
        What all of them get, see `read_epochs`.
    n
        How many there are.
    """

    def __init__(self, n, **arguments):
        self.arguments = arguments
        self.progress = context.Array("d", n, lock=False)
        self.processes = [None] * n

    def start(self, number, **options):
        self.progress[number] = 0.0
        arguments = {**self.arguments, "progress": self.progress, "number": number, **options}
        self.processes[number] = context.Process(target=read_epochs, kwargs=arguments)
        self.processes[number].start()

    def kill(self, number):
        os.kill(self.processes[number].pid, signal.SIGKILL)
        self.processes[number].join()

    def longest_wait(self):
        """Seconds since the last batch of the reader that has waited longest."""
        now = time.monotonic()
        return max((now - last for last in self.progress if last), default=0.0)

    def join(self, limit_s):
        """Wait for all; the exit statuses."""
        deadline = time.monotonic() + limit_s
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return [process.exitcode for process in self.processes]


@contextlib.contextmanager
def watched(folder: Path, every_s: float = 0.01):
    """Look again and again at what a folder takes on the disk; gives the list of what was seen."""
    seen: list[int] = []
    is_over = threading.Event()

    def look():
        while not is_over.wait(every_s):
            seen.append(disk_bytes(folder))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()
