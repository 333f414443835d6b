"""The text of each token of a trace, so that it can be read without the tokenizer."""

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TokenTexts"]

PAIRS_KEPT = 1 << 16


class TokenTexts:
    """Cuts the decoded text of traces into the texts of their tokens."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        # a token's text depends on the one before it alone, but for characters of several tokens
        self._after = lru_cache(PAIRS_KEPT)(self._text_after)

    def to_json(self, ids: Sequence[int]) -> str:
        """The texts as a JSON list."""
        return json.dumps(self.texts(ids), ensure_ascii=False)

    def texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token.

        Parameters
        ----------
        ids : sequence of int, (T,)
            Token ids, special ones too.

        Returns
        -------
        list of str, (T,)
            Together they are the decoded trace. A character of several tokens stands at its first;
            the others have "".
        """
        whole = self._decode(ids)
        texts = [self._decode(ids[:1])]
        texts += [self._after(before, token) for before, token in pairwise(ids)]
        if "".join(texts) == whole:
            return texts
        texts = self._cut_by_windows(ids, whole)
        return texts if "".join(texts) == whole else self._cut_by_prefixes(ids, whole)

    def _text_after(self, before: int, token: int) -> str:
        return self._decode([before, token])[len(self._decode([before])) :]

    def _cut_by_windows(self, ids: Sequence[int], whole: str) -> list[str]:
        """The texts as from prefixes, each of which begins again at the last token with a text.

        Decoding is then of a few tokens each time. Bytes that are no text can be read otherwise
        without what was before them; the texts together are then not the whole.
        """
        texts = [""] * len(ids)
        first, start = 0, 0  # as in `_cut_by_prefixes`
        base, n_before = 0, 0  # the token that windows begin at, and what it adds before `first`
        for n in range(1, len(ids) + 1):
            added = self._decode(ids[base:n])[n_before:]
            if not whole.startswith(added, start):
                continue
            texts[first] = added
            start += len(added)
            base = first if added else base
            first = n
            n_before = len(self._decode(ids[base:n]))
        return texts

    def _cut_by_prefixes(self, ids: Sequence[int], whole: str) -> list[str]:
        """The texts from decoding the first tokens, one more each time: slower, and always right.

        Where these are no beginning of the whole text, a character is unfinished.
        """
        texts = [""] * len(ids)
        first, start = 0, 0  # of the tokens that no text was given to yet, and of their text
        for n in range(1, len(ids) + 1):
            begun = whole if n == len(ids) else self._decode(ids[:n])
            if len(begun) >= start and whole.startswith(begun):
                texts[first] = begun[start:]
                first, start = n, len(begun)
        return texts

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))
