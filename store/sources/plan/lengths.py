"""How many items each ragged axis of an extraction will have, from the lengths of its traces. Pure.

T = P + A: a trace has the P tokens of its prompt, and A tokens of an answer. P is known once the
questions are tokenised. A is known where answers are given; else it is that of a sample, or the
longest that is allowed, and then every number is an upper bound.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["AnswerLengths", "TraceLengths", "count_items", "edges_at_most"]

ANSWER_BYTES = 4  # UTF-8 of a token, about, where no answer was seen
QUOTES_BYTES = 4  # of a token's text in a JSON list: two quotes, a comma and a space


@dataclass(frozen=True)
class AnswerLengths:
    """What is known of the answers' lengths.

    Attributes
    ----------
    mean, mean_square
        Of A, in tokens.
    longest
        The longest that is possible.
    error
        Standard error of the mean, in tokens; 0 where lengths are known, or are upper bounds.
    """

    mean: float
    mean_square: float
    longest: int
    error: float = 0.0

    @classmethod
    def all_of(cls, n_tokens: int) -> "AnswerLengths":
        """Every answer has so many tokens."""
        return cls(n_tokens, n_tokens**2, n_tokens)

    @classmethod
    def of_sample(cls, lengths: Sequence[int], longest: int) -> "AnswerLengths":
        """Answers are as long as those of a sample; at least one."""
        found = np.asarray(lengths, np.float64)
        spread = found.std(ddof=1) if len(found) > 1 else 0.0
        error = spread / math.sqrt(len(found))
        return cls(float(found.mean()), float((found**2).mean()), longest, float(error))


@dataclass(frozen=True)
class TraceLengths:
    """What is known of every trace before it is made.

    Attributes
    ----------
    prompts
        P of each trace, int64 (n,).
    answers
        A of each trace, int64 (n,), where answers are given; else what is known of all of them.
    text_bytes
        Text column -> bytes of UTF-8 of all traces, as far as questions alone decide them.
    token_text_bytes
        Bytes of a token's text, on average; quotes of JSON are not counted.
    answer_token_bytes
        Bytes of an answer's text for each of its tokens, on average.
    edges
        Edges of a trace in `attn_edges`, on average; None where no trace was seen.
    """

    prompts: NDArray[np.int64]
    answers: NDArray[np.int64] | AnswerLengths
    text_bytes: Mapping[str, int] = field(default_factory=dict)
    token_text_bytes: float = ANSWER_BYTES
    answer_token_bytes: float = ANSWER_BYTES
    edges: float | None = None

    @property
    def n_rows(self) -> int:
        return len(self.prompts)

    @property
    def longest(self) -> int:
        """The most tokens that a trace may have."""
        if isinstance(self.answers, AnswerLengths):
            return int(self.prompts.max()) + self.answers.longest
        return int((self.prompts + self.answers).max())

    @property
    def longest_prompt(self) -> int:
        return int(self.prompts.max())


def count_items(lengths: TraceLengths, n_heads: int, n_layers: int) -> dict[str, int]:
    """Count the items of every axis that an extraction may have.

    Parameters
    ----------
    lengths
        Of the traces.
    n_heads, n_layers
        H, and the layers that are kept: they bound the edges where no trace was seen.

    Returns
    -------
    dict
        Axis -> items of all traces together; of a text column, bytes of UTF-8.
    """
    prompts = lengths.prompts.astype(np.float64)
    if isinstance(lengths.answers, AnswerLengths):
        answers = np.full(len(prompts), lengths.answers.mean)
        squares = np.full(len(prompts), lengths.answers.mean_square)
    else:
        answers = lengths.answers.astype(np.float64)
        squares = answers**2
    tokens = prompts + answers
    square = prompts**2 + 2 * prompts * answers + squares  # E[(P + A)²]
    edges = edges_at_most(prompts, answers, n_heads * n_layers)
    if lengths.edges is not None:
        edges = np.full(len(prompts), lengths.edges)
    token_texts = tokens * (lengths.token_text_bytes + QUOTES_BYTES)
    counted = {
        "tokens": tokens,
        "pairs": (square + tokens) / 2,
        "squares": square,
        "edges": edges,
        "token_texts": token_texts,
        "answer": answers * lengths.answer_token_bytes,
    }
    items = {axis: round(float(values.sum())) for axis, values in counted.items()}
    return items | dict(lengths.text_bytes)


def edges_at_most(
    prompts: NDArray[np.float64], answers: NDArray[np.float64], n_maps: int
) -> NDArray[np.float64]:
    """The most edges that traces may have, (n,).

    The tokens from the prompt's last one on attend to earlier ones; of a head's attention, which
    adds up to 1, at most 20 shares are as large as .05.
    """
    sources = prompts + answers / 2  # earlier tokens, on average over those rows
    return (answers + 1) * np.minimum(sources, 20.0 * n_maps)
