"""How many items each ragged axis of an extraction will have, from the lengths of its traces.

A trace has the P tokens of its prompt and A tokens of an answer. P is known once the questions are
tokenised; without a tokenizer, four bytes of UTF-8 count as a token. A is known where answers are
given; else the answers of a sample take turns, or each is as long as is allowed.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from store.format.schema import TRACE_ID
from store.reports import LeftOut
from store.sources.huggingface.prompts import (
    ForcedAnswer,
    Prompts,
    encode_fitting,
    template_values,
)
from store.sources.huggingface.token_texts import TokenTexts
from store.sources.prompt_templates import render
from store.sources.questions import Question
from store.traces.trace_ids import number_trace

__all__ = ["TraceLengths", "bytes_of", "guess_lengths", "measure_lengths"]

TOKEN_BYTES = 4  # UTF-8 of a token of English text, about
QUOTES_BYTES = 4  # of a token's text in a JSON list: two quotes, a comma and a space
N_DECODED = 200  # prompts whose tokens are decoded, to see how long their texts are
SHARES = 20.0  # of an attention that adds up to 1, at most so many are as large as .05


@dataclass(frozen=True)
class TraceLengths:
    """What is known of the traces before they are made.

    Attributes
    ----------
    prompts, answers
        P and A of each trace, int64 (n,).
    longest
        The most tokens that a trace may have.
    certainty
        What is known of the answers: 'given', 'sample' or 'longest'.
    text_bytes
        Text column -> bytes of UTF-8 of all traces, as far as questions alone decide them.
    token_text_bytes
        Bytes of a token in `token_texts`, on average.
    answer_token_bytes
        Bytes of an answer's text for each of its tokens, on average.
    edges
        Edges of a trace in `attn_edges`, on average; None where no trace was seen.
    """

    prompts: NDArray[np.int64]
    answers: NDArray[np.int64]
    longest: int
    certainty: str
    text_bytes: dict[str, int]
    token_text_bytes: float = TOKEN_BYTES + QUOTES_BYTES
    answer_token_bytes: float = TOKEN_BYTES
    edges: float | None = None

    @property
    def n_rows(self) -> int:
        return len(self.prompts)

    def longest_alone(self) -> "TraceLengths":
        """A single trace of the longest prompt, and the longest answer to it."""
        prompt = int(self.prompts.max())
        answers = np.array([self.longest - prompt])
        return replace(self, prompts=np.array([prompt]), answers=answers, text_bytes={})

    def count_items(self, n_maps: int) -> dict[str, int]:
        """Count the items of every axis that an extraction may have.

        Parameters
        ----------
        n_maps
            Heads of all kept layers: they bound the edges where no trace was seen.

        Returns
        -------
        dict
            Axis -> items of all traces together; of a text column, bytes of UTF-8.
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
    questions: Sequence[Question], prompts: Prompts, n_samples: int, skipped: LeftOut
) -> tuple[list[Question], TraceLengths]:
    """Tokenise the prompts, and the responses that are given.

    Parameters
    ----------
    questions
        In their order; responses to all of them, or to none.
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
    prompt_ids: list[Sequence[int]] = []
    given = []
    for question, encoded in encode_fitting(questions, prompts, skipped):
        fitting.append(question)
        if isinstance(encoded, ForcedAnswer):
            given.append(len(encoded.ids))
            encoded = encoded.prompt
        prompt_ids.append(encoded.ids)
    prompt_lens = list(map(len, prompt_ids))
    texts = TokenTexts(prompts.tokenizer)
    n_text_bytes = bytes_of(texts.to_json(ids) for ids in prompt_ids[:N_DECODED])
    token_text_bytes = n_text_bytes / max(1, sum(prompt_lens[:N_DECODED]))
    lengths = _combine(fitting, prompt_lens, given, prompts.max_new_tokens, n_samples)
    return fitting, replace(lengths, token_text_bytes=token_text_bytes)


def guess_lengths(
    questions: Sequence[Question],
    template: str,
    few_shot: Sequence[Question],
    max_new_tokens: int,
    n_samples: int,
    skipped: LeftOut,
) -> tuple[list[Question], TraceLengths]:
    """The same without a tokenizer, from the texts; a chat template counts as nothing."""
    shots = bytes_of(shot["question"] + "".join(shot["answers"][:1]) for shot in few_shot)
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
        prompt_lens.append(_guess_tokens(shots + bytes_of([text])))
    given = [
        _guess_tokens(bytes_of([question["response"]]))
        for question in fitting
        if "response" in question
    ]
    return fitting, _combine(fitting, prompt_lens, given, max_new_tokens, n_samples)


def _combine(
    questions: Sequence[Question],
    prompt_lens: Sequence[int],
    given: Sequence[int],
    max_new_tokens: int,
    n_samples: int,
) -> TraceLengths:
    """The lengths of all traces, of answers that are given or as long as is allowed."""
    prompts = np.repeat(np.array(prompt_lens, np.int64), n_samples)
    answers = np.full(len(prompts), max_new_tokens)
    if given:
        answers = np.array(given)
    return TraceLengths(
        prompts,
        answers,
        longest=int((prompts + answers).max(initial=0)),
        certainty="given" if given else "longest",
        text_bytes=_count_text_bytes(questions, n_samples),
    )


def _guess_tokens(n_bytes: int) -> int:
    return 1 + n_bytes // TOKEN_BYTES


def _count_text_bytes(questions: Sequence[Question], n_samples: int) -> dict[str, int]:
    """Text column -> bytes of UTF-8 in all traces, for what questions alone decide."""
    ids = [
        question.get("trace_id") or number_trace(question["question_id"], k)
        for question in questions
        for k in range(1, n_samples + 1)
    ]
    references = [json.dumps(question["answers"], ensure_ascii=False) for question in questions]
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
