"""Loaders and samplers of processes that train together, which torch.distributed numbers."""

import json
import os
import socket
from functools import partial
from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist
from faults import start, wait
from small import one_column
from torch.utils.data import DataLoader

from store import GlobalShuffleSampler, TraceDataset, TraceLoader

N_ROWS = 33  # of two ranks with batches of 8: cut plainly, rank 1 would have a batch less
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    return one_column(folder / "s.zarr", "x", "int32", range(N_ROWS)).path


def feed(path, kind, **options):
    if kind == "loader":
        return TraceLoader(path, ["x"], 8, shuffle=True, **options)
    dataset = TraceDataset(path, ["x"])
    sampler = GlobalShuffleSampler(dataset, **options)
    return DataLoader(dataset, 9, sampler=sampler, collate_fn=lambda batch: batch)


def rows_of(batches):
    return [batch.rows.tolist() for batch in batches]


def train(path):
    """The rows of the steps of this process, and the weight that they end with."""
    batches = feed(path, "loader")  # made before the process group
    assert len(batches) == 5
    dist.init_process_group("gloo")
    assert len(batches) == 3
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    seen = []
    for batch in batches:
        seen.append(batch.rows.tolist())
        optimizer.zero_grad()
        model(batch["x"].float()[:, None]).square().mean().backward()
        optimizer.step()
    assert len(rows_of(feed(path, "loader", rank=0, world_size=1))) == 5
    dist.barrier()
    dist.destroy_process_group()
    return seen, model.module.weight.item()


def share_by_fabric(path, kind):
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2)
    fabric.launch()
    batches = feed(path, kind) if kind == "loader" else feed(path, kind, drop_last=False)
    found = rows_of(batches if kind == "loader" else fabric.setup_dataloaders(batches))
    fabric.barrier()
    return found, 0.0


def share_by_accelerate(path, kind):
    """Which shares the batches of a DataLoader by itself."""
    from accelerate import Accelerator, DataLoaderConfiguration

    options = DataLoaderConfiguration(even_batches=False)
    accelerator = Accelerator(cpu=True, dataloader_config=options)
    return rows_of(accelerator.prepare(feed(path, kind))), 0.0


def run(folder, work):
    """Have two forked processes work, numbered as torchrun does: the batches of each. They end with
    the same weight, and have no row on both, and all rows on one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    numbers = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}

    def in_rank(rank):
        names = ("RANK", "LOCAL_RANK")
        os.environ |= address | numbers | dict.fromkeys(names, str(rank))
        (folder / f"{rank}.json").write_text(json.dumps(work()))

    children = [start(partial(in_rank, rank)) for rank in range(2)]
    assert [wait(child) for child in children] == [0, 0]
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    shares, weights = zip(*found, strict=True)
    assert weights[0] == weights[1]
    assert sorted(row for share in shares for batch in share for row in batch) == [*range(N_ROWS)]
    return shares


def test_a_plain_loop_ends_on_all_ranks_with_the_same_weights(path, tmp_path):
    """As many batches on each, in a loader that was made before the process group."""
    shares = run(tmp_path, partial(train, path))
    assert [list(map(len, share)) for share in shares] == [[8, 7, 2], [8, 7, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loader", "sampler"])
@pytest.mark.parametrize("share", [share_by_fabric, share_by_accelerate])
def test_processes_of_others_share_the_rows(path, tmp_path, kind, share):
    if share is share_by_accelerate and not find_spec("accelerate"):
        pytest.skip("accelerate is not installed")
    run(tmp_path, partial(share, path, kind))
