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
context.set_forkserver_preload(["store.feed.loader"])


def same(batch, expected):
    """Whether two batches hold the same bits."""
    if batch.rows.tolist() != expected.rows.tolist() or batch.keys() != expected.keys():
        return False
    return all(
        np.array_equal(found, wanted)
        for name in expected.columns
        for found, wanted in zip(_arrays(batch[name]), _arrays(expected[name]), strict=True)
    )


def _arrays(values):
    if isinstance(values, list):
        return [np.array(values)]
    tensors = values if isinstance(values, Ragged) else [values]
    return [np.array(str(tensor.dtype)) for tensor in tensors] + [
        tensor.contiguous().numpy().view(np.uint8) for tensor in tensors
    ]


def read_epochs(
    environment, url, cache_dir, limit, local, progress, n_read, number, epochs, **options
):
    """Read epochs of batches; exits with RIGHT or WRONG.

    `progress[number]` is when the last batch came, and 0 after the last; `n_read[i]` counts how
    often row i was read.
    """
    os.environ.update(environment)
    expected = TraceStore.open(local)
    store = TraceStore.open(url, limit, cache_dir=cache_dir)
    loader = TraceLoader(store, batch_size=5, shuffle=True, **options)
    for _ in range(epochs):
        for batch in loader:
            rows = batch.rows.numpy()
            if not same(batch, expected.read(rows)):
                os._exit(WRONG)
            for row in rows.tolist():
                n_read[row] += 1
            progress[number] = time.monotonic()
    progress[number] = 0.0
    sys.exit(RIGHT)


class Readers:
    """Several such processes, by number; killed when the block ends.

    Parameters
    ----------
    n, n_rows
        How many there are, and how many rows they read.
    arguments
        What all of them get, see `read_epochs`.

    Attributes
    ----------
    n_read
        How often each row was read; not exact where several read one.
    """

    def __init__(self, n, n_rows, **arguments):
        self.n_read = context.Array("i", n_rows, lock=False)
        self.progress = context.Array("d", n, lock=False)
        self.started = [0.0] * n
        self.arguments = arguments | {"progress": self.progress, "n_read": self.n_read}
        self.processes = [None] * n

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in filter(None, self.processes):
            process.kill()
            process.join()

    def start(self, number, **options):
        self.progress[number] = 0.0
        self.started[number] = time.monotonic()
        arguments = self.arguments | {"environment": dict(os.environ), "number": number} | options
        process = context.Process(target=read_epochs, kwargs=arguments, daemon=True)
        self.processes[number] = process
        process.start()

    def kill(self, number):
        os.kill(self.processes[number].pid, signal.SIGKILL)
        self.processes[number].join()

    def longest_wait(self):
        """Seconds since the last batch of the reader that has waited longest."""
        now = time.monotonic()
        return max((now - last for last in self.progress if last), default=0.0)

    def longest_start(self):
        """The same since the start, of those that have read no batch."""
        now = time.monotonic()
        waiting = zip(self.progress, self.started, strict=True)
        return max((now - start for last, start in waiting if not last), default=0.0)

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
