"""Which token belongs to which state of a raw trace, from the numbers of both. Pure.

A raw record holds T states. Its list of tokens is of the whole sequence or of the answer alone, and
which of the two it is follows from its length, never from the names of keys:

==========  =========================  ==========================================================
states      whole sequence             answer alone
==========  =========================  ==========================================================
by step     T + 1 tokens               T - P + 1 tokens, P tokens in the first step
per layer   T tokens                   fewer than T, the last ones
==========  =========================  ==========================================================

By step the last token that was kept never went into the model, so it has no state. A list of any
other length is an error: it could only be guessed where it begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from store.errors import SchemaError

__all__ = ["UNKNOWN", "Span", "align_texts", "align_tokens", "align_uncut_tokens", "check_cut"]

UNKNOWN = -1  # the id of a token that the file does not hold


@dataclass(frozen=True)
class Span:
    """How many tokens a record speaks of.

    Attributes
    ----------
    n_states
        T, tokens with states.
    n_whole
        Tokens of the prompt and of the answer that was kept.
    prompt_len
        P, tokens of the prompt; None if it is not known.
    """

    n_states: int
    n_whole: int
    prompt_len: int | None

    @property
    def n_answer(self) -> int | None:
        """Tokens of the answer that was kept; None if the prompt's are not known."""
        return None if self.prompt_len is None else self.n_whole - self.prompt_len

    @classmethod
    def by_step(cls, n_states: int, prompt_len: int) -> "Span":
        """Return the span of a record by step, of which the first step took the prompt."""
        return cls(n_states, n_states + 1, prompt_len)

    @classmethod
    def per_layer(cls, n_states: int, n_tokens: int, prompt_len: int | None = None) -> "Span":
        """Return the span of a record per layer with so many tokens.

        Parameters
        ----------
        prompt_len
            As the record says it; None if it does not.

        Raises
        ------
        SchemaError
            There are no tokens, more than states, or the prompt's length contradicts them.
        """
        if not 0 < n_tokens <= n_states:
            raise SchemaError(
                f"tokens: expected {n_states} as hidden_states has, or fewer of the answer alone, "
                f"found {n_tokens}"
            )
        n_before = n_states - n_tokens
        if n_before and prompt_len not in (None, n_before):
            raise SchemaError(
                f"prompt_length: expected {n_before}, the {n_states} states before the "
                f"{n_tokens} tokens of the answer, found {prompt_len}"
            )
        if prompt_len is not None and not 0 < prompt_len <= n_states:
            raise SchemaError(f"prompt_length: expected 1 to {n_states}, found {prompt_len}")
        return cls(n_states, n_states, n_before or prompt_len)


def align_tokens(tokens: np.ndarray, span: Span) -> np.ndarray:
    """Return the id of each token that has a state.

    Parameters
    ----------
    tokens
        int32; of the whole sequence or of the answer alone.

    Returns
    -------
    int32 `(T,)`; -1 for the prompt's tokens where the answer's are all that is given.
    """
    start = _start(len(tokens), span, "tokens")
    unknown = np.full(start, UNKNOWN, np.int32)
    return np.concatenate([unknown, tokens])[: span.n_states]


def align_uncut_tokens(
    full: np.ndarray, tokens: np.ndarray | None, n_cut: int | None, span: Span
) -> np.ndarray:
    """Return the id of each token that has a state, from a sequence with what was cut off.

    Parameters
    ----------
    full
        int32; prompt, answer, and the tokens that were cut off behind it.
    tokens
        Of the kept part, whole or the answer alone, which must be in `full`; None if not given.
    n_cut
        How many were cut off; None if not given.

    Returns
    -------
    int32 `(T,)`, a view.
    """
    expected = [span.n_states, span.n_whole]
    if n_cut is not None:
        expected = [span.n_whole + n_cut]
    is_confirmed = n_cut is None and tokens is not None and len(full) > span.n_whole
    if len(full) not in expected and not is_confirmed:
        numbers = " or ".join(map(str, expected))
        raise SchemaError(
            f"tokens_full: expected {numbers} tokens, for {span.n_states} in hidden_states, "
            f"found {len(full)}"
        )
    if tokens is not None and not any(
        np.array_equal(full[start : start + len(tokens)], tokens)
        for start in _starts_in_full(len(tokens), span)
    ):
        raise SchemaError(
            "tokens: expected the kept part of tokens_full, whole or the answer alone, "
            f"found {len(tokens)} others"
        )
    return full[: span.n_states]


def align_texts(texts: Sequence[str], span: Span) -> list[str]:
    """Return T texts, empty ones for the prompt's tokens where the answer's are all."""
    start = _start(len(texts), span, "tokens_decoded")
    return [*[""] * start, *texts][: span.n_states]


def check_cut(n_kept: int | None, span: Span) -> None:
    """Raise SchemaError if the answer was cut after other tokens than those that have states."""
    if n_kept is not None and n_kept != span.n_answer:
        raise SchemaError(
            f"tokens_before_cutoff: expected {span.n_answer}, the answer's tokens of "
            f"{span.n_states} in hidden_states, found {n_kept}"
        )


def _start(n: int, span: Span, key: str) -> int:
    """Return the position of the first of n tokens or texts."""
    if n == span.n_whole:
        return 0
    if n == span.n_answer and span.prompt_len is not None:
        return span.prompt_len
    answer = "" if span.n_answer is None else f", or {span.n_answer} of the answer alone"
    raise SchemaError(
        f"{key}: expected {span.n_whole} of the whole sequence{answer}, "
        f"for {span.n_states} in hidden_states, found {n}"
    )


def _starts_in_full(n: int, span: Span) -> list[int]:
    """Return where n kept tokens may begin; the one without a state may be missing from them."""
    n_missing = span.n_whole - n
    n_without_state = span.n_whole - span.n_states
    prompt_len = span.prompt_len or 0
    possible = dict.fromkeys((0, prompt_len))
    return [start for start in possible if 0 <= n_missing - start <= n_without_state]
