"""What a launch needs of an engine: workers that run parts.

Engines are opened by name, so that Ray and Dask are imported only where they are asked for. SLURM
is none of them: it has a queue of its own (`store.launch.slurm`).
"""

from concurrent.futures import Future
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from store.launch.job import Task

__all__ = ["CONNECT_S", "ENGINES", "MISTAKE", "Engine", "Workers", "open_engine"]

ENGINES = ("processes", "ray", "dask", "slurm")
CONNECT_S = 6.0  # in which a cluster has to answer; the packages are loaded before that
MISTAKE = 2  # exit status of a command that no other attempt mends


@dataclass(frozen=True)
class Workers:
    """What was asked for.

    Attributes
    ----------
    n
        How many parts at once; None for what is free.
    most
        More than that are of no use.
    gpus_per_part
        GPUs that each part has for itself.
    address
        Of a cluster that is there; None for one on this machine.
    """

    n: int | None
    most: int
    gpus_per_part: int = 0
    address: str | None = None


class Engine(Protocol):
    """Workers that are there; parts beyond `n_workers` would only wait."""

    n_workers: int

    def submit(self, task: Task) -> Future[int]:
        """Make an attempt at a part; the result is its exit status, -n if signal n ended it."""
        ...

    def close(self) -> None:
        """End what is running, and leave the cluster."""
        ...


def open_engine(name: str, workers: Workers) -> Engine:
    """Open an engine of `ENGINES` but slurm.

    Raises StoreError if what was asked for is not there: a package, a cluster, free CPUs, GPUs.
    """
    module = import_module(f"store.launch.on_{name}")
    return module.open_engine(workers)
