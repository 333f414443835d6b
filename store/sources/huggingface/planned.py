"""The lengths of traces before a model has run: its tokenizer on the questions, and a sample.

Where there is no tokenizer, four bytes of a prompt count as a token.
"""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from store.format.codecs import parse_codec
from store.format.schema import TRACE_ID, Schema
from store.reports import LeftOut
from store.sources.huggingface.attention_columns import EDGES
from store.sources.huggingface.prompts import (
    ForcedAnswer,
    Prompts,
    encode_fitting,
    template_values,
)
from store.sources.huggingface.source import HuggingFaceSource
from store.sources.huggingface.token_texts import TokenTexts
from store.sources.plan.lengths import QUOTES_BYTES, AnswerLengths, TraceLengths
from store.sources.prompt_templates import render
from store.sources.questions import Question
from store.traces.trace_ids import number_trace

__all__ = [
    "SAMPLED",
    "Sample",
    "choose_sample",
    "guess_lengths",
    "measure_lengths",
    "measure_sample",
    "refine_lengths",
]

Row = dict[str, Any]

BYTES_PER_TOKEN = 4  # of English text, about
SAMPLED = ("prompt_len", "answer_len", "answer")  # columns that a sample is measured by
N_DECODED = 200  # prompts whose tokens are decoded, to see how long their texts are


class Sample(NamedTuple):
    """What a few questions took, and how large their traces are.

    Attributes
    ----------
    n_questions, n_traces
        Asked, and their traces.
    load_s
        Seconds until the model could be asked.
    seconds
        Of all questions, the first batch being warmed up.
    passes
        Part of the work -> seconds.
    answer_lengths
        Tokens of each answer.
    answer_token_bytes
        Bytes of an answer's text for each of its tokens, on average.
    token_text_bytes
        Bytes of a token's text, on average; None where they are not kept.
    edges
        Edges of a trace, on average; None where they are not kept.
    shrinks
        Compressed column -> how many times smaller its values get.
    """

    n_questions: int
    n_traces: int
    load_s: float
    seconds: float
    passes: dict[str, float]
    answer_lengths: list[int]
    answer_token_bytes: float
    token_text_bytes: float | None
    edges: float | None
    shrinks: dict[str, float]


def measure_lengths(
    questions: Sequence[Question], prompts: Prompts, n_samples: int, skipped: LeftOut
) -> tuple[list[Question], TraceLengths]:
    """Tokenise the prompts, and the responses that are given.

    Parameters
    ----------
    questions
        In their order; responses to all of them, or to none.
    prompts
        Makes the prompts; `prompts.max_new_tokens` bounds the answers.
    n_samples
        Traces of each question.
    skipped
        Gets those that the model cannot take.

    Returns
    -------
    list of Question
        The others.
    TraceLengths
        Of their traces. Answers that are not given are as long as is allowed.
    """
    fitting = []
    prompt_lens = []
    answer_lens = []
    texts = TokenTexts(prompts.tokenizer)
    n_text_bytes, n_text_tokens = 0, 0
    for question, encoded in encode_fitting(questions, prompts, skipped):
        prompt = encoded.prompt if isinstance(encoded, ForcedAnswer) else encoded
        fitting.append(question)
        prompt_lens.append(len(prompt.ids))
        if isinstance(encoded, ForcedAnswer):
            answer_lens.append(len(encoded.ids))
        if len(fitting) <= N_DECODED:
            n_text_bytes += len(texts.to_json(prompt.ids).encode())
            n_text_tokens += len(prompt.ids)
    text_bytes = n_text_bytes / max(1, n_text_tokens) - QUOTES_BYTES
    known = np.array(answer_lens, np.int64)
    return fitting, TraceLengths(
        np.repeat(np.array(prompt_lens, np.int64), n_samples),
        known if answer_lens else AnswerLengths.all_of(prompts.max_new_tokens),
        text_bytes=count_text_bytes(fitting, n_samples),
        token_text_bytes=max(text_bytes, 0.0),
    )


def guess_lengths(
    questions: Sequence[Question],
    template: str,
    few_shot: Sequence[Question],
    max_new_tokens: int,
    n_samples: int,
    skipped: LeftOut,
) -> tuple[list[Question], TraceLengths]:
    """The same without a tokenizer, from the texts; a chat template counts as nothing."""
    shots = _bytes_of(shot["question"] + "".join(shot["answers"][:1]) for shot in few_shot)
    fitting = []
    prompt_lens = []
    for question in questions:
        try:
            text = render(template, template_values(question)).text
        except KeyError as error:
            skipped.add(
                f"question {question['question_id']!r}: expected the field {error} of the prompt "
                "template, found none"
            )
            continue
        fitting.append(question)
        prompt_lens.append(_guess_tokens(shots + len(text.encode())))
    given = [question["response"] for question in fitting if "response" in question]
    known = np.array([_guess_tokens(len(text.encode())) for text in given], np.int64)
    return fitting, TraceLengths(
        np.repeat(np.array(prompt_lens, np.int64), n_samples),
        known if given else AnswerLengths.all_of(max_new_tokens),
        text_bytes=count_text_bytes(fitting, n_samples),
    )


def _guess_tokens(n_bytes: int) -> int:
    return 1 + n_bytes // BYTES_PER_TOKEN


def count_text_bytes(questions: Sequence[Question], n_samples: int) -> dict[str, int]:
    """Text column -> bytes of UTF-8 in all traces, for what questions alone decide."""
    numbers = range(1, n_samples + 1)
    ids = [
        question.get("trace_id") or number_trace(question["question_id"], k)
        for question in questions
        for k in numbers
    ]
    references = [json.dumps(question["answers"], ensure_ascii=False) for question in questions]
    counted = {
        "question_id": n_samples * _bytes_of(question["question_id"] for question in questions),
        "question": n_samples * _bytes_of(question["question"] for question in questions),
        "references": n_samples * _bytes_of(references),
        TRACE_ID: _bytes_of(ids),
    }
    given = [question["response"] for question in questions if "response" in question]
    return counted | ({"answer": _bytes_of(given)} if given else {})


def choose_sample(questions: Sequence[Question], n: int) -> list[Question]:
    """So many questions, evenly spread: files are often sorted."""
    places = np.linspace(0, len(questions) - 1, min(n, len(questions)))
    return [questions[place] for place in places.astype(int).tolist()]


def measure_sample(source: HuggingFaceSource, load_s: float) -> Sample:
    """Run a source of few questions; the first batch twice, of which the second time counts."""
    next(source.rows())
    warm_up = dict(source.seconds)
    began = time.perf_counter()
    rows = [row for _, row in source.rows()]
    seconds = time.perf_counter() - began
    passes = {name: spent - warm_up[name] for name, spent in source.seconds.items()}
    lengths = [int(row["answer_len"]) for row in rows]
    return Sample(
        n_questions=len(source.questions),
        n_traces=len(rows),
        load_s=load_s,
        seconds=seconds,
        passes=passes,
        answer_lengths=lengths,
        answer_token_bytes=_bytes_of(row["answer"] for row in rows) / sum(lengths),
        token_text_bytes=_token_text_bytes(rows),
        edges=_mean_edges(rows),
        shrinks=_shrinks(rows, source.schema),
    )


def refine_lengths(lengths: TraceLengths, sample: Sample, longest: int) -> TraceLengths:
    """What is known of traces once a few of them were made; `longest` bounds their answers."""
    answers = lengths.answers
    if isinstance(answers, AnswerLengths):
        answers = AnswerLengths.of_sample(sample.answer_lengths, longest)
    return replace(
        lengths,
        answers=answers,
        answer_token_bytes=sample.answer_token_bytes,
        token_text_bytes=sample.token_text_bytes or lengths.token_text_bytes,
        edges=sample.edges,
    )


def _token_text_bytes(rows: Sequence[Row]) -> float | None:
    if "token_texts" not in rows[0]:
        return None
    n_tokens = sum(row["prompt_len"] + row["answer_len"] for row in rows)
    return _bytes_of(row["token_texts"] for row in rows) / n_tokens - QUOTES_BYTES


def _mean_edges(rows: Sequence[Row]) -> float | None:
    kept = [name for name in EDGES if name in rows[0]]
    if not kept:
        return None
    return sum(len(row[kept[0]]) for row in rows) / len(rows)


def _shrinks(rows: Sequence[Row], schema: Schema) -> dict[str, float]:
    """How many times smaller each compressed column's values get, all in one chunk."""
    shrinks = {}
    for name, column in schema.columns.items():
        if column.codec is None:
            continue
        values = np.concatenate([row[name] for row in rows])[: column.chunk_items]
        if values.size:
            data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            packed = parse_codec(column.codec).encode(data, column.storage_dtype.itemsize)
            shrinks[name] = values.nbytes / len(packed)
    return shrinks


def _bytes_of(texts: Iterable[str]) -> int:
    return sum(len(text.encode(errors="surrogatepass")) for text in texts)
