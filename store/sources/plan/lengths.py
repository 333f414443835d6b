"""How many items each ragged axis of an extraction will have, from the lengths of its traces.

A trace has the P tokens of its prompt and A tokens of an answer. P is known once the questions are
tokenised; without a tokenizer, four bytes of UTF-8 count as a token. A is known where answers are
given; else the answers of a sample take turns, or each is as long as is allowed.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from store.format.schema import TRACE_ID
from store.reports import LeftOut
from store.sources.huggingface.prompts import ForcedAnswer, Prompts, encode_fitting, template_values
from store.sources.huggingface.token_texts import TokenTexts
from store.sources.prompt_templates import render
from store.sources.questions import Question
from store.traces.trace_ids import number_trace

__all__ = ["TraceLengths", "bytes_of", "guess_tokens", "measure_lengths", "tokenise"]

TOKEN_BYTES = 4  # UTF-8 of a token of English text, about
QUOTES_BYTES = 4  # of a token's text in a JSON list: two quotes, a comma and a space
N_DECODED = 200  # prompts whose tokens are decoded, to see how long their texts are
SHARES = 20.0  # of an attention that adds up to 1, at most so many are as large as .05

# A question, the tokens of its prompt, and those of its answer if that is given
Counted = tuple[Question, int, int | None]


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
    counted: Sequence[Counted], max_new_tokens: int, n_samples: int, token_text_bytes: float | None
) -> TraceLengths:
    """The lengths of `n_samples` traces of each question.

    Answers are given to all questions or to none; then each is as long as is allowed.
    """
    questions = [question for question, _, _ in counted]
    prompts = np.repeat(np.array([n for _, n, _ in counted], np.int64), n_samples)
    given = [n for _, _, n in counted if n is not None]
    answers = np.array(given) if given else np.full(len(prompts), max_new_tokens)
    return TraceLengths(
        prompts,
        answers,
        longest=int((prompts + answers).max(initial=0)),
        certainty="given" if given else "longest",
        text_bytes=_count_text_bytes(questions, n_samples),
        token_text_bytes=token_text_bytes or TOKEN_BYTES + QUOTES_BYTES,
    )


def tokenise(
    questions: Sequence[Question], prompts: Prompts, skipped: LeftOut
) -> tuple[list[Counted], float]:
    """Count the tokens of prompts and of given responses; `skipped` gets what the model can't take.

    The second value is the bytes of a token's text in JSON, on average.
    """
    counted: list[Counted] = []
    texts = TokenTexts(prompts.tokenizer)
    n_text_bytes = n_tokens = 0
    for question, encoded in encode_fitting(questions, prompts, skipped):
        n_given = None
        if isinstance(encoded, ForcedAnswer):
            n_given = len(encoded.ids)
            encoded = encoded.prompt
        ids = encoded.ids
        if len(counted) < N_DECODED:
            n_text_bytes += bytes_of([texts.to_json(ids)])
            n_tokens += len(ids)
        counted.append((question, len(ids), n_given))
    return counted, n_text_bytes / max(1, n_tokens)


def guess_tokens(
    questions: Sequence[Question], template: str, few_shot: Sequence[Question], skipped: LeftOut
) -> Iterator[Counted]:
    """The same without a tokenizer, from the texts; a chat template counts as nothing."""
    shots = bytes_of(shot["question"] + "".join(shot["answers"][:1]) for shot in few_shot)
    for question in questions:
        try:
            text = render(template, template_values(question)).text
        except KeyError as error:
            skipped.add(
                f"question {question['question_id']!r}: expected the field {error} of the prompt "
                "template, found none"
            )
            continue
        given = question.get("response")
        n_given = None if given is None else _guess(bytes_of([given]))
        yield question, _guess(shots + bytes_of([text])), n_given


def _guess(n_bytes: int) -> int:
    return 1 + n_bytes // TOKEN_BYTES


def _count_text_bytes(questions: Sequence[Question], n_samples: int) -> dict[str, int]:
    """Text column -> bytes of UTF-8 in all traces, for what questions alone decide."""
    ids = [
        question.get("trace_id") or number_trace(question["question_id"], k)
        for question in questions
        for k in range(1, n_samples + 1)
    ]
    references = (json.dumps(question["answers"], ensure_ascii=False) for question in questions)
    counted = {
        "question_id": n_samples * bytes_of(question["question_id"] for question in questions),
        "question": n_samples * bytes_of(question["question"] for question in questions),
        "references": n_samples * bytes_of(references),
        TRACE_ID: bytes_of(ids),
    }
    given = [question["response"] for question in questions if "response" in question]
    return counted | ({"answer": bytes_of(given)} if given else {})


def bytes_of(texts: Iterable[str]) -> int:
    """The bytes of texts in UTF-8."""
    return sum(len(text.encode(errors="surrogatepass")) for text in texts)
