"""Loaders and samplers of processes that train together, which torch.distributed numbers."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from store import Column, Schema, StoreWriter

N_ROWS = 33  # of two ranks with batches of 8: cut plainly, rank 1 would have a batch less

LOOP = """
import json, sys
from store import GlobalShuffleSampler, TraceDataset, TraceLoader
path, kind, out = sys.argv[1:]
def feed(**options):
    if kind == "loader":
        return TraceLoader(path, ["x"], 8, shuffle=True, **options)
    from torch.utils.data import DataLoader
    dataset = TraceDataset(path, ["x"])
    sampler = GlobalShuffleSampler(dataset, **options)
    return DataLoader(dataset, 9, sampler=sampler, collate_fn=lambda batch: batch)
def rows_of(batches):
    return [batch.rows.tolist() for batch in batches]
def save(rank, batches, weight=0.0):
    with open(f"{out}-{rank}.json", "w") as file:
        json.dump([batches, weight], file)
"""
DDP = """
import torch
import torch.distributed as dist
batches = feed()  # made before the process group
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
weight = model.module.weight.item()
assert len(rows_of(feed(rank=0, world_size=1))) == 5
save(dist.get_rank(), seen, weight)
dist.barrier()
dist.destroy_process_group()
"""
FABRIC = """
from lightning_fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=2)
fabric.launch()
batches = feed() if kind == "loader" else fabric.setup_dataloaders(feed(drop_last=False))
save(fabric.global_rank, rows_of(batches))
fabric.barrier()
"""
ACCELERATE = """
from accelerate import Accelerator, DataLoaderConfiguration
accelerator = Accelerator(
    cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False)
)
save(accelerator.process_index, rows_of(accelerator.prepare(feed())))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("processes") / "s.zarr"
    with StoreWriter.create(path, Schema({"x": Column("int32")})) as writer:
        for row in range(N_ROWS):
            writer.append(str(row), {"x": row})
    return path


def run(script, path, kind, folder, in_torchrun):
    """Run a script in two processes: the batches of each, and the weight that each ends with."""
    (folder / "loop.py").write_text(LOOP + script)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*(torchrun if in_torchrun else []), folder / "loop.py", path, kind, folder / "rank"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert found[0][1] == found[1][1]
    return [batches for batches, _ in found]


def assert_shared(shares):
    """No row on both ranks, and all rows on one."""
    rows = [row for share in shares for batch in share for row in batch]
    assert sorted(rows) == list(range(N_ROWS))


def test_a_plain_loop_ends_on_all_ranks_with_the_same_weights(path, tmp_path):
    """As many batches on each, in a loader that was made before the process group."""
    shares = run(DDP, path, "loader", tmp_path, in_torchrun=True)
    assert_shared(shares)
    assert [list(map(len, share)) for share in shares] == [[8, 7, 2], [8, 7, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loader", "sampler"])
def test_processes_of_fabric_share_the_rows(path, tmp_path, kind):
    assert_shared(run(FABRIC, path, kind, tmp_path, in_torchrun=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loader", "sampler"])
@pytest.mark.skipif(not find_spec("accelerate"), reason="accelerate is not installed")
def test_processes_of_accelerate_share_the_rows(path, tmp_path, kind):
    """Which shares the batches of a DataLoader by itself."""
    assert_shared(run(ACCELERATE, path, kind, tmp_path, in_torchrun=True))
