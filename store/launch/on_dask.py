"""The engine `dask`: each part is a task of a Dask cluster, which runs its command as a process."""

import logging
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from store.errors import SchemaError
from store.extras import needs_extra, version_text
from store.launch.engine import CONNECT_S, Workers, check_workers
from store.launch.job import Task
from store.launch.task import end_tasks, make_check, run_task

with needs_extra("dask"):
    import distributed
    from dask.system import CPU_COUNT

__all__ = ["DaskTasks", "open_engine"]

GPU = "GPU"  # what workers of Dask call it: dask worker --resources GPU=1


class DaskTasks:
    """Tasks of Dask, which are run again where they fail, or their worker is lost."""

    def __init__(self, client: distributed.Client, opened: ExitStack, workers: Workers) -> None:
        self.n_workers = _n_workers(client, workers)
        check = make_check(version_text(), str(Path.cwd()))
        check_workers(client.run(check, on_error="return"))
        resources = {GPU: workers.gpus_per_part} if workers.gpus_per_part else None
        self._tasks = client.get_executor(pure=False, retries=workers.retries, resources=resources)
        self._client = client
        self._opened = opened.pop_all()

    def submit(self, task: Task) -> Future[int]:
        return self._tasks.submit(run_task, task)

    def close(self) -> None:
        """End the running parts, and leave the cluster."""
        with self._opened:
            if self._client.status == "running":
                self._tasks.shutdown(wait=False)  # cancels them
                self._client.run(end_tasks, on_error="ignore")


def open_engine(workers: Workers) -> DaskTasks:
    """Start Dask on this machine, or connect to a cluster; raises StoreError if it has no room."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # it reports what we report
    with ExitStack() as opened:
        place = workers.address or opened.enter_context(_local_cluster(workers))
        try:
            client = opened.enter_context(distributed.Client(place, timeout=CONNECT_S))
        except (OSError, TimeoutError, ValueError) as error:
            raise workers.no_answer(error) from error
        return DaskTasks(client, opened, workers)


def _local_cluster(workers: Workers) -> distributed.LocalCluster:
    if workers.gpus_per_part:
        raise SchemaError(
            "--gpus-per-part: expected --address of a Dask cluster whose workers have GPUs, found "
            "none; on this machine choose --engine processes"
        )
    return distributed.LocalCluster(
        n_workers=min(workers.n or CPU_COUNT, workers.most),
        threads_per_worker=1,
        dashboard_address=None,
        silence_logs=logging.CRITICAL,
    )


def _n_workers(client: distributed.Client, workers: Workers) -> int:
    """For how many parts there is room now; raises SchemaError if there is for none."""

    # in a function, so that it travels as code: the scheduler may not have this package
    def free(dask_scheduler: Any) -> list[tuple[int, float]]:
        states = dask_scheduler.workers.values()
        return [(one.nthreads - len(one.processing), one.resources.get("GPU", 0)) for one in states]

    room = client.run_on_scheduler(free)
    per_part = workers.gpus_per_part
    n_free = [max(0, min(n, n_gpus // per_part if per_part else n)) for n, n_gpus in room]
    gpus = f", {sum(n for _, n in room):g} GPUs in the workers' --resources" if per_part else ""
    return workers.at_once(int(sum(n_free)), f"{sum(n for n, _ in room)} threads free{gpus}")
