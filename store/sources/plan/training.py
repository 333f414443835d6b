"""What a training reads of a store, and how to read it on a machine. Pure.

An epoch reads every byte of its columns once, in a random order. What fits into the memory that is
free stays in the page cache; of the rest the disk gives what it can. Only the limit of small rows
is measured; the other shares and numbers are choices, and `docs/speed.md` says what can be tuned.
"""

from dataclasses import dataclass
from typing import NamedTuple

from store.reports import count, size_text
from store.sources.plan.machine import DiskSpeed, Machine, clock_text, column_table

__all__ = ["Reading", "TrainingPlan"]

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


@dataclass
class TrainingPlan:
    """What an epoch reads."""

    store: str
    columns: list[Reading]
    n_rows: int
    batch_size: int  # of all processes together
    n_processes: int  # share each batch, and the cores and the memory of this machine
    machine: Machine
    disk: DiskSpeed

    def __post_init__(self) -> None:
        # from files in an epoch, by all processes together; rows and batches are decoded
        self.epoch_bytes = sum(column.n_bytes for column in self.columns)
        decoded_bytes = sum(column.decoded_bytes for column in self.columns)
        self.row_bytes = decoded_bytes // max(1, self.n_rows)  # on average
        self.batch_bytes = self.row_bytes * min(self.batch_size, self.n_rows)
        reserved = self.n_processes * RESERVE_BYTES
        self._free_bytes = max(0, self.machine.available_bytes - reserved)
        # the fraction of the files that stays in the page cache, 0 to 1
        self.cached = min(1.0, self._free_bytes / self.epoch_bytes) if self.epoch_bytes else 1.0
        # from the disk in each epoch but the first, which reads all that is not cached
        self.disk_bytes = round(self.epoch_bytes * (1 - self.cached))
        speed = self.disk.bytes_per_s
        self.disk_s = self.disk_bytes / speed if speed else None  # None: it is not known

    @property
    def advice(self) -> Advice:
        """For each process."""
        num_workers, why_workers = self._choose_workers()
        prefetch_bytes, why_prefetch = self._choose_prefetch()
        cache_bytes, why_cache = self._choose_cache()
        reasons = [why_workers, why_prefetch, why_cache]
        pin_memory = bool(self.machine.gpus)
        if pin_memory:
            reasons.append("pin_memory: copies to the GPU do not wait")
        return Advice(num_workers, prefetch_bytes, cache_bytes, pin_memory, reasons)

    def _choose_workers(self) -> tuple[int, str]:
        if self.row_bytes < SMALL_ROW_BYTES:
            return 0, "num_workers 0: rows are small, and threads would wait for each other"
        num_workers = max(2, min(MOST_WORKERS, self.machine.n_cores // self.n_processes))
        return num_workers, f"num_workers {num_workers}: reads ahead while the detector computes"

    def _choose_prefetch(self) -> tuple[int, str]:
        speed = self.disk.bytes_per_s
        if speed is None or self.cached == 1:
            reason = "prefetch_bytes as it is: what is in memory need not be asked for"
            return PREFETCH_BYTES, reason
        batch_bytes = self.batch_size // self.n_processes * self.row_bytes
        wanted = max(2 * batch_bytes, round(speed * DISK_DELAY_S), PREFETCH_BYTES)
        most = self._free_bytes // self.n_processes * PREFETCH_SHARE
        n_bytes = max(_whole_mebibytes(min(wanted, most)), 1 << 20)
        return n_bytes, "prefetch_bytes: two batches, and a quarter of a second of the disk"

    def _choose_cache(self) -> tuple[int, str]:
        compressed = (column.decoded_bytes for column in self.columns if column.is_compressed)
        compressed_bytes = sum(compressed) // self.n_processes
        if not compressed_bytes:
            return 0, "cache_bytes 0: no column is compressed, the kernel keeps their pages"
        most = self._free_bytes // self.n_processes * CACHE_SHARE
        n_bytes = _whole_mebibytes(max(CACHE_BYTES, min(compressed_bytes, most)))
        kept = min(1.0, n_bytes / compressed_bytes)
        return n_bytes, f"cache_bytes: {kept:.0%} of the compressed columns, decoded"

    def to_json(self) -> dict[str, object]:
        """Everything, for programs; bytes and seconds."""
        plain = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        gpus = [gpu._asdict() for gpu in self.machine.gpus]
        return plain | {
            "columns": {column.name: column._asdict() for column in self.columns},
            "advice": self.advice._asdict(),
            "machine": self.machine._asdict() | {"gpus": gpus},
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


def _whole_mebibytes(n_bytes: float) -> int:
    return -(-round(n_bytes) // (1 << 20)) * (1 << 20)
