"""Threads and denormal numbers of the CPU while detectors train."""

import contextlib
from collections.abc import Iterator

import torch
from threadpoolctl import threadpool_limits

__all__ = ["cpu_arithmetic", "default_threads"]

WIDE = 1024  # hidden size from which layers are large enough to share among threads


def default_threads(hidden_size: int) -> int:
    """One thread for narrow models, every core for wide ones.

    Threads wait for each other after every operation, and small operations are mostly waiting: at d
    = 128 a step of gnn_det_lstm takes 39 ms with one thread; with two it takes about 30 on two idle
    cores, but 2,000 where another process holds one of them.
    """
    return 1 if hidden_size < WIDE else torch.get_num_threads()


@contextlib.contextmanager
def cpu_arithmetic(n_threads: int) -> Iterator[None]:
    """Use `n_threads` and treat denormal numbers as zero inside the block.

    Gradients that fade on their way through an LSTM become denormal, and the CPU is many times
    slower with those: a step of gnn_det_lstm takes 37 ms without them, 69 with.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    torch.set_flush_denormal(True)
    try:
        with threadpool_limits(n_threads):  # NumPy's and scikit-learn's own
            yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
