"""What an extraction will need: bytes from its schema, memory and time from a sample. Pure."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from store.format.schema import Schema
from store.reports import count
from store.sources.plan.lengths import TraceLengths
from store.sources.plan.machine import Machine
from store.sources.plan.sample import Sample
from store.sources.plan.sizes import OVERHEAD, StoreSize, plan_parts
from store.sources.plan.text import bytes_text

__all__ = ["ExtractionPlan"]

COPIES = 3  # of a batch's columns: one is computed, one is written, and one waits between the two


@dataclass(frozen=True)
class ExtractionPlan:
    """What an extraction will need.

    Attributes
    ----------
    has_maps
        Whether attention maps are computed, which grow with the square of a trace's length.
    weight_bytes
        Of all parameters.
    batch_size
        Traces that go through the model at once.
    device
        'cpu' or 'cuda'.
    n_workers
        Parts that run at the same time, each with a device of its own.
    free_bytes
        On the disk of `out`.
    notes
        What makes the plan less certain; one line each.
    """

    out: str
    n_questions: int
    n_left_out: int
    schema: Schema
    has_maps: bool
    lengths: TraceLengths
    sample: Sample | None
    weight_bytes: int
    batch_size: int
    device: str
    n_workers: int
    free_bytes: int
    machine: Machine
    notes: list[str]

    @cached_property
    def size(self) -> StoreSize:
        """Of all parts together."""
        shrinks = self.sample.shrinks if self.sample else {}
        items = self.lengths.count_items(self._n_maps)
        return plan_parts(self.schema, self.lengths.n_rows, items, shrinks, self.n_workers)

    @property
    def tokens_per_trace(self) -> float:
        return float((self.lengths.prompts + self.lengths.answers).mean())

    @property
    def fits(self) -> bool:
        return self.size.disk_bytes <= self.free_bytes

    @property
    def worker_questions(self) -> int:
        return math.ceil(self.n_questions / self.n_workers)

    @property
    def seconds(self) -> float | None:
        """Until the last worker is done: each loads the model and takes its part."""
        if self.sample is None:
            return None
        return self.sample.load_s + self.worker_questions * self.sample.question_s

    @property
    def column_bytes(self) -> int:
        """In the memory of each worker: batches of the longest traces; texts do not count."""
        items = self.lengths.longest_alone().count_items(self._n_maps)
        of_trace = sum(
            column.item_bytes * (1 if column.axis is None else items[column.axis])
            for column in self.schema.columns.values()
            if not column.is_text
        )
        return COPIES * self.batch_size * of_trace

    @property
    def peaks(self) -> tuple[int, int] | None:
        """Of each worker: bytes of its process and on its GPUs; None without a sample."""
        if self.sample is None:
            return None
        longer = self.lengths.longest / self.sample.longest
        factor = self.batch_size / self.sample.n_traces * (longer**2 if self.has_maps else longer)
        waiting = self.column_bytes * (COPIES - 1) // COPIES
        return self.sample.host.scaled(factor) + waiting, self.sample.device.scaled(factor)

    @property
    def remarks(self) -> list[str]:
        """What to know besides."""
        return [*self.notes, *self._spread(), *self._shortage()]

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs; bytes and seconds."""
        size, sample = self.size, self.sample
        columns = {
            name: {
                "bytes": n_bytes,
                "bytes_per_trace": n_bytes / max(1, size.n_rows),
                "share": n_bytes / size.n_bytes,
            }
            for name, n_bytes in size.columns.items()
        }
        host, device = self.peaks or (None, None)
        return {
            "out": self.out,
            "questions": self.n_questions,
            "left_out": self.n_left_out,
            "rows": size.n_rows,
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

    @property
    def _n_maps(self) -> int:
        edges = self.schema.columns.get("attn_edges")
        return math.prod(edges.item_shape) if edges else 1

    def _spread(self) -> list[str]:
        """How far the answers of a sample may be from all answers."""
        if self.sample is None or self.lengths.certainty == "given":
            return []
        mean, error = self.sample.mean_answer()
        return [
            f"answers of the sample have {mean:.2f} tokens on average, with a standard error of "
            f"{error:.2f}: {error / self.tokens_per_trace:.1%} of a trace"
        ]

    def _shortage(self) -> list[str]:
        """What this machine lacks, as far as it is known."""
        host, device = self.peaks or (self.weight_bytes + self.column_bytes, self.weight_bytes)
        if self.device == "cpu":
            who, needed = count(self.n_workers, "worker"), self.n_workers * host
            there = self.machine.available_bytes
            place = "of memory are free on this machine"
        elif self.machine.gpus:
            who, needed = "the model", device
            there = sum(gpu.n_bytes for gpu in self.machine.gpus)
            place = "are on its GPUs"
        else:
            return []
        if needed <= there:
            return []
        return [
            f"{who} would need {bytes_text(needed)}, and {bytes_text(there)} {place}: batches are "
            "halved where memory does not suffice; or lower --batch-size"
        ]
