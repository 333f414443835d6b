"""What an extraction will need: bytes from its schema, memory and time, before it runs.

A trace has the P tokens of its prompt and A tokens of an answer. P is known once the questions are
tokenised. A is known where answers are given; else the answers of a sample take turns, or each is
as long as is allowed. A sample is asked of the model to measure time and lengths; nothing is
written. Bytes are those of values: compressed columns take less, and what no column owns (offsets,
checksums, ids, JSON) is under a percent of traces of the usual sizes.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from store.format.schema import TRACE_ID, Schema
from store.memory_limits import read_memory
from store.reports import aligned, count, size_text
from store.sources.huggingface.prompts import EncodedQuestion
from store.sources.huggingface.source import HuggingFaceSource
from store.sources.huggingface.tokenization import TokenTexts
from store.sources.questions import Question
from store.traces.fields import NO_FIELDS, Fields
from store.traces.trace_ids import number_trace

__all__ = [
    "SAMPLED",
    "ExtractionPlan",
    "Sample",
    "choose_sample",
    "measure_lengths",
    "measure_sample",
]

SAMPLED = ("answer_len", "answer")  # columns that a sample is measured by
TOKEN_BYTES = 4  # UTF-8 of a token of an answer, about
N_DECODED = 200  # prompts whose tokens are decoded, to see how long their texts are
SHARES = 20.0  # of an attention that adds up to 1, at most so many are as large as .05
COPIES = 3  # of a batch's columns: one is computed, one is written, and one waits between the two
CERTAINTY = {  # what is known of the answers -> in words
    "given": "the answers are given, so lengths are known",
    "sample": "answers as long as in a sample",
    "longest": "at most: every answer as long as --max-new-tokens allows",
}


@dataclass(frozen=True)
class TraceLengths:
    """What is known of the traces before they are made."""

    prompts: NDArray[np.int64]  # (n,), P of each trace
    answers: NDArray[np.int64]  # (n,), A of each trace
    certainty: str  # what is known of the answers: a key of `CERTAINTY`
    # text column -> bytes of UTF-8 of all traces, as far as questions alone decide them
    text_bytes: dict[str, int]
    token_text_bytes: float = 0.0  # of a token in `token_texts`, on average
    answer_token_bytes: float = TOKEN_BYTES  # of an answer's text for each of its tokens

    @property
    def n_rows(self) -> int:
        return len(self.prompts)

    def longest_alone(self, max_answer: int) -> "TraceLengths":
        """A single trace of the longest prompt, and the longest answer that there may be."""
        prompts = self.prompts.max(keepdims=True, initial=0)
        return replace(self, prompts=prompts, answers=np.full(1, max_answer), text_bytes={})

    def count_items(self, n_maps: int) -> dict[str | None, int]:
        """Count the items of every axis: axis -> items of all traces; of texts, bytes of UTF-8.

        Columns without an axis have one a trace.

        `n_maps` are the heads of all kept layers: they bound the edges of attention.
        """
        tokens = self.prompts + self.answers
        # the tokens from the prompt's last one on attend to earlier ones
        sources = self.prompts + self.answers / 2
        edges = (self.answers + 1) * np.minimum(sources, SHARES * n_maps)
        n_tokens = int(tokens.sum())
        items: dict[str | None, int] = {
            None: self.n_rows,
            "tokens": n_tokens,
            "pairs": int((tokens * (tokens + 1) // 2).sum()),
            "squares": int((tokens**2).sum()),
            "edges": round(edges.sum()),
            "token_texts": round(n_tokens * self.token_text_bytes),
            "answer": round(int(self.answers.sum()) * self.answer_token_bytes),
        }
        return items | self.text_bytes


def measure_lengths(
    questions: Sequence[EncodedQuestion],
    tokenizer: PreTrainedTokenizerBase,
    max_new_tokens: int,
    n_samples: int,
    fields: Fields = NO_FIELDS,
) -> TraceLengths:
    """The lengths of `n_samples` traces of each question, with the texts of its fields.

    Answers are given to all questions or to none; then each is as long as is allowed.
    """
    prompts = np.repeat(np.array([len(one.prompt) for one in questions], np.int64), n_samples)
    given = [len(one.answer) for one in questions if one.is_given]
    texts = TokenTexts(tokenizer)
    decoded = [one.prompt.tolist() for one in questions[:N_DECODED]]
    return TraceLengths(
        prompts,
        np.array(given) if given else np.full(len(prompts), max_new_tokens),
        certainty="given" if given else "longest",
        text_bytes=_count_text_bytes(questions, n_samples, fields),
        token_text_bytes=bytes_of(map(texts.to_json, decoded)) / max(1, sum(map(len, decoded))),
    )


def _count_text_bytes(
    questions: Sequence[EncodedQuestion], n_samples: int, fields: Fields
) -> dict[str, int]:
    """Text column -> bytes of UTF-8 in all traces, for what questions alone decide."""
    counted: Counter[str] = Counter()
    for one in questions:
        row = one.columns() | fields.row(one.question.get("fields", {}))
        if not one.is_given:
            del row["answer"]
        for name, value in row.items():
            if isinstance(value, str):
                counted[name] += n_samples * bytes_of([value])
        names = (number_trace(row["question_id"], k + 1) for k in range(n_samples))
        counted[TRACE_ID] += bytes_of([one.trace_id] if one.is_given else names)
    return counted


def bytes_of(texts: Iterable[str]) -> int:
    return sum(len(text.encode(errors="surrogatepass")) for text in texts)


@dataclass(frozen=True)
class Sample:
    """What a few questions took, and how long their answers are."""

    n_questions: int
    load_s: float  # seconds until the model could be asked
    question_s: float  # seconds of a question; the first batch was warmed up
    answers: list[int]  # tokens of each answer
    answer_bytes: int  # UTF-8 of all answers

    def refine(self, lengths: TraceLengths) -> TraceLengths:
        """What is known of all traces once a few were made: their answers take turns."""
        if lengths.certainty == "given":
            return lengths
        return replace(
            lengths,
            answers=np.resize(np.array(self.answers), lengths.n_rows),
            certainty="sample",
            answer_token_bytes=self.answer_bytes / sum(self.answers),
        )

    @property
    def remark(self) -> str:
        """How far its answers may be from all answers."""
        mean = np.mean(self.answers)
        error = np.std(self.answers) / math.sqrt(max(1, len(self.answers) - 1))
        return (
            f"answers of the sample have {mean:.2f} tokens on average, with a standard error of "
            f"{error:.2f}"
        )


def choose_sample(questions: Sequence[Question], n: int) -> list[Question]:
    """So many questions, evenly spread: files are often sorted."""
    places = np.linspace(0, len(questions) - 1, min(n, len(questions)))
    return [questions[place] for place in places.astype(int).tolist()]


def measure_sample(source: HuggingFaceSource, load_s: float) -> Sample:
    """Run a source of few questions; the first batch twice, of which the second time counts."""
    next(source.rows())
    began = time.perf_counter()
    rows = [row for _, row in source.rows()]
    n_questions = len(source.questions)
    return Sample(
        n_questions,
        load_s,
        question_s=(time.perf_counter() - began) / n_questions,
        answers=[int(row["answer_len"]) for row in rows],
        answer_bytes=bytes_of(row["answer"] for row in rows),
    )


@dataclass
class ExtractionPlan:
    """What an extraction will need."""

    out: str
    n_questions: int
    n_left_out: int  # questions that the model cannot take
    schema: Schema
    lengths: TraceLengths  # refined by the sample, if there is one
    max_answer: int  # tokens of the longest answer that there may be
    sample: Sample | None
    weight_bytes: int  # of all parameters
    batch_size: int  # traces that go through the model at once
    device: str
    n_workers: int  # parts that run at the same time, each with a device of its own
    free_bytes: int  # on the disk of `out`
    notes: list[str]  # what makes the plan less certain; one line each

    def __post_init__(self) -> None:
        edges = self.schema.columns.get("attn_edges")
        n_maps = math.prod(edges.item_shape) if edges else 1
        # bytes of each column, the largest first
        of_all = self._bytes_of(self.lengths.count_items(n_maps))
        self.columns = dict(sorted(of_all.items(), key=lambda item: -item[1]))
        self.n_bytes = sum(self.columns.values())
        self.fits = self.n_bytes <= self.free_bytes
        longest = self.lengths.longest_alone(self.max_answer).count_items(n_maps)
        of_trace = sum(self._bytes_of(longest).values())
        # in the memory of each worker: batches of the longest traces
        self.column_bytes = COPIES * self.batch_size * of_trace
        self.worker_questions = math.ceil(self.n_questions / self.n_workers)
        self.seconds: float | None = None  # until the last worker is done
        self.remarks = list(self.notes)
        if self.sample is not None:
            self.seconds = self.sample.load_s + self.worker_questions * self.sample.question_s
            if self.lengths.certainty == "sample":
                self.remarks.append(self.sample.remark)
        self.remarks += self._memory_remarks()

    def _bytes_of(self, items: dict[str | None, int]) -> dict[str, int]:
        """Column -> bytes of its values in so many items of each axis."""
        return {
            name: column.item_bytes * items.get(self.schema.axis_of(name), 0)
            for name, column in self.schema.stored.items()
        }

    def _memory_remarks(self) -> list[str]:
        """A warning where weights and batches are more than there is."""
        needed = self.n_workers * (self.weight_bytes + self.column_bytes)
        there, place = read_memory().available, "of memory are free on this machine"
        if self.device != "cpu":
            needed, place = self.weight_bytes, "are on its GPUs"
            gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
            there = sum(gpu.total_memory for gpu in gpus) or needed  # planned for another machine
        if needed <= there:
            return []
        return [
            f"{size_text(needed)} would be needed, and {size_text(there)} {place}: batches are "
            "halved where memory does not suffice; or lower --batch-size"
        ]

    def to_json(self) -> dict[str, object]:
        """Everything, for programs; bytes and seconds."""
        return {
            "out": self.out,
            "questions": self.n_questions,
            "left_out": self.n_left_out,
            "rows": self.lengths.n_rows,
            "certainty": self.lengths.certainty,
            "bytes": self.n_bytes,
            "columns": self.columns,
            "free_bytes": self.free_bytes,
            "fits": self.fits,
            "workers": self.n_workers,
            "memory": {"weights": self.weight_bytes, "columns": self.column_bytes},
            "device": self.device,
            "batch_size": self.batch_size,
            "sample": self.sample and vars(self.sample),
            "seconds": self.seconds,
            "remarks": self.remarks,
        }

    def text(self) -> str:
        """A table of the columns, then disk, memory and time."""
        n_rows = self.lengths.n_rows
        verdict = "it fits" if self.fits else "IT DOES NOT FIT: keep fewer --columns or --layers"
        table = [("column", "a trace", "total")]
        for name, n_bytes in self.columns.items():
            table.append((name, size_text(n_bytes / max(1, n_rows)), size_text(n_bytes)))
        each = " for each worker" if self.n_workers > 1 else ""
        lines = [
            f"{self.out}: {count(n_rows, 'trace')} of {count(self.n_questions, 'question')}; "
            f"{CERTAINTY[self.lengths.certainty]}",
            "",
            *aligned(table),
            "",
            f"disk: {size_text(self.n_bytes)} of the {size_text(self.free_bytes)} that are free; "
            f"{verdict}",
            f"memory{each}: weights {size_text(self.weight_bytes)}, columns of batches of "
            f"{self.batch_size} {size_text(self.column_bytes)}, and what the model computes",
            f"time: {self._time_text()}",
            *(f"  {remark}" for remark in self.remarks),
        ]
        return "\n".join(lines)

    def _time_text(self) -> str:
        if self.sample is None or self.seconds is None:
            return "not known; --sample 8 measures it, where the weights are"
        return (
            f"{self.seconds / 60:,.1f} minutes with {count(self.n_workers, 'worker')}, each with a "
            f"device of its own, as fast as this one: {self.sample.question_s:.3g} s a question, "
            f"measured with {self.sample.n_questions:,}, and {self.sample.load_s:.1f} s to load"
        )
