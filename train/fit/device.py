"""Device, processes, precision and compilation of detectors, with Lightning Fabric."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Literal, cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from train.config import Config
from train.errors import ConfigError, PeerError, ResourceError

__all__ = [
    "build_fabric",
    "compile_detector",
    "cpu_arithmetic",
    "default_threads",
    "for_a_batch",
    "gather_rows",
    "launched",
    "memory_enough",
]

# what gloo and NCCL say where the other end of a connection is gone
LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
)
# The first process fits baselines while the others wait for it, in the first collective.
COLLECTIVES_LIMIT = timedelta(days=1)
Precision = Literal["32", "bf16-mixed", "16-mixed"]


@contextmanager
def launched(config: Config) -> Iterator[Fabric]:
    """The Fabric of a run; processes leave their group at the end: its threads would abort them.

    Raises PeerError if another process has ended, for a reason that its own message says.
    """
    fabric = build_fabric(config)
    try:
        yield fabric
    except RuntimeError as error:
        if fabric.world_size == 1 or not any(text in str(error) for text in LOST_PEER):
            raise
        raise PeerError(
            "another process has ended, on this host or another; its own message says why. "
            "--resume continues"
        ) from error
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def build_fabric(config: Config) -> Fabric:
    """Build and launch the Fabric of a run: one device, or one for each process of torchrun.

    Raises ConfigError if the processes cannot share a batch evenly, or the device lacks the
    precision.
    """
    n_processes = int(os.environ.get("WORLD_SIZE", "1"))
    n_local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if config.batch_size % n_processes:
        raise ConfigError(
            f"--batch-size: expected a multiple of the {n_processes} processes that share each "
            f"batch, found {config.batch_size}"
        )
    n_hosts = int(os.environ.get("GROUP_WORLD_SIZE", n_processes // n_local))
    if n_hosts * n_local != n_processes:
        raise ConfigError(
            f"torchrun: expected the same --nproc-per-node on all {n_hosts} hosts, found {n_local} "
            f"on this one of {n_processes} processes in all"
        )
    accelerator = "cpu" if config.force_cpu or not torch.cuda.is_available() else "cuda"
    n_gpus = torch.cuda.device_count()
    if accelerator == "cuda" and n_local > n_gpus:
        raise ConfigError(
            f"torchrun: expected at most {n_gpus} processes, one for each GPU, found {n_local}; "
            "start fewer, or add --force-cpu"
        )
    fabric = Fabric(
        accelerator=accelerator,
        devices=n_local,
        num_nodes=n_hosts,
        strategy=DDPStrategy(timeout=COLLECTIVES_LIMIT) if n_processes > 1 else "auto",
        precision=choose_precision(config, accelerator),
    )
    fabric.launch()
    return fabric


def _cpu_has_bf16() -> bool:
    """Whether an LSTM can compute in bfloat16 here: where the CPU has no such numbers, torch has
    none, and says so only when it is called."""
    try:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            torch.nn.LSTM(1, 1)(torch.zeros(1, 1, 1))
    except RuntimeError:
        return False
    return True


def choose_precision(config: Config, accelerator: str) -> Precision:
    """The precision as configured; auto: bf16-mixed on GPUs that have it (from Ampere on) or 32."""
    if config.precision == "16-mixed" and accelerator == "cpu":
        raise ConfigError("--precision: expected 32 or bf16-mixed on a CPU, found '16-mixed'")
    if config.precision == "bf16-mixed" and accelerator == "cpu" and not _cpu_has_bf16():
        raise ConfigError(
            "--precision: expected 32 on this CPU, which has no bfloat16 for LSTMs, found "
            "'bf16-mixed'"
        )
    if config.precision != "auto":
        return cast(Precision, config.precision)
    has_bf16 = accelerator == "cuda" and torch.cuda.get_device_capability() >= (8, 0)
    return "bf16-mixed" if has_bf16 else "32"


def compile_detector(detector: nn.Module) -> nn.Module:
    """The detector compiled, but for loops, which take minutes: LSTMs, and modules of `is_loop`."""
    for module in detector.modules():
        if isinstance(module, nn.LSTM) or getattr(module, "is_loop", False):
            module.forward = torch.compiler.disable(module.forward)
    return cast(nn.Module, torch.compile(detector, dynamic=True))


def gather_rows(fabric: Fabric, mine: Tensor, n_rows: int) -> Tensor:
    """The values (n_rows,) of all rows, on every process.

    `mine` are those of this process: of the rows rank, rank + world_size, ...
    """
    if fabric.world_size == 1:
        return mine
    n_most = math.ceil(n_rows / fabric.world_size)
    padded = torch.cat([mine, mine.new_zeros(n_most - len(mine))]).to(fabric.device)
    parts = [torch.empty_like(padded) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(parts, padded)  # Fabric's warns that it is deprecated
    return torch.stack(parts, dim=1).reshape(-1)[:n_rows].to(mine.device)


def for_a_batch(config: Config) -> str:
    """What a training needs memory for, and what to do if there is too little."""
    return (
        f"a batch of {config.batch_size} traces; lower --batch-size (and raise --grad-accum, which "
        "keeps the optimizer steps the same), or add --use-gradient-checkpointing"
    )


@contextmanager
def memory_enough(name: str, purpose: str) -> Iterator[None]:
    """Turn an error for lack of memory into a ResourceError.

    `purpose` says what the memory is for, and after a semicolon what to do.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        is_full = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not is_full and "can't allocate memory" not in str(error):
            raise
        raise ResourceError(f"{name}: out of memory for {purpose}") from error


WIDE = 1024  # hidden size from which layers are large enough to share among threads


def default_threads(hidden_size: int) -> int:
    """One thread for narrow models, every core for wide ones.

    Threads wait for each other after every operation, and small operations are mostly waiting: at d
    = 128 a step of gnn_det_lstm takes 39 ms with one thread; with two it takes about 30 on two idle
    cores, but 2,000 where another process holds one of them.
    """
    return 1 if hidden_size < WIDE else torch.get_num_threads()


@contextmanager
def cpu_arithmetic(n_threads: int) -> Iterator[None]:
    """Use `n_threads` and treat denormal numbers as zero inside the block.

    Gradients that fade on their way through an LSTM become denormal, and the CPU is many times
    slower with those: a step of gnn_det_lstm takes 37 ms without them, 69 with.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    torch.set_flush_denormal(True)
    try:
        with threadpool_limits(n_threads):  # NumPy's and scikit-learn's own
            yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
