"""Where and how detectors compute: device, processes, precision and compilation, all of them
Lightning Fabric's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch import Tensor, nn

from train.config import Config
from train.errors import ConfigError, ResourceError

__all__ = [
    "build_fabric",
    "compile_detector",
    "for_a_batch",
    "gather_rows",
    "launched",
    "memory_enough",
]


@contextmanager
def launched(config: Config) -> Iterator[Fabric]:
    """The Fabric of a run; processes that torchrun started part in order: threads that live on
    would abort them."""
    fabric = build_fabric(config)
    try:
        yield fabric
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def build_fabric(config: Config) -> Fabric:
    """Build and launch the Fabric of a run: one device, or one for each process that torchrun
    started.

    Raises
    ------
    ConfigError
        If the processes cannot share a batch evenly, or the device lacks the precision.
    """
    n_processes = int(os.environ.get("WORLD_SIZE", "1"))
    n_local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if config.batch_size % n_processes:
        raise ConfigError(
            f"--batch-size: expected a multiple of the {n_processes} processes that share each batch, "
            f"found {config.batch_size}"
        )
    accelerator = "cpu" if config.force_cpu or not torch.cuda.is_available() else "cuda"
    if accelerator == "cuda" and n_local > torch.cuda.device_count():
        raise ConfigError(
            f"torchrun: expected at most {torch.cuda.device_count()} processes, one for each GPU, found {n_local}; "
            "start fewer, or add --force-cpu"
        )
    fabric = Fabric(
        accelerator=accelerator,
        devices=n_local,
        num_nodes=n_processes // n_local,
        # The first process fits baselines while the others wait for it, in the first collective.
        strategy=DDPStrategy(timeout=timedelta(days=1)) if n_processes > 1 else "auto",
        precision=choose_precision(config, accelerator),
    )
    fabric.launch()
    return fabric


def choose_precision(config: Config, accelerator: str) -> str:
    """The precision asked for; else bf16-mixed on GPUs that compute in it (from Ampere on), and
    32."""
    if config.precision == "16-mixed" and accelerator == "cpu":
        raise ConfigError("--precision: expected 32 or bf16-mixed on a CPU, found '16-mixed'")
    if config.precision != "auto":
        return config.precision
    gains = accelerator == "cuda" and torch.cuda.get_device_capability() >= (8, 0)
    return "bf16-mixed" if config.amp and gains else "32"


def compile_detector(detector: nn.Module) -> nn.Module:
    """The detector compiled, but for loops that the compiler unrolls for minutes: LSTMs, and what
    is marked as one."""
    for module in detector.modules():
        if isinstance(module, nn.LSTM) or getattr(module, "is_loop", False):
            module.forward = torch.compiler.disable(module.forward)
    return torch.compile(detector, dynamic=True)


def gather_rows(fabric: Fabric, mine: Tensor, n_rows: int) -> Tensor:
    """The values (n_rows,) of all rows, on every process; `mine` are those of rows rank, rank +
    world_size, ..."""
    if fabric.world_size == 1:
        return mine
    n_most = -(-n_rows // fabric.world_size)
    padded = torch.cat([mine, mine.new_zeros(n_most - len(mine))]).to(fabric.device)
    parts = [torch.empty_like(padded) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(parts, padded)
    return torch.stack(parts, dim=1).reshape(-1)[:n_rows].to(mine.device)


def for_a_batch(config: Config) -> str:
    """What a training needs memory for, and what to lower where there is too little."""
    return (
        f"a batch of {config.batch_size} traces; lower --batch-size (and raise --grad-accum, which keeps the steps the "
        "same), or add --use-gradient-checkpointing"
    )


@contextmanager
def memory_enough(name: str, purpose: str) -> Iterator[None]:
    """Turn the errors of a device whose memory is full into a ResourceError: what it is for, and
    what to lower."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        full = isinstance(
            error, torch.OutOfMemoryError | MemoryError
        ) or "can't allocate memory" in str(error)
        if not full:
            raise
        needed, _, way_out = purpose.partition("; ")
        raise ResourceError(
            f"{name}: expected memory for {needed}, found it full; {way_out}"
        ) from error
