"""What a launch needs of an engine: workers that run parts, and try again those that failed.

Engines are opened by name, so that Ray and Dask are imported only where they are asked for. SLURM
is none of them: it has a queue of its own (`store.launch.slurm`).
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple

from store.errors import NotFoundError, SchemaError
from store.launch.job import Task
from store.reports import in_one_line

__all__ = ["CONNECT_S", "ENGINES", "Engine", "Workers", "check_workers", "open_engine"]

ENGINES = ("processes", "ray", "dask", "slurm")
CONNECT_S = 6.0  # in which a cluster has to answer; the packages are loaded before that


@dataclass(frozen=True)
class Workers:
    """What was asked for."""

    n: int | None  # how many parts at once; None for what is free
    most: int  # more than that are of no use
    retries: int = 0  # attempts at a part after one that failed
    gpus_per_part: int = 0  # GPUs that each part has for itself
    address: str | None = None  # of a cluster that is there; None for one on this machine

    def at_once(self, n_free: int, found: str) -> int:
        """How many parts to run at once; raises SchemaError where they would only wait."""
        if n_free < 1:
            raise SchemaError(
                f"expected free workers, found {found}; wait for the work on them, or add workers"
            )
        return min(self.n or n_free, self.most)

    def no_answer(self, found: object) -> NotFoundError:
        return NotFoundError(
            f"--address {self.address}: expected HOST:PORT of a cluster, found no answer "
            f"({in_one_line(found)}); check that it runs and can be reached"
        )


class Engine(NamedTuple):
    """Workers that are there; parts beyond `n_workers` would only wait."""

    n_workers: int
    # runs `store.launch.task.run_task`, again where it raises AttemptError
    submit: Callable[[Task], Future[int]]


def open_engine(name: str, workers: Workers) -> AbstractContextManager[Engine]:
    """Open an engine of `ENGINES` but slurm; in the end, what runs is ended, and a cluster left.

    Raises StoreError if what was asked for is not there: a package, a cluster, free CPUs, GPUs, or
    this version of the package on each worker.
    """
    module = import_module(f"store.launch.on_{name}")
    engine: AbstractContextManager[Engine] = module.open_engine(workers)
    return engine


def check_workers(answers: Mapping[str, object]) -> None:
    """Raise NotFoundError for a worker that would make another part than this process.

    `answers` has what `store.launch.task.make_check` says there, or the exception that ended it.
    """
    for worker, found in answers.items():
        if found:
            raise NotFoundError(f"worker {worker}: {in_one_line(found)}")
