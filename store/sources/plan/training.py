"""What a training reads of a store, and how to read it on a machine. Pure.

An epoch reads every byte of its columns once, in a random order. What fits into the memory that is
free stays in the page cache; of the rest the disk gives what it can. Only the limit of small rows
is measured; the other shares and numbers are choices, and `docs/speed.md` says what can be tuned.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from store.reports import count, size_text
from store.sources.plan.machine import DiskSpeed, Machine, clock_text, column_table

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
    """What an epoch reads."""

    store: str
    columns: list[Reading]
    n_rows: int
    batch_size: int
    n_processes: int
    epoch_bytes: int  # read from files in an epoch, by all processes together
    row_bytes: int  # decoded, on average
    batch_bytes: int  # decoded, on average
    cached: float  # the fraction of the files that stays in the page cache, 0 to 1
    disk_bytes: int  # from the disk in each epoch but the first, which reads all not cached
    disk_s: float | None  # seconds of that; None if its speed is not known
    advice: Advice
    machine: Machine
    disk: DiskSpeed

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs; bytes and seconds."""
        return self._asdict() | {
            "columns": {column.name: column._asdict() for column in self.columns},
            "advice": self.advice._asdict(),
            "machine": {
                **self.machine._asdict(),
                "gpus": [gpu._asdict() for gpu in self.machine.gpus],
            },
            "disk": self.disk._asdict(),
        }

    def text(self) -> str:
        """What is read, what stays in memory, and how to read it."""
        machine, advice = self.machine, self.advice
        gpus = [f"{gpu.name} ({size_text(gpu.n_bytes)})" for gpu in machine.gpus]
        command = f"python -m train --num-workers {advice.num_workers}"
        if advice.cache_bytes:
            command += f" --cache-size {advice.cache_bytes}"
        lines = [
            f"{self.store}: {count(self.n_rows, 'trace')}, {size_text(self.epoch_bytes)} an epoch, "
            f"{size_text(self.row_bytes)} a trace",
            "",
            *column_table({column.name: column.n_bytes for column in self.columns}, self.n_rows),
            "",
            f"machine: {count(machine.n_cores, 'core')}, {size_text(machine.available_bytes)} of "
            f"{size_text(machine.memory_bytes)} of memory free, {', '.join(gpus) or 'no GPU'}; "
            f"{count(self.n_processes, 'process', 'processes')}",
            f"page cache: {self.cached:.0%} of an epoch stays in memory",
            *self._disk_lines(),
            f"recommended{', for each process' if self.n_processes > 1 else ''}: {command}",
            f"  in Python: TraceLoader(..., num_workers={advice.num_workers}, "
            f"prefetch_bytes={advice.prefetch_bytes}, cache_bytes={advice.cache_bytes}, "
            f"pin_memory={advice.pin_memory})",
            *(f"  {reason}" for reason in advice.reasons),
        ]
        return "\n".join(lines)

    def _disk_lines(self) -> list[str]:
        disk = self.disk
        if disk.bytes_per_s is None:
            return ["disk: too little is there to read, so its speed is not known"]
        epoch = size_text(self.epoch_bytes)
        first = clock_text(self.epoch_bytes / disk.bytes_per_s)
        lines = [
            f"disk: {size_text(disk.bytes_per_s)}/s, from {size_text(disk.n_bytes)} at random "
            f"places; {disk.cached:.0%} of the files was in memory",
            f"  the first epoch reads {epoch}: {first}, if none of it is in memory",
        ]
        if self.disk_s:
            later = size_text(self.disk_bytes)
            lines.append(f"  each later one reads {later}: at least {clock_text(self.disk_s)}")
        return lines


def plan_training(
    store: str,
    columns: Sequence[Reading],
    n_rows: int,
    batch_size: int,
    n_processes: int,
    machine: Machine,
    disk: DiskSpeed,
) -> TrainingPlan:
    """Plan how a training reads a store.

    `batch_size` is of all processes together: `n_processes` share each batch, and the cores and the
    memory of this machine.
    """
    epoch_bytes = sum(column.n_bytes for column in columns)
    row_bytes = sum(column.decoded_bytes for column in columns) // max(1, n_rows)
    free_bytes = max(0, machine.available_bytes - n_processes * RESERVE_BYTES)
    cached = min(1.0, free_bytes / epoch_bytes) if epoch_bytes else 1.0
    disk_bytes = round(epoch_bytes * (1 - cached))
    speed = disk.bytes_per_s
    chosen = [
        _choose_workers(row_bytes, machine.n_cores // n_processes),
        _choose_prefetch(
            batch_size // n_processes * row_bytes,
            free_bytes // n_processes,
            speed if cached < 1 else None,
        ),
        _choose_cache(
            sum(column.decoded_bytes for column in columns if column.is_compressed) // n_processes,
            free_bytes // n_processes,
        ),
        (bool(machine.gpus), "pin_memory: copies to the GPU do not wait" if machine.gpus else ""),
    ]
    (num_workers, prefetch_bytes, cache_bytes, pin_memory), reasons = zip(*chosen, strict=True)
    return TrainingPlan(
        store=store,
        columns=list(columns),
        n_rows=n_rows,
        batch_size=batch_size,
        n_processes=n_processes,
        epoch_bytes=epoch_bytes,
        row_bytes=row_bytes,
        batch_bytes=row_bytes * min(batch_size, n_rows),
        cached=cached,
        disk_bytes=disk_bytes,
        disk_s=disk_bytes / speed if speed else None,
        advice=Advice(
            num_workers, prefetch_bytes, cache_bytes, bool(pin_memory), list(filter(None, reasons))
        ),
        machine=machine,
        disk=disk,
    )


def _choose_workers(row_bytes: int, n_cores: int) -> tuple[int, str]:
    if row_bytes < SMALL_ROW_BYTES:
        return 0, "num_workers 0: rows are small, and threads would wait for each other"
    num_workers = max(2, min(MOST_WORKERS, n_cores))
    return num_workers, f"num_workers {num_workers}: reads ahead while the detector computes"


def _choose_prefetch(
    batch_bytes: int, free_bytes: int, bytes_per_s: float | None
) -> tuple[int, str]:
    """`bytes_per_s` is that of the disk, where not all stays in memory."""
    if bytes_per_s is None:
        return PREFETCH_BYTES, "prefetch_bytes as it is: what is in memory need not be asked for"
    wanted = max(2 * batch_bytes, round(bytes_per_s * DISK_DELAY_S), PREFETCH_BYTES)
    n_bytes = max(_whole_mebibytes(min(wanted, free_bytes * PREFETCH_SHARE)), 1 << 20)
    return n_bytes, "prefetch_bytes: two batches, and a quarter of a second of the disk"


def _choose_cache(compressed_bytes: int, free_bytes: int) -> tuple[int, str]:
    if not compressed_bytes:
        return 0, "cache_bytes 0: no column is compressed, the kernel keeps their pages"
    most = free_bytes * CACHE_SHARE
    n_bytes = _whole_mebibytes(max(CACHE_BYTES, min(compressed_bytes, most)))
    kept = min(1.0, n_bytes / compressed_bytes)
    return n_bytes, f"cache_bytes: {kept:.0%} of the compressed columns, decoded"


def _whole_mebibytes(n_bytes: float) -> int:
    return -(-round(n_bytes) // (1 << 20)) * (1 << 20)
