"""The engine `dask`: each part is a task of a Dask cluster, which runs its command as a process."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from store.errors import SchemaError
from store.extras import needs_extra, version_text
from store.launch.engine import CONNECT_S, Engine, Workers, check_workers
from store.launch.task import end_tasks, make_check, run_task

with needs_extra("dask"):
    import distributed
    from dask.system import CPU_COUNT

__all__ = ["open_engine"]

GPU = "GPU"  # what workers of Dask call it: dask worker --resources GPU=1


@contextmanager
def open_engine(workers: Workers) -> Iterator[Engine]:
    """Start Dask on this machine, or connect to a cluster; raises StoreError if it has no room.

    A part is run again where it fails, or its worker is lost, by Dask.
    """
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # it reports what we report
    with ExitStack() as opened:
        place = workers.address or opened.enter_context(_local_cluster(workers))
        try:
            client = opened.enter_context(distributed.Client(place, timeout=CONNECT_S))
        except (OSError, TimeoutError, ValueError) as error:
            raise workers.no_answer(error) from error
        n_workers = _n_workers(client, workers)
        check = make_check(version_text(), str(Path.cwd()))
        check_workers(client.run(check, on_error="return"))
        resources = {GPU: workers.gpus_per_part} if workers.gpus_per_part else None
        tasks = client.get_executor(pure=False, retries=workers.retries, resources=resources)
        try:
            yield Engine(n_workers, partial(tasks.submit, run_task))
        finally:
            if client.status == "running":
                tasks.shutdown(wait=False)  # cancels them
                client.run(end_tasks, on_error="ignore")


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
