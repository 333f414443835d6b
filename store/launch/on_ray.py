"""The engine `ray`: each part is a task of a Ray cluster, which runs its command as a process."""

import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from store.extras import needs_extra, version_text
from store.launch.engine import CONNECT_S, Engine, Workers, check_workers
from store.launch.task import AttemptError, make_check, run_task

with needs_extra("ray"):
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

__all__ = ["open_engine"]

PROBE_S = 60.0  # in which a node has to start a first process


@contextmanager
def open_engine(workers: Workers) -> Iterator[Engine]:
    """Start Ray on this machine, or connect to a cluster; raises StoreError if it has no room.

    A part is run again where it fails, or its worker is lost, by Ray; in the end Ray ends our
    workers, and the parts end with them.
    """
    on_sigterm = signal.getsignal(signal.SIGTERM)
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if workers.address is None:
        n_cpus = workers.n and min(workers.n, workers.most)
        # without an address Ray would join a cluster that someone else has started here
        ray.init(address="local", num_cpus=n_cpus, include_dashboard=False, **settings)
    else:
        _connect(workers, settings)
    # Ray's own handler would end this process where it stands
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        n_workers = _n_workers(workers)
        check_workers(_ask_nodes())
        run = ray.remote(
            num_cpus=1,
            num_gpus=workers.gpus_per_part,
            max_retries=workers.retries,
            retry_exceptions=[AttemptError],
        )(run_task)
        yield Engine(n_workers, lambda task: run.remote(task).future())
    finally:
        ray.shutdown()


def _connect(workers: Workers, settings: dict[str, Any]) -> None:
    """Connect to a cluster; raises NotFoundError where Ray would wait for minutes, then exit.

    Nothing interrupts Ray's client while it asks. So it asks first in a process that can be killed:
    a forked one, as a new one would take seconds to import Ray. The answer itself takes less than
    0.2 s on a busy machine.
    """
    if workers.address != "auto":
        forking = multiprocessing.get_context("fork")
        process = forking.Process(target=_ask, args=[workers.address], daemon=True)
        process.start()
        process.join(CONNECT_S)
        process.kill()
        process.join()
        if process.exitcode:
            raise workers.no_answer(f"nothing of Ray's in {CONNECT_S:.0f} s")
    try:
        ray.init(address=workers.address, **settings)
    except (ConnectionError, RuntimeError, ValueError, SystemExit) as error:
        raise workers.no_answer(f"{error}; does it need RAY_AUTH_MODE=token?") from error


def _ask(address: str) -> None:
    """Ask the head of a cluster for its id, as Ray's client knows about tokens and TLS."""
    with Path(os.devnull).open("w") as nowhere:  # what Ray's client prints is no line of ours
        os.dup2(nowhere.fileno(), 2)
    with suppress(ImportError):  # another version of Ray, which has to find out for itself
        from ray._raylet import GcsClient

        GcsClient(address=address)


def _n_workers(workers: Workers) -> int:
    """For how many parts there is room now; raises SchemaError if there is for none."""
    free = ray.available_resources()
    n_free = int(free.get("CPU", 0))
    found = f"{n_free} CPUs free"
    if workers.gpus_per_part:
        n_gpus = int(free.get("GPU", 0))
        n_free = min(n_free, n_gpus // workers.gpus_per_part)
        found += f", {n_gpus} GPUs free"
    return workers.at_once(n_free, found)


def _ask_nodes() -> dict[str, object]:
    """What each node that can run parts lacks."""
    check = ray.remote(num_cpus=0, max_retries=0)(make_check(version_text(), str(Path.cwd())))
    asked = {}
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU"):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[node["NodeManagerAddress"]] = check.options(scheduling_strategy=there).remote()
    answers: dict[str, object] = {}
    for name, answer in asked.items():
        try:
            answers[name] = ray.get(answer, timeout=PROBE_S)
        except ray.exceptions.RayError as error:
            answers[name] = error
    return answers
