"""What a launch needs of an engine: workers, to which it gives one part at a time each.

Engines are opened by name, so that Ray and Dask are imported only where they are asked for. SLURM
is none of them: it has a queue of its own (`store.launch.slurm`).
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from store.launch.job import Task

__all__ = ["CONNECT_S", "ENGINES", "MISTAKE", "Ended", "Engine", "Workers", "open_engine"]

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


@dataclass(frozen=True)
class Ended:
    """The end of an attempt at a part.

    Attributes
    ----------
    status
        Its exit status, -n if signal n ended it; None if its worker is gone, or it has not begun.
    message
        What the engine says about it, if it does.
    """

    part: int
    status: int | None
    message: str = ""

    def text(self) -> str:
        """Say how it ended, in a few words."""
        if self.status is None:
            return f"no worker has it: {self.message}"
        if self.status < 0:
            return f"ended by signal {-self.status}"
        return f"exit status {self.status}"


class Engine(Protocol):
    """Workers that are there: `n_workers` parts run at once, and no more are started."""

    n_workers: int

    def start(self, task: Task) -> None:
        """Start an attempt at a part, on a worker that is free."""
        ...

    def wait(self, timeout_s: float) -> list[Ended]:
        """Return the attempts that have ended, once there is one or the time is over."""
        ...

    def close(self) -> None:
        """End what is still at work, and leave the cluster."""
        ...


def open_engine(name: str, workers: Workers) -> Engine:
    """Open an engine of `ENGINES` but slurm.

    Raises StoreError if what was asked for is not there: a package, a cluster, free CPUs, GPUs.
    """
    module = import_module(f"store.launch.on_{name}")
    return module.open_engine(workers)
