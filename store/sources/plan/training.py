"""What a training reads of a store, and how to read it on a machine. Pure.

An epoch reads every byte of its columns once, in a random order. What fits into the memory that is
free stays in the page cache; of the rest the disk gives what it can. Only the limit of small rows
is measured; the other shares and numbers are choices, and `docs/speed.md` says what can be tuned.
"""

from collections.abc import Sequence
from typing import NamedTuple

from store.sources.plan.machine import Machine

__all__ = ["Advice", "Reading", "TrainingPlan", "plan_training"]

RESERVE_BYTES = 1_500_000_000  # of a training process: torch, a detector, batches
SMALL_ROW_BYTES = 8 << 10  # below this two threads are slower than none (`small_records`)
MOST_WORKERS = 4
CACHE_BYTES = 64 << 20  # the loader's default
PREFETCH_BYTES = 128 << 20  # the loader's default
DISK_DELAY_S = 0.25  # how far ahead a disk is asked, in its own time
PREFETCH_SHARE = 0.1  # of the memory that is free, at most
CACHE_SHARE = 0.25  # of the memory that is free, at most


class Reading(NamedTuple):
    """A column that is read: its bytes on disk, and in memory once it is decoded."""

    name: str
    n_bytes: int
    decoded_bytes: int
    is_compressed: bool


class Advice(NamedTuple):
    """Settings of a loader, and why."""

    num_workers: int
    prefetch_bytes: int
    cache_bytes: int
    pin_memory: bool
    reasons: list[str]


class TrainingPlan(NamedTuple):
    """What an epoch reads.

    Attributes
    ----------
    epoch_bytes
        Read from files in an epoch, by all processes together.
    row_bytes, batch_bytes
        Of a row, and of the rows of one batch, decoded, on average.
    cached
        The fraction of the files that stays in the page cache, 0 to 1.
    disk_bytes
        What the disk has to give in each epoch but the first, which reads all that is not cached.
    disk_s
        Seconds of that; None if its speed is not known.
    """

    columns: list[Reading]
    n_rows: int
    batch_size: int
    n_processes: int
    epoch_bytes: int
    row_bytes: int
    batch_bytes: int
    cached: float
    disk_bytes: int
    disk_s: float | None
    advice: Advice


def plan_training(
    columns: Sequence[Reading],
    n_rows: int,
    batch_size: int,
    n_processes: int,
    machine: Machine,
    bytes_per_s: float | None,
) -> TrainingPlan:
    """Plan how a training reads a store.

    Parameters
    ----------
    batch_size
        Rows of a batch, of all processes together.
    n_processes
        Processes on this machine that share each batch, its cores and its memory.
    bytes_per_s
        Speed of the disk, if it is known.
    """
    epoch_bytes = sum(column.n_bytes for column in columns)
    row_bytes = sum(column.decoded_bytes for column in columns) // max(1, n_rows)
    free_bytes = max(0, machine.available_bytes - n_processes * RESERVE_BYTES)
    cached = min(1.0, free_bytes / epoch_bytes) if epoch_bytes else 1.0
    disk_bytes = round(epoch_bytes * (1 - cached))
    compressed_bytes = sum(column.decoded_bytes for column in columns if column.is_compressed)
    reasons: list[str] = []
    return TrainingPlan(
        columns=list(columns),
        n_rows=n_rows,
        batch_size=batch_size,
        n_processes=n_processes,
        epoch_bytes=epoch_bytes,
        row_bytes=row_bytes,
        batch_bytes=row_bytes * min(batch_size, n_rows),
        cached=cached,
        disk_bytes=disk_bytes,
        disk_s=disk_bytes / bytes_per_s if bytes_per_s else None,
        advice=Advice(
            _choose_workers(row_bytes, machine.n_cores // n_processes, reasons),
            _choose_prefetch(
                batch_size // n_processes * row_bytes,
                free_bytes // n_processes,
                bytes_per_s if cached < 1 else None,
                reasons,
            ),
            _choose_cache(compressed_bytes // n_processes, free_bytes // n_processes, reasons),
            _choose_pinning(machine, reasons),
            reasons,
        ),
    )


def _choose_workers(row_bytes: int, n_cores: int, reasons: list[str]) -> int:
    if row_bytes < SMALL_ROW_BYTES:
        reasons.append("num_workers 0: rows are small, and threads would wait for each other")
        return 0
    num_workers = max(2, min(MOST_WORKERS, n_cores))
    reasons.append(f"num_workers {num_workers}: reads ahead while the detector computes")
    return num_workers


def _choose_prefetch(
    batch_bytes: int, free_bytes: int, bytes_per_s: float | None, reasons: list[str]
) -> int:
    """`bytes_per_s` is that of the disk, where not all stays in memory."""
    if bytes_per_s is None:
        reasons.append("prefetch_bytes as it is: what is in memory need not be asked for")
        return PREFETCH_BYTES
    reasons.append("prefetch_bytes: two batches, and a quarter of a second of the disk")
    wanted = max(2 * batch_bytes, round(bytes_per_s * DISK_DELAY_S), PREFETCH_BYTES)
    return max(_whole_mebibytes(min(wanted, free_bytes * PREFETCH_SHARE)), 1 << 20)


def _choose_cache(compressed_bytes: int, free_bytes: int, reasons: list[str]) -> int:
    if not compressed_bytes:
        reasons.append("cache_bytes 0: no column is compressed, the kernel keeps their pages")
        return 0
    most = free_bytes * CACHE_SHARE
    cache_bytes = _whole_mebibytes(max(CACHE_BYTES, min(compressed_bytes, most)))
    kept = min(1.0, cache_bytes / compressed_bytes)
    reasons.append(f"cache_bytes: {kept:.0%} of the compressed columns, decoded")
    return cache_bytes


def _choose_pinning(machine: Machine, reasons: list[str]) -> bool:
    if machine.gpus:
        reasons.append("pin_memory: copies to the GPU do not wait")
    return bool(machine.gpus)


def _whole_mebibytes(n_bytes: float) -> int:
    return -(-round(n_bytes) // (1 << 20)) * (1 << 20)
