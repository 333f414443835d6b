"""Processes that read a store at an address through a mirror, and compare it with a local one."""

import multiprocessing
import time

from oracle import assert_batch

from store import TraceLoader, TraceStore

# starts a process in milliseconds, without the threads of this one
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["store.feed.loader"])


def read_epochs(url, cache_dir, limit, local, progress, n_read, number, epochs, **options):
    """Read epochs of batches.

    `progress[number]` is when the last batch came, and 0 after the last; `n_read[i]` counts how
    often row i was read.
    """
    expected = TraceStore.open(local)
    store = TraceStore.open(url, limit, cache_dir=cache_dir)
    loader = TraceLoader(store, batch_size=5, shuffle=True, **options)
    for _ in range(epochs):
        for batch in loader:
            rows = batch.rows.tolist()
            assert_batch(batch, [dict(expected[row]) for row in rows])
            for row in rows:
                n_read[row] += 1
            progress[number] = time.monotonic()
    progress[number] = 0.0


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
        self.arguments = arguments | {"progress": self.progress, "n_read": self.n_read}
        self.processes = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for number in self.processes:
            self.kill(number)

    def start(self, number, **options):
        self.progress[number] = time.monotonic()
        arguments = self.arguments | {"number": number} | options
        process = context.Process(target=read_epochs, kwargs=arguments, daemon=True)
        self.processes[number] = process
        process.start()

    def kill(self, number):
        self.processes[number].kill()
        self.processes[number].join()

    def longest_wait(self):
        """Seconds since the last batch, or the start, of the reader that has waited longest."""
        now = time.monotonic()
        return max((now - last for last in self.progress if last), default=0.0)

    def join(self, limit_s):
        """Wait for all; whether they read to the end, and what was right."""
        deadline = time.monotonic() + limit_s
        for process in self.processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
        return all(process.exitcode == 0 for process in self.processes.values())
