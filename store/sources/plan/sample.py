"""A few questions, asked of the model to measure time, memory and lengths. Nothing is written."""

import math
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from store.format.codecs import parse_codec
from store.format.schema import Column
from store.sources.huggingface.attention_columns import EDGES
from store.sources.huggingface.source import HuggingFaceSource
from store.sources.plan.lengths import TraceLengths, bytes_of
from store.sources.questions import Question

__all__ = ["SAMPLED", "Peak", "Sample", "choose_sample", "measure_sample"]

SAMPLED = ("prompt_len", "answer_len", "answer")  # columns that a sample is measured by


class Peak(NamedTuple):
    """Bytes of memory once the model is loaded, and at the peak of the sample."""

    loaded: int
    highest: int

    def scaled(self, factor: float) -> int:
        """The peak of batches that are `factor` times larger."""
        return self.loaded + round(max(0, self.highest - self.loaded) * factor)


@dataclass(frozen=True)
class Sample:
    """What a few questions took, and how large their traces are."""

    n_questions: int
    load_s: float  # seconds until the model could be asked
    question_s: float  # seconds of a question; the first batch was warmed up
    passes: dict[str, float]  # part of the work -> seconds of a question
    host: Peak  # memory of this process
    device: Peak  # memory on its GPUs
    n_traces: int  # of one batch
    tokens: list[int]  # of each trace
    answers: list[int]  # tokens of each answer
    answer_bytes: int  # UTF-8 of all answers
    token_text_bytes: int  # UTF-8 of all `token_texts`; 0 without them
    edges: float | None  # edges of a trace in `attn_edges`, on average; None without them
    shrinks: dict[str, float]  # compressed column -> how many times smaller its values get

    def mean_answer(self) -> tuple[float, float]:
        """The tokens of an answer, and the standard error of that."""
        answers = np.array(self.answers)
        spread = answers.std(ddof=1) if len(answers) > 1 else 0.0
        return float(answers.mean()), float(spread / math.sqrt(len(answers)))

    def speed(self) -> dict[str, Any]:
        """How fast it was, for programs."""
        names = ("n_questions", "load_s", "question_s", "passes")
        return {name: getattr(self, name) for name in names}

    def refine(self, lengths: TraceLengths) -> TraceLengths:
        """What is known of all traces once a few were made: their answers take turns."""
        token_text_bytes = self.token_text_bytes / sum(self.tokens)
        known = replace(
            lengths,
            answer_token_bytes=self.answer_bytes / sum(self.answers),
            token_text_bytes=token_text_bytes or lengths.token_text_bytes,
            edges=self.edges,
        )
        if lengths.certainty == "given":
            return known
        answers = np.resize(np.array(self.answers), lengths.n_rows)
        return replace(known, answers=answers, certainty="sample")


def choose_sample(questions: Sequence[Question], n: int) -> list[Question]:
    """So many questions, evenly spread: files are often sorted."""
    places = np.linspace(0, len(questions) - 1, min(n, len(questions)))
    return [questions[place] for place in places.astype(int).tolist()]


def measure_sample(source: HuggingFaceSource, batch_size: int, load_s: float) -> Sample:
    """Run a source of few questions; the first batch twice, of which the second time counts."""
    columns = source.schema.columns
    _reset_peaks()
    loaded = _read_peaks()
    next(source.rows())
    warm_up = dict(source.seconds)
    tokens, answers = [], []
    n_bytes = dict.fromkeys(("answer", "token_texts"), 0)
    n_edges = 0
    values: dict[str, list[Any]] = defaultdict(list)
    began = time.perf_counter()
    for _, row in source.rows():
        answers.append(int(row["answer_len"]))
        tokens.append(int(row["prompt_len"] + row["answer_len"]))
        for name in n_bytes:
            n_bytes[name] += bytes_of([row.get(name, "")])
        n_edges += max(len(row.get(name, ())) for name in EDGES)
        for name, column in columns.items():
            if column.codec:
                values[name].append(row[name])
    seconds = time.perf_counter() - began
    n_questions = len(source.questions)
    passes = {name: (spent - warm_up[name]) / n_questions for name, spent in source.seconds.items()}
    host, device = map(Peak, loaded, _read_peaks())
    return Sample(
        n_questions=n_questions,
        load_s=load_s,
        question_s=seconds / n_questions,
        passes=passes,
        host=host,
        device=device,
        n_traces=min(batch_size, len(tokens)),
        tokens=tokens,
        answers=answers,
        answer_bytes=n_bytes["answer"],
        token_text_bytes=n_bytes["token_texts"],
        edges=None if columns.keys().isdisjoint(EDGES) else n_edges / len(tokens),
        shrinks={name: _shrink(columns[name], of_rows) for name, of_rows in values.items()},
    )


def _shrink(column: Column, of_rows: list[Any]) -> float:
    """How many times smaller the values of a compressed column get, all in one chunk."""
    chunk = np.concatenate(of_rows)[: column.chunk_items]
    if not chunk.size:
        return 1.0
    data = np.ascontiguousarray(chunk).reshape(-1).view(np.uint8)
    packed = parse_codec(column.codec).encode(data, column.storage_dtype.itemsize)
    return chunk.nbytes / len(packed)


def _reset_peaks() -> None:
    """Let peaks be those from now on; where the kernel cannot, that of the loading stays."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    for device in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(device)


def _read_peaks() -> tuple[int, int]:
    """Bytes of this process at its peak, and of what torch reserved on all GPUs."""
    devices = range(torch.cuda.device_count())
    return _host_peak(), sum(torch.cuda.max_memory_reserved(device) for device in devices)


def _host_peak() -> int:
    with suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
