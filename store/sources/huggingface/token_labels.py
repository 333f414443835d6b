"""Labels of tokens from labelled characters, by the offsets that a tokenizer gives. Pure."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["NO_LABEL", "label_tokens", "tokens_of"]

NO_LABEL = -1

Range = tuple[int, int]  # characters from start to before end


def label_tokens(
    offsets: Sequence[Range], first: int, spans: Iterable[Range] | None, n_chars: int
) -> NDArray[np.int8]:
    """Label the tokens of an answer: is any of their characters hallucinated?

    Parameters
    ----------
    offsets : sequence of (int, int), T of them
        Characters of each token, as a fast tokenizer of Hugging Face's gives them.
    first : int
        The first token of the answer.
    spans : iterable of (int, int), or None
        The hallucinated characters; spans may overlap. None: there are no annotations.
    n_chars : int
        Characters of the text.

    Returns
    -------
    int8 (T,)
        1: a token of the answer that shares a character with a span, be it only one of several, or
        a space that belongs to the token; 0: one that shares none; -1: tokens before the answer,
        and all of them without spans.
    """
    labels = np.full(len(offsets), NO_LABEL, np.int8)
    if spans is None:
        return labels
    is_marked = bytearray(n_chars)
    for start, end in spans:
        is_marked[start:end] = bytes([1]) * (end - start)
    labels[first:] = [1 in is_marked[start:end] for start, end in offsets[first:]]
    return labels


def tokens_of(offsets: Sequence[Range], place: Range) -> Range:
    """The first token that shares a character with a place, and how many to the last; (-1, 0)."""
    start, end = place
    found = [i for i, (a, b) in enumerate(offsets) if max(a, start) < min(b, end)]
    return (found[0], found[-1] - found[0] + 1) if found else (-1, 0)
