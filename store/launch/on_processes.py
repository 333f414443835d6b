"""The engine `processes`: parts as processes of this machine, each on cores and GPUs of its own."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Event

from store.errors import SchemaError
from store.launch.engine import Engine, Workers
from store.launch.job import Task
from store.launch.task import AttemptError, end_tasks, run_task
from store.reports import count
from store.system import available_cores

__all__ = ["open_engine", "share_out"]

POLL_S = 0.02
GPUS = Path("/proc/driver/nvidia/gpus")
VISIBLE = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"


@contextmanager
def open_engine(workers: Workers) -> Iterator[Engine]:
    """Run parts on this machine; raises what `share_out` does."""
    environments = share_out(workers)
    free: SimpleQueue[dict[str, str]] = SimpleQueue()
    for environment in environments:
        free.put(environment)
    is_closed = Event()
    # a part ends with the thread that started it: they live until the engine is closed
    submitted: list[Future[int]] = []
    threads = ThreadPoolExecutor(len(environments))

    def run(task: Task) -> int:
        environment = free.get()
        try:
            for _ in range(workers.retries):
                try:
                    return run_task(task, environment, is_closed.wait)
                except AttemptError:
                    if is_closed.is_set():
                        raise
            return run_task(task, environment, is_closed.wait)
        finally:
            free.put(environment)

    def submit(task: Task) -> Future[int]:
        submitted.append(threads.submit(run, task))
        return submitted[-1]

    try:
        yield Engine(len(environments), submit)
    finally:
        is_closed.set()
        threads.shutdown(wait=False, cancel_futures=True)
        while wait(submitted, POLL_S).not_done:  # one may only be about to start
            end_tasks()


def share_out(workers: Workers) -> list[dict[str, str]]:
    """Share the cores and GPUs of this machine: variables for each part that runs at once.

    Raises SchemaError if there are too few GPUs.
    """
    n_cores = available_cores()
    gpus = _gpus()
    per_part = workers.gpus_per_part
    n_most = len(gpus) // per_part if per_part else n_cores
    n = min(workers.n or max(1, n_most), workers.most)
    if n * per_part > len(gpus):
        advice = "fewer --workers" if per_part <= len(gpus) else "a machine that has them"
        raise SchemaError(
            f"--gpus-per-part: expected {count(n * per_part, 'GPU')} for {count(n, 'part')} at "
            f"once, found {len(gpus)}; choose {advice}"
        )
    threads = {} if THREADS in os.environ else {THREADS: str(max(1, n_cores // n))}
    slots = [gpus[slot * per_part : (slot + 1) * per_part] for slot in range(n)]
    return [threads | ({VISIBLE: ",".join(slot)} if slot else {}) for slot in slots]


def _gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES gives them."""
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        return [name for name in visible.split(",") if name.strip()]
    n_gpus = len(list(GPUS.iterdir())) if GPUS.is_dir() else 0
    return [str(number) for number in range(n_gpus)]
