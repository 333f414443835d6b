"""How large the traces of an extraction will be: from their lengths, and from a few that are made.

A trace has the P tokens of its prompt and A tokens of an answer. P is known once the questions are
tokenised; without a tokenizer, four bytes of UTF-8 count as a token. A is known where answers are
given; else the answers of a sample take turns, or each is as long as is allowed. A sample is asked
of the model to measure time, memory and lengths; nothing is written.
"""

import math
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from store.errors import SchemaError
from store.format.codecs import parse_codec
from store.format.schema import TRACE_ID, Column
from store.reports import LeftOut
from store.sources.huggingface.collectors import EDGES
from store.sources.huggingface.prompts import (
    NO_CONTEXT,
    EncodedQuestion,
    EncodedQuestions,
    template_values,
)
from store.sources.huggingface.source import HuggingFaceSource
from store.sources.huggingface.tokenization import TokenTexts
from store.sources.prompt_templates import render
from store.sources.questions import Question
from store.traces.fields import NO_FIELDS, Fields
from store.traces.trace_ids import number_trace

__all__ = [
    "SAMPLED",
    "Peak",
    "Sample",
    "TraceLengths",
    "choose_sample",
    "guess_questions",
    "measure_lengths",
    "measure_sample",
]

TOKEN_BYTES = 4  # UTF-8 of a token of English text, about
QUOTES_BYTES = 4  # of a token's text in a JSON list: two quotes, a comma and a space
N_DECODED = 200  # prompts whose tokens are decoded, to see how long their texts are
SHARES = 20.0  # of an attention that adds up to 1, at most so many are as large as .05

SAMPLED = ("prompt_len", "answer_len", "answer")  # columns that a sample is measured by


@dataclass(frozen=True)
class TraceLengths:
    """What is known of the traces before they are made."""

    prompts: NDArray[np.int64]  # (n,), P of each trace
    answers: NDArray[np.int64]  # (n,), A of each trace
    longest: int  # the most tokens that a trace may have
    certainty: str  # what is known of the answers: 'given', 'sample' or 'longest'
    # text column -> bytes of UTF-8 of all traces, as far as questions alone decide them
    text_bytes: dict[str, int]
    token_text_bytes: float = TOKEN_BYTES + QUOTES_BYTES  # of a token in `token_texts`, on average
    answer_token_bytes: float = TOKEN_BYTES  # of an answer's text for each of its tokens
    edges: float | None = None  # of a trace, on average; None where no trace was seen

    @property
    def n_rows(self) -> int:
        return len(self.prompts)

    def longest_alone(self) -> "TraceLengths":
        """A single trace of the longest prompt, and the longest answer to it."""
        prompts = self.prompts.max(keepdims=True)
        return replace(self, prompts=prompts, answers=self.longest - prompts, text_bytes={})

    def count_items(self, n_maps: int) -> dict[str, int]:
        """Count the items of every axis: axis -> items of all traces; of texts, bytes of UTF-8.

        `n_maps` are the heads of all kept layers: they bound the edges where no trace was seen.
        """
        tokens = self.prompts + self.answers
        # the tokens from the prompt's last one on attend to earlier ones
        sources = self.prompts + self.answers / 2
        edges = (self.answers + 1) * np.minimum(sources, SHARES * n_maps)
        n_tokens = int(tokens.sum())
        items = {
            "tokens": n_tokens,
            "pairs": int((tokens * (tokens + 1) // 2).sum()),
            "squares": int((tokens**2).sum()),
            "edges": round(edges.sum() if self.edges is None else self.edges * self.n_rows),
            "token_texts": round(n_tokens * self.token_text_bytes),
            "answer": round(int(self.answers.sum()) * self.answer_token_bytes),
        }
        return items | self.text_bytes


def measure_lengths(
    questions: Sequence[EncodedQuestion],
    tokenizer: PreTrainedTokenizerBase | None,
    max_new_tokens: int,
    n_samples: int,
    fields: Fields = NO_FIELDS,
) -> TraceLengths:
    """The lengths of `n_samples` traces of each question, with the texts of its fields.

    Answers are given to all questions or to none; then each is as long as is allowed.
    """
    prompts = np.repeat(np.array([len(one.prompt) for one in questions], np.int64), n_samples)
    given = [len(one.answer) for one in questions if one.is_given]
    answers = np.array(given) if given else np.full(len(prompts), max_new_tokens)
    return TraceLengths(
        prompts,
        answers,
        longest=int((prompts + answers).max(initial=0)),
        certainty="given" if given else "longest",
        text_bytes=_count_text_bytes(questions, n_samples, fields),
        token_text_bytes=_bytes_a_token(questions, tokenizer) or TOKEN_BYTES + QUOTES_BYTES,
    )


def _bytes_a_token(
    questions: Sequence[EncodedQuestion], tokenizer: PreTrainedTokenizerBase | None
) -> float:
    """The bytes of a token's text in JSON, on average; 0 if nothing tells."""
    if tokenizer is None:
        return 0.0
    texts = TokenTexts(tokenizer)
    decoded = [one.prompt.tolist() for one in questions[:N_DECODED]]
    return bytes_of(map(texts.to_json, decoded)) / max(1, sum(map(len, decoded)))


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


def guess_questions(
    questions: Sequence[Question], template: str, few_shot: Sequence[Question]
) -> EncodedQuestions:
    """Questions with as many tokens as their texts may have; a chat template counts as nothing.

    One that lacks a field of the template is skipped; raises SchemaError if all do.
    """
    shots = bytes_of(shot["question"] + "".join(shot["answers"][:1]) for shot in few_shot)
    guessed = EncodedQuestions([], LeftOut(), 0, LeftOut())
    for question in questions:
        try:
            text = render(template, template_values(question)).text
        except KeyError as error:
            guessed.skipped.add(
                f"question {question['question_id']!r}: expected the field {error} of the prompt "
                "template, found none"
            )
            continue
        response = question.get("response")
        guessed.questions.append(
            EncodedQuestion(
                question,
                prompt=_unknown_tokens(shots + bytes_of([text])),
                context=NO_CONTEXT,
                is_example=False,
                answer=_unknown_tokens(bytes_of([response or ""])),
                token_label=np.empty(0, np.int8),
                trace_id=question.get("trace_id", ""),
                text=response or "",
            )
        )
    if not guessed.questions:
        first = guessed.skipped.messages[0]
        raise SchemaError(f"expected questions that can be asked, found: {first}")
    return guessed


def _unknown_tokens(n_bytes: int) -> NDArray[np.int32]:
    return np.zeros(1 + n_bytes // TOKEN_BYTES, np.int32)


def bytes_of(texts: Iterable[str]) -> int:
    return sum(len(text.encode(errors="surrogatepass")) for text in texts)


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
