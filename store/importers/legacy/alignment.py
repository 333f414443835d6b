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

__all__ = ["Span"]

UNKNOWN = -1  # the id of a token that the file does not hold


@dataclass(frozen=True)
class Span:
    """How many tokens a record speaks of."""

    n_states: int  # T, tokens with states
    n_whole: int  # tokens of the prompt and of the answer that was kept
    prompt_len: int | None  # P, tokens of the prompt; None if it is not known

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
        """Return the span of a record per layer with so many tokens, and the prompt that it says.

        Raises SchemaError if there are no tokens, more than states, or the prompt's length
        contradicts them.
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

    def align_tokens(self, tokens: np.ndarray) -> np.ndarray:
        """Return the id of each token that has a state, int32 `(T,)`.

        The tokens are of the whole sequence or of the answer alone; then the prompt's are -1.
        """
        start = self._start(len(tokens), "tokens")
        unknown = np.full(start, UNKNOWN, np.int32)
        return np.concatenate([unknown, tokens])[: self.n_states]

    def align_texts(self, texts: Sequence[str]) -> list[str]:
        """Return T texts, empty ones for the prompt's tokens where the answer's are all."""
        start = self._start(len(texts), "tokens_decoded")
        return [*[""] * start, *texts][: self.n_states]

    def check_cut(self, n_kept: int | None) -> None:
        """Raise SchemaError if the answer was cut after other tokens than those with states."""
        if n_kept is not None and n_kept != self.n_answer:
            raise SchemaError(
                f"tokens_before_cutoff: expected {self.n_answer}, the answer's tokens of "
                f"{self.n_states} in hidden_states, found {n_kept}"
            )

    def _start(self, n: int, key: str) -> int:
        """Return the position of the first of n tokens or texts."""
        if n == self.n_whole:
            return 0
        if n == self.n_answer and self.prompt_len is not None:
            return self.prompt_len
        answer = "" if self.n_answer is None else f", or {self.n_answer} of the answer alone"
        raise SchemaError(
            f"{key}: expected {self.n_whole} of the whole sequence{answer}, "
            f"for {self.n_states} in hidden_states, found {n}"
        )
