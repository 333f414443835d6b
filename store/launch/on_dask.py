"""The engine `dask`: each part is a task of a Dask cluster, which runs its command as a process."""

import logging
from concurrent.futures import Future
from typing import Any

from store.errors import SchemaError
from store.extras import needs_extra
from store.launch.cluster import (
    check_answers,
    check_reachable,
    launch_folder,
    make_probe,
    refuse_address,
    refuse_busy,
)
from store.launch.engine import CONNECT_S, Workers
from store.launch.job import Task
from store.launch.task import run_task, stop_tasks

with needs_extra("dask", "the extra dask is missing (pip install '.[dask]' in the checkout): "):
    import distributed
    from dask.system import CPU_COUNT

__all__ = ["DaskTasks", "open_engine"]

GPU = "GPU"  # what workers of Dask call it: dask worker --resources GPU=1


class DaskTasks:
    """Tasks of Dask; the launch tries again itself, so that one place counts the attempts."""

    def __init__(
        self,
        client: distributed.Client,
        cluster: distributed.LocalCluster | None,
        n_workers: int,
        gpus_per_part: int,
    ) -> None:
        self.n_workers = n_workers
        self._client = client
        self._cluster = cluster
        resources = {GPU: gpus_per_part} if gpus_per_part else None
        self._tasks = client.get_executor(pure=False, retries=0, resources=resources)

    def submit(self, task: Task) -> Future[int]:
        return self._tasks.submit(run_task, task)

    def close(self) -> None:
        """Ask the running parts to end, and leave the cluster."""
        if self._client.status == "running":
            self._tasks.shutdown(wait=False)  # cancels them
            self._client.run(stop_tasks, on_error="ignore")
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


def open_engine(workers: Workers) -> DaskTasks:
    """Start Dask on this machine, or connect to a cluster; raises StoreError if it has no room."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # it reports what we report
    cluster = None if workers.address else _local_cluster(workers)
    client = _connect(workers.address, cluster)
    try:
        n_free = _check_room(client, workers.gpus_per_part)
        check_answers(client.run(make_probe(), launch_folder(), on_error="return"))
    except BaseException:
        client.close()
        if cluster is not None:
            cluster.close()
        raise
    n_workers = min(workers.n or n_free, workers.most)
    return DaskTasks(client, cluster, n_workers, workers.gpus_per_part)


def _local_cluster(workers: Workers) -> distributed.LocalCluster:
    if workers.gpus_per_part:
        raise SchemaError(
            "--gpus-per-part: expected --address of a Dask cluster whose workers have GPUs, found "
            "none; on this machine choose --engine processes"
        )
    n = workers.n or CPU_COUNT
    return distributed.LocalCluster(
        n_workers=min(n, workers.most),
        threads_per_worker=1,
        dashboard_address=None,
        silence_logs=logging.CRITICAL,
    )


def _connect(address: str | None, cluster: distributed.LocalCluster | None) -> distributed.Client:
    if address is None:
        return distributed.Client(cluster)
    check_reachable(address.removeprefix("tcp://"), CONNECT_S)
    try:
        return distributed.Client(address, timeout=CONNECT_S)
    except (OSError, TimeoutError, ValueError) as error:
        raise refuse_address(address, error) from error


def _check_room(client: distributed.Client, gpus_per_part: int) -> int:
    """Return for how many parts there is room now; raises SchemaError if there is for none."""
    n_threads: dict[str, int] = client.nthreads()
    busy = {worker: len(keys) for worker, keys in client.processing().items()}
    free = {worker: max(0, n - busy.get(worker, 0)) for worker, n in n_threads.items()}
    found = f"{sum(free.values())} of {sum(n_threads.values())} threads free"
    if gpus_per_part:
        n_gpus = _gpus(client)
        found += f", {sum(n_gpus.values()):g} GPUs in the workers' --resources"
        fit = {worker: int(n_gpus.get(worker, 0) // gpus_per_part) for worker in free}
        free = {worker: min(n, fit[worker]) for worker, n in free.items()}
    if not any(free.values()):
        raise refuse_busy("dask", found)
    return sum(free.values())


def _gpus(client: distributed.Client) -> dict[str, float]:
    """The GPUs that workers have declared; the scheduler may not have this package."""

    def declared(dask_scheduler: Any) -> dict[str, dict[str, float]]:
        workers = dask_scheduler.workers.items()
        return {address: dict(worker.resources) for address, worker in workers}

    resources = client.run_on_scheduler(declared)
    return {worker: has.get(GPU, 0) for worker, has in resources.items()}
