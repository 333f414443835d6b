"""The engine `ray`: each part is a task of a Ray cluster, which runs its command as a process."""

import logging
import multiprocessing
import os
import signal
import time
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from store.errors import SchemaError, StoreError
from store.extras import needs_extra
from store.launch.cluster import (
    check_answers,
    check_reachable,
    launch_folder,
    make_probe,
    one_line,
    refuse_address,
    refuse_busy,
)
from store.launch.engine import CONNECT_S, Workers
from store.launch.job import Task
from store.launch.task import run_task

with needs_extra("ray", "the extra ray is missing (pip install '.[ray]' in the checkout): "):
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

__all__ = ["RayTasks", "open_engine"]

PROBE_S = 60.0  # in which a node has to start a first process
# A server of gRPC answers the beginning of HTTP/2 with its settings (RFC 9113, section 3.4), at
# once; to connect as Ray does takes seconds, and a busy machine may take more than it should wait.
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
SETTINGS = b"\4\0\0\0\0\0"  # of the first frame: type, flags, the stream 0


class RayTasks:
    """Tasks of Ray; the launch tries again itself, so that one place counts the attempts."""

    def __init__(self, n_workers: int, gpus_per_part: int) -> None:
        self.n_workers = n_workers
        self._run = ray.remote(num_cpus=1, num_gpus=gpus_per_part, max_retries=0)(run_task)

    def submit(self, task: Task) -> Future[int]:
        result: Future[int] = self._run.remote(task).future()
        return result

    def close(self) -> None:
        """Leave the cluster, which ends our workers; their parts end with them."""
        ray.shutdown()


def open_engine(workers: Workers) -> RayTasks:
    """Start Ray on this machine, or connect to a cluster; raises StoreError if it has no room."""
    on_sigterm = signal.getsignal(signal.SIGTERM)
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if workers.address is None:
        n_cpus = workers.n and min(workers.n, workers.most)
        # without an address Ray would join a cluster that someone else has started here
        ray.init(address="local", num_cpus=n_cpus, include_dashboard=False, **settings)
    else:
        _connect(workers.address, settings)
    # Ray's own handler would end this process where it stands
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        n_free = _check_room(workers.gpus_per_part)
        check_answers(_probe_nodes())
    except BaseException:
        ray.shutdown()
        raise
    return RayTasks(min(workers.n or n_free, workers.most), workers.gpus_per_part)


def _connect(address: str, settings: dict[str, Any]) -> None:
    """Connect to a cluster; raises NotFoundError where Ray would wait for minutes, then exit."""
    end_s = time.monotonic() + CONNECT_S
    if "://" in address:
        raise SchemaError(
            f"--address: expected HOST:PORT of the cluster's head, or auto, found {address!r:.100}"
        )
    if address != "auto":
        greeting = b"" if os.environ.get("RAY_USE_TLS", "0") == "1" else HTTP2
        check_reachable(address, CONNECT_S, greeting, SETTINGS)
        _check_is_ray(address, end_s - time.monotonic())
    try:
        ray.init(address=address, **settings)
    except (ConnectionError, RuntimeError, ValueError, SystemExit) as error:
        raise refuse_address(address, f"{error}; does it need RAY_AUTH_MODE=token?") from error


def _check_is_ray(address: str, timeout_s: float) -> None:
    """Raise NotFoundError unless a server of gRPC is the head of a cluster.

    Ray's client asks it, as that knows about tokens and TLS; but it asks for minutes, and nothing
    interrupts it. So it asks in a process that can be killed: a forked one, as a new one would take
    seconds to import Ray, 9 of them on a busy machine. The answer itself takes less than 0.2 s
    there.
    """
    forking = multiprocessing.get_context("fork")
    answers, sender = forking.Pipe(duplex=False)
    process = forking.Process(target=_ask, args=(address, sender), daemon=True)
    process.start()
    sender.close()
    try:
        if not answers.poll(max(0.0, timeout_s)):
            raise refuse_address(address, f"nothing of Ray's in {CONNECT_S:.0f} s")
        problem = answers.recv()
    except EOFError as error:
        raise refuse_address(address, "an answer that ended Ray's client") from error
    finally:
        process.kill()
        process.join()
        answers.close()
    if problem:
        raise refuse_address(address, problem)


def _ask(address: str, sender: Connection) -> None:
    """Send what is wrong with a cluster; nothing if it answers."""
    with Path(os.devnull).open("w") as nowhere:  # what Ray's client prints is no line of ours
        os.dup2(nowhere.fileno(), 2)
    try:
        from ray._raylet import GcsClient
    except ImportError:  # another version of Ray, which has to find out for itself
        sender.send("")
        return
    try:
        GcsClient(address=address)
    except ray.exceptions.RayError as error:
        sender.send(one_line(error))
    else:
        sender.send("")


def _check_room(gpus_per_part: int) -> int:
    """Return for how many parts there is room now; raises SchemaError if there is for none."""
    all_of = ray.cluster_resources()
    free = ray.available_resources()
    n_free = int(free.get("CPU", 0))
    found = f"{n_free} of {int(all_of.get('CPU', 0))} CPUs free"
    if gpus_per_part:
        n_gpus = int(free.get("GPU", 0))
        found += f", {n_gpus} of {int(all_of.get('GPU', 0))} GPUs free"
        n_free = min(n_free, n_gpus // gpus_per_part)
    if n_free < 1:
        raise refuse_busy("ray", found)
    return n_free


def _probe_nodes() -> dict[str, object]:
    """What each node that can run parts answers."""
    probe = ray.remote(num_cpus=0, max_retries=0)(make_probe())
    asked = {}
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU"):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            answer = probe.options(scheduling_strategy=there).remote(launch_folder())
            asked[node["NodeManagerAddress"]] = answer
    answers: dict[str, object] = {}
    for name, answer in asked.items():
        try:
            answers[name] = ray.get(answer, timeout=PROBE_S)
        except (ray.exceptions.RayError, StoreError) as error:
            answers[name] = error
    return answers
