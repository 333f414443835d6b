"""What an extraction will need: bytes, memory and time, measured with a few of its questions.

Nothing is written. Bytes are those of values: compressed columns take less, and what no column owns
(offsets, checksums, JSON) is under a percent of traces of the usual sizes.
"""

import math
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from store.format.schema import TRACE_ID, Column
from store.reports import aligned, count, size_text
from store.sources.huggingface.source import HuggingFaceSource
from store.sources.questions import Question

__all__ = ["ExtractionPlan", "Sample", "choose_sample", "measure_sample"]

PEAK_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes, of what the system tells


@dataclass(frozen=True)
class Sample:
    """What a few questions took."""

    n_questions: int  # also those that were left out, as of all so many will be
    load_s: float  # seconds until the model could be asked
    question_s: float  # seconds of a question; the first batch was warmed up
    columns: dict[str, int]  # bytes of each column
    n_traces: int
    peak_bytes: int  # of memory, on the GPU if the model is there


def choose_sample(questions: Sequence[Question], n: int) -> list[Question]:
    """So many questions, evenly spread: files are often sorted."""
    places = np.linspace(0, len(questions) - 1, min(n, len(questions)))
    return [questions[place] for place in places.astype(int).tolist()]


def measure_sample(source: HuggingFaceSource, n_questions: int, load_s: float) -> Sample:
    """Run a source of few questions, those of `n_questions` that the model takes.

    The first batch runs twice, of which the second time counts.
    """
    next(source.rows())
    columns: Counter[str] = Counter()
    n_traces = 0
    began = time.perf_counter()
    for trace_id, row in source.rows():
        values = row | {TRACE_ID: trace_id}
        sizes = {name: _n_bytes(values[name], of) for name, of in source.schema.stored.items()}
        columns.update(sizes)
        n_traces += 1
    question_s = (time.perf_counter() - began) / n_questions
    return Sample(n_questions, load_s, question_s, columns, n_traces, _peak_bytes(source))


def _n_bytes(value: Any, column: Column) -> int:
    if column.is_text:
        return len(value.encode())
    return math.prod(np.shape(value)) * column.storage_dtype.itemsize


def _peak_bytes(source: HuggingFaceSource) -> int:
    if source.model.device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT


@dataclass
class ExtractionPlan:
    """What an extraction will need: as much as the sample for each question."""

    out: str
    n_questions: int
    sample: Sample
    batch_size: int  # traces of the sample that went through the model at once
    device: str
    n_workers: int  # parts that run at the same time, each with a device of its own
    free_bytes: int  # on the disk of `out`
    remarks: list[str]  # what makes the plan less certain; one line each

    def __post_init__(self) -> None:
        share = self.n_questions / self.sample.n_questions
        self.n_rows = round(self.sample.n_traces * share)
        # bytes of each column, the largest first
        largest = sorted(self.sample.columns.items(), key=lambda item: -item[1])
        self.columns = {name: round(n_bytes * share) for name, n_bytes in largest}
        self.n_bytes = sum(self.columns.values())
        self.fits = self.n_bytes <= self.free_bytes
        of_worker = math.ceil(self.n_questions / self.n_workers)
        self.seconds = self.sample.load_s + of_worker * self.sample.question_s

    def to_json(self) -> dict[str, object]:
        """Everything, for programs; bytes and seconds."""
        return {
            "out": self.out,
            "questions": self.n_questions,
            "rows": self.n_rows,
            "sample": self.sample.n_questions,
            "bytes": self.n_bytes,
            "columns": self.columns,
            "free_bytes": self.free_bytes,
            "fits": self.fits,
            "workers": self.n_workers,
            "memory": self.sample.peak_bytes,
            "device": self.device,
            "batch_size": self.batch_size,
            "load_seconds": self.sample.load_s,
            "question_seconds": self.sample.question_s,
            "seconds": self.seconds,
            "remarks": self.remarks,
        }

    def text(self) -> str:
        """A table of the columns, then disk, memory and time."""
        verdict = "it fits" if self.fits else "IT DOES NOT FIT: keep fewer --columns or --layers"
        table = [("column", "a trace", "total")]
        for name, n_bytes in self.columns.items():
            table.append((name, size_text(n_bytes / self.n_rows), size_text(n_bytes)))
        each = " for each worker" if self.n_workers > 1 else ""
        lines = [
            f"{self.out}: {count(self.n_rows, 'trace')} of {count(self.n_questions, 'question')}; "
            f"measured with {self.sample.n_questions:,}",
            "",
            *aligned(table),
            "",
            f"disk: {size_text(self.n_bytes)} of the {size_text(self.free_bytes)} that are free; "
            f"{verdict}",
            f"memory{each}: {size_text(self.sample.peak_bytes)} at most, on {self.device} with "
            f"batches of {self.batch_size}",
            f"time: {self.seconds / 60:,.1f} minutes with {count(self.n_workers, 'worker')}, each "
            f"with a device of its own, as fast as this one: {self.sample.question_s:.3g} s a "
            f"question, and {self.sample.load_s:.1f} s to load",
            *(f"  {remark}" for remark in self.remarks),
        ]
        return "\n".join(lines)
