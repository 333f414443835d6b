"""The engine `processes`: parts as processes of this machine, each on cores and GPUs of its own."""

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from queue import SimpleQueue
from threading import Event

from store.errors import SchemaError
from store.launch.engine import Workers
from store.launch.job import Task
from store.launch.task import AttemptError, end_tasks, run_task
from store.reports import count
from store.system import available_cores

__all__ = ["Processes", "open_engine"]

POLL_S = 0.02
GPUS = Path("/proc/driver/nvidia/gpus")
VISIBLE = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"


class Processes:
    """Processes in slots, each of which has its GPUs."""

    def __init__(self, environments: list[dict[str, str]], retries: int) -> None:
        self.n_workers = len(environments)
        self._retries = retries
        self._closed = Event()
        self._free: SimpleQueue[dict[str, str]] = SimpleQueue()
        for environment in environments:
            self._free.put(environment)
        # a part ends with the thread that started it: they live until the engine is closed
        self._submitted: list[Future[int]] = []
        self._threads = ThreadPoolExecutor(self.n_workers)

    def submit(self, task: Task) -> Future[int]:
        future = self._threads.submit(self._run, task)
        self._submitted.append(future)
        return future

    def _run(self, task: Task) -> int:
        environment = self._free.get()
        try:
            for _ in range(self._retries):
                try:
                    return run_task(task, environment, self._closed.wait)
                except AttemptError:
                    if self._closed.is_set():
                        raise
            return run_task(task, environment, self._closed.wait)
        finally:
            self._free.put(environment)

    def close(self) -> None:
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        while wait(self._submitted, POLL_S).not_done:  # one may only be about to start
            end_tasks()


def open_engine(workers: Workers) -> Processes:
    """Share the cores and GPUs of this machine; raises SchemaError if there are too few GPUs."""
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
    environments = [threads | ({VISIBLE: ",".join(slot)} if slot else {}) for slot in slots]
    return Processes(environments, workers.retries)


def _gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES gives them."""
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        return [name for name in visible.split(",") if name.strip()]
    n_gpus = len(list(GPUS.iterdir())) if GPUS.is_dir() else 0
    return [str(number) for number in range(n_gpus)]
