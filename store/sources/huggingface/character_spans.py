"""The characters of each token, where a tokenizer says no more than those of a whole run of them.

With byte fallback, what a vocabulary lacks is written as bytes, a token each. Unigram models give
all bytes of a run the offsets of the run; here each gets the character that it is a byte of.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import groupby, pairwise

from transformers import PreTrainedTokenizerBase

__all__ = ["character_spans"]

Range = tuple[int, int]  # characters from start to before end

_BYTE = re.compile("<0x([0-9A-F]{2})>")


def character_spans(
    tokenizer: PreTrainedTokenizerBase, text: str, ids: Sequence[int], offsets: Sequence[Range]
) -> list[Range]:
    """The characters of each of T tokens, from the offsets that a fast tokenizer gives them.

    A run keeps its own offsets if the normaliser changed more than characters with their marks.
    """
    spans = list(offsets)
    if len(set(spans)) == len(spans):
        return spans
    for (start, end), run in groupby(range(len(spans)), key=offsets.__getitem__):
        tokens = list(run)
        if len(tokens) == 1 or end - start <= 1:
            continue
        pieces = tokenizer.convert_ids_to_tokens([ids[token] for token in tokens])
        found = [int(byte[1], 16) for byte in map(_BYTE.fullmatch, pieces) if byte]
        places = _places(tokenizer, text[start:end], bytes(found))
        if len(places) == len(tokens):
            spans[tokens[0] : tokens[-1] + 1] = [(start + a, start + b) for a, b in places]
    return spans


def _places(tokenizer: PreTrainedTokenizerBase, run: str, written: bytes) -> list[Range]:
    """The characters of a run that each byte is of; none if they are not written so."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    normalize = normalizer.normalize_str if normalizer else str
    bases = [i for i, character in enumerate(run) if not unicodedata.combining(character)]
    for starts in (range(len(run)), bases):
        parts = list(pairwise([*starts, len(run)]))
        normal = [normalize(run[a:b]).encode() for a, b in parts]
        if b"".join(normal) == written:
            return [part for part, n in zip(parts, map(len, normal), strict=True) for _ in range(n)]
    return []
