"""What a training reads of a store, and how to read it on a machine. Pure.

An epoch reads every byte of its columns once, in a random order. What fits into the memory that is
free stays in the page cache; of the rest the disk gives what it can. Only the limit of small rows
is measured; the other shares and numbers are choices, and `docs/speed.md` says what can be tuned.
"""

from collections.abc import Sequence
from typing import NamedTuple

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
    """A column that is read.

    Attributes
    ----------
    name
        Of the column.
    n_bytes
        On disk.
    decoded_bytes
        In memory, once it is decoded.
    is_compressed
        Whether it has to be.
    """

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
    columns
        The columns.
    n_rows, batch_size, n_processes
        As they were asked for.
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
    advice
        How to read it.
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
    *,
    available_bytes: int,
    n_cores: int,
    has_gpu: bool,
    bytes_per_s: float | None,
) -> TrainingPlan:
    """Plan how a training reads a store.

    Parameters
    ----------
    columns
        What it reads.
    n_rows
        Rows of an epoch.
    batch_size
        Rows of a batch, of all processes together.
    n_processes
        Processes on this machine that share each batch.
    available_bytes
        Memory that is free, the page cache included.
    n_cores
        Cores for all of them.
    has_gpu
        Whether batches go to a GPU.
    bytes_per_s
        Speed of the disk, if it is known.
    """
    epoch_bytes = sum(column.n_bytes for column in columns)
    decoded_bytes = sum(column.decoded_bytes for column in columns)
    row_bytes = decoded_bytes // max(1, n_rows)
    free_bytes = max(0, available_bytes - n_processes * RESERVE_BYTES)
    cached = min(1.0, free_bytes / epoch_bytes) if epoch_bytes else 1.0
    disk_bytes = round(epoch_bytes * (1 - cached))
    compressed_bytes = sum(column.decoded_bytes for column in columns if column.is_compressed)
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
        advice=_advise(
            row_bytes,
            batch_size // n_processes * row_bytes,
            compressed_bytes // n_processes,
            free_bytes // n_processes,
            n_cores // n_processes,
            bytes_per_s if cached < 1 else None,
            has_gpu=has_gpu,
        ),
    )


def _advise(
    row_bytes: int,
    batch_bytes: int,
    compressed_bytes: int,
    free_bytes: int,
    n_cores: int,
    bytes_per_s: float | None,
    *,
    has_gpu: bool,
) -> Advice:
    """Settings for one process; `bytes_per_s` of the disk, where not all stays in memory."""
    reasons = []
    num_workers = max(2, min(MOST_WORKERS, n_cores))
    if row_bytes < SMALL_ROW_BYTES:
        num_workers = 0
        reasons.append("num_workers 0: rows are small, and threads would wait for each other")
    else:
        reasons.append(f"num_workers {num_workers}: reads ahead while the detector computes")
    prefetch_bytes = PREFETCH_BYTES
    if bytes_per_s is None:
        reasons.append("prefetch_bytes as it is: what is in memory need not be asked for")
    else:
        wanted = max(2 * batch_bytes, round(bytes_per_s * DISK_DELAY_S), PREFETCH_BYTES)
        prefetch_bytes = max(_whole_mebibytes(min(wanted, free_bytes * PREFETCH_SHARE)), 1 << 20)
        reasons.append("prefetch_bytes: two batches, and a quarter of a second of the disk")
    cache_bytes = 0
    if compressed_bytes:
        most = free_bytes * CACHE_SHARE
        cache_bytes = _whole_mebibytes(max(CACHE_BYTES, min(compressed_bytes, most)))
        kept = min(1.0, cache_bytes / compressed_bytes)
        reasons.append(f"cache_bytes: {kept:.0%} of the compressed columns, decoded")
    else:
        reasons.append("cache_bytes 0: no column is compressed, the kernel keeps their pages")
    if has_gpu:
        reasons.append("pin_memory: copies to the GPU do not wait")
    return Advice(num_workers, prefetch_bytes, cache_bytes, has_gpu, reasons)


def _whole_mebibytes(n_bytes: float) -> int:
    return -(-round(n_bytes) // (1 << 20)) * (1 << 20)
