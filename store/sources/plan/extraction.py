"""What an extraction will need: bytes from its schema, memory and time from a sample. Pure.

Raw columns are planned to the byte, from the arrays that a writer would make (`format.contents`).
Only the JSON of the provenance is estimated, and how far a compressed column shrinks. A disk gives
whole blocks, to files and to folders, so a small store takes a quarter more than its files have:
5.17 MB for the 4.04 MB of 48 traces of the example.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

from store.format.contents import arrays_of, files_of, metadata_files
from store.format.layout import table_bytes
from store.format.manifest import GROUP_FILE, Manifest
from store.format.schema import Schema
from store.reports import count, size_text
from store.sources.plan.machine import Machine, clock_text, column_table
from store.sources.plan.measures import Sample, TraceLengths

__all__ = ["BLOCK_BYTES", "OVERHEAD", "ExtractionPlan", "plan_store"]

OVERHEAD = "offsets, checksums, ids"  # what no column owns
ROOT_BYTES = 12_000  # the manifest with the provenance of an extraction, measured on the example
# Of ext4, XFS and Btrfs. What statvfs says of a network's disk is the size of a transfer.
BLOCK_BYTES = 4096
COPIES = 3  # of a batch's columns: one is computed, one is written, and one waits between the two
CERTAINTY = {  # what is known of the answers -> in words
    "given": "the answers are given, so lengths are known",
    "sample": "answers as long as in a sample",
    "longest": "at most: every answer as long as --max-new-tokens allows",
}


class StoreSize(NamedTuple):
    """A store that is planned, in one part or several."""

    # column -> bytes on disk, in the order of the schema; the last is `OVERHEAD`
    columns: dict[str, int]
    n_files: int
    n_folders: int  # with that of the store itself; each takes an inode, as files do
    disk_bytes: int  # what the disk loses, as `du` counts: the blocks of all files and folders

    @property
    def n_bytes(self) -> int:
        return sum(self.columns.values())


def plan_store(
    schema: Schema,
    n_rows: int,
    n_items: Mapping[str, int],
    shrinks: Mapping[str, float],
    n_parts: int = 1,
) -> StoreSize:
    """Plan the bytes of a store in so many parts, of about equally many rows each.

    `n_items`: ragged axis -> items of all rows together; of a text column, bytes of UTF-8.
    `shrinks`: compressed column -> how many times smaller it gets; 1, if it is not known.
    """
    n_parts = max(1, min(n_parts, n_rows))
    columns: Counter[str] = Counter(dict.fromkeys((*schema.stored, OVERHEAD), 0))
    n_files = n_folders = n_blocks = 0
    # each part has files, tables and padding of its own
    for part_rows, n_alike in Counter((n_rows + k) // n_parts for k in range(n_parts)).items():
        counts = {axis: round(n_items[axis] * part_rows / max(1, n_rows)) for axis in schema.axes}
        runs = ((0, part_rows),) if part_rows else ()
        manifest = Manifest(schema, n_rows=part_rows, n_items=counts, runs=runs)
        for owner, n_bytes, n in _planned_files(manifest, shrinks):
            columns[owner] += n_alike * n * n_bytes
            n_blocks += n_alike * n * -(-n_bytes // BLOCK_BYTES)
            n_files += n_alike * n
        folders = {folder for file in files_of(manifest) for folder in PurePath(file).parents}
        n_folders += n_alike * len(folders)
    return StoreSize(dict(columns), n_files, n_folders, (n_blocks + n_folders) * BLOCK_BYTES)


def _planned_files(
    manifest: Manifest, shrinks: Mapping[str, float]
) -> Iterator[tuple[str, int, int]]:
    """The files of a store: the column that they are of, the bytes of each, how many are alike.

    Of an array these are its full shards, and the last one. Chunks are whole, and as many times
    smaller as their column `shrinks`.
    """
    arrays = list(arrays_of(manifest))
    owners = {f"{array.layout.path}/{GROUP_FILE}": array.column for array in arrays}
    yield OVERHEAD, ROOT_BYTES, 1
    for path, text in metadata_files(manifest).items():
        yield owners.get(path) or OVERHEAD, len(text), 1
    for array in arrays:
        layout, owner = array.layout, array.column or OVERHEAD
        n_full, n_last = divmod(layout.n_chunks(array.n_items), layout.shard_chunks)
        chunk_bytes = layout.n_planes * layout.chunk_bytes / shrinks.get(owner, 1.0)
        for n_alike, n_chunks in ((n_full, layout.shard_chunks), (int(n_last > 0), n_last)):
            yield owner, round(n_chunks * chunk_bytes) + table_bytes(layout), n_alike


@dataclass
class ExtractionPlan:
    """What an extraction will need."""

    out: str
    n_questions: int
    n_left_out: int  # questions that the model cannot take
    schema: Schema
    # whether attention maps are computed, which grow with the square of a trace's length
    has_maps: bool
    lengths: TraceLengths  # refined by the sample, if there is one
    sample: Sample | None
    weight_bytes: int  # of all parameters
    batch_size: int  # traces that go through the model at once
    device: str  # 'cpu' or 'cuda'
    n_workers: int  # parts that run at the same time, each with a device of its own
    free_bytes: int  # on the disk of `out`
    machine: Machine
    notes: list[str]  # what makes the plan less certain; one line each

    def __post_init__(self) -> None:
        lengths, sample = self.lengths, self.sample
        edges = self.schema.columns.get("attn_edges")
        n_maps = math.prod(edges.item_shape) if edges else 1
        # of all parts together
        items = lengths.count_items(n_maps)
        shrinks = sample.shrinks if sample else {}
        self.size = plan_store(self.schema, lengths.n_rows, items, shrinks, self.n_workers)
        self.fits = self.size.disk_bytes <= self.free_bytes
        self.tokens_per_trace = float((lengths.prompts + lengths.answers).mean())
        self.worker_questions = math.ceil(self.n_questions / self.n_workers)
        # in the memory of each worker: batches of the longest traces; texts do not count
        longest = lengths.longest_alone().count_items(n_maps)
        of_trace = sum(
            column.item_bytes * (1 if column.axis is None else longest[column.axis])
            for column in self.schema.columns.values()
            if not column.is_text
        )
        self.column_bytes = COPIES * self.batch_size * of_trace
        # until the last worker is done: each loads the model and takes its part
        self.seconds: float | None = None
        # of each worker: bytes of its process and on its GPUs
        self.peaks: tuple[int, int] | None = None
        if sample is not None:
            self.seconds = sample.load_s + self.worker_questions * sample.question_s
            longer = lengths.longest / max(sample.tokens)
            factor = self.batch_size / sample.n_traces * (longer**2 if self.has_maps else longer)
            waiting = self.column_bytes * (COPIES - 1) // COPIES
            self.peaks = sample.host.scaled(factor) + waiting, sample.device.scaled(factor)

    @property
    def remarks(self) -> list[str]:
        lines = list(self.notes)
        if self.sample is not None and self.lengths.certainty != "given":
            # how far the answers of a sample may be from all answers
            mean, error = self.sample.mean_answer()
            lines.append(
                f"answers of the sample have {mean:.2f} tokens on average, with a standard error "
                f"of {error:.2f}: {error / self.tokens_per_trace:.1%} of a trace"
            )
        host, device = self.peaks or (self.weight_bytes + self.column_bytes, self.weight_bytes)
        needed, there = device, sum(gpu.n_bytes for gpu in self.machine.gpus)
        who, place = "the model", "are on its GPUs"
        if self.device == "cpu":
            needed, there = self.n_workers * host, self.machine.available_bytes
            who, place = count(self.n_workers, "worker"), "of memory are free on this machine"
        if needed > there and (self.device == "cpu" or self.machine.gpus):
            lines.append(
                f"{who} would need {size_text(needed)}, and {size_text(there)} {place}: batches "
                "are halved where memory does not suffice; or lower --batch-size"
            )
        return lines

    def to_json(self) -> dict[str, object]:
        """Everything, for programs; bytes and seconds."""
        size, sample, n_rows = self.size, self.sample, self.lengths.n_rows
        columns = {
            name: {
                "bytes": n_bytes,
                "bytes_per_trace": n_bytes / max(1, n_rows),
                "share": n_bytes / size.n_bytes,
            }
            for name, n_bytes in size.columns.items()
        }
        host, device = self.peaks or (None, None)
        return {
            "out": self.out,
            "questions": self.n_questions,
            "left_out": self.n_left_out,
            "rows": n_rows,
            "certainty": self.lengths.certainty,
            "tokens_per_trace": self.tokens_per_trace,
            "bytes": size.n_bytes,
            "overhead_bytes": columns.pop(OVERHEAD)["bytes"],
            "columns": columns,
            "files": size.n_files,
            "folders": size.n_folders,
            "disk_bytes": size.disk_bytes,
            "free_bytes": self.free_bytes,
            "fits": self.fits,
            "workers": self.n_workers,
            "memory": {
                "device": device,
                "host": host,
                "weights": self.weight_bytes,
                "columns": self.column_bytes,
            },
            "device": self.device,
            "batch_size": self.batch_size,
            "sample": sample and sample.speed(),
            "seconds": self.seconds,
            "remarks": self.remarks,
        }

    def text(self) -> str:
        """A table of the columns, then disk, memory and time."""
        size, n_rows = self.size, self.lengths.n_rows
        verdict = "it fits" if self.fits else "IT DOES NOT FIT: keep fewer --columns or --layers"
        lines = [
            f"{self.out}: {count(n_rows, 'trace')} of {count(self.n_questions, 'question')}, "
            f"{size_text(size.n_bytes)} in {count(size.n_files, 'file')}",
            f"  {self.tokens_per_trace:,.1f} tokens a trace; {CERTAINTY[self.lengths.certainty]}",
            "",
            *column_table(size.columns, n_rows),
            "",
            f"disk: {size_text(size.disk_bytes)} of the {size_text(self.free_bytes)} that are "
            f"free, with the blocks of {count(size.n_folders, 'folder')}; {verdict}",
            self._memory_line(),
            *self._time_lines(),
            *(f"  {remark}" for remark in self.remarks),
        ]
        return "\n".join(lines)

    def _memory_line(self) -> str:
        each = " each" if self.n_workers > 1 else ""
        known = (
            f"weights {size_text(self.weight_bytes)}, columns of batches of {self.batch_size} "
            f"{size_text(self.column_bytes)}"
        )
        if self.peaks is None:
            return f"memory: {known}{each}; --sample 8 measures the peak, where the weights are"
        host, device = map(size_text, self.peaks)
        if self.device != "cpu":
            host = f"{device}{each} on the device, {host} on the machine"
        return (
            f"memory: {host}{each} at the peak ({known}); that of the sample, scaled to whole "
            "batches of the longest traces"
        )

    def _time_lines(self) -> list[str]:
        sample, seconds = self.sample, self.seconds
        if sample is None or seconds is None:
            return ["time: not known; --sample 8 measures it, where the weights are"]
        passes = ", ".join(f"{name} {spent:.3g} s" for name, spent in sample.passes.items())
        lines = [
            f"time: {clock_text(seconds)} with {count(self.n_workers, 'worker')}, "
            f"{count(self.worker_questions, 'question')} each",
            f"  {sample.question_s:.3g} s a question ({passes}), loading {sample.load_s:.1f} s; "
            f"measured with {count(sample.n_questions, 'question')} in batches of "
            f"{sample.n_traces}",
        ]
        if self.n_workers > 1:
            lines.append("  each worker with a device of its own, as fast as this one")
        if sample.n_traces < self.batch_size:
            lines.append("  full batches may be faster; --sample of a whole batch or two tells")
        return lines
