"""The tokens of texts: of a prompt and an answer that exists already, their labels and their texts.

Where tokens end depends on what stands beside them: SentencePiece and byte-level BPE join a word
with the space before it. So prompt and answer are tokenised as one text. But the prompt's tokens
are those that a model would be asked with: where the one text has others, because a token holds
characters of both, the answer is tokenised behind a character that it is not joined with.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "JOINING",
    "NO_LABEL",
    "TokenTexts",
    "Tokens",
    "appends_tokens",
    "go_on",
    "knows_spaces",
    "label_tokens",
    "special_tokens",
    "tokenize",
    "tokens_of",
]

JOINING = (
    "prompt and response are tokenised as one text; a space is put between them where neither has "
    "one, except behind a special token and for tokenizers without spaces; a chat template decides "
    "itself what it puts there; the prompt has the tokens that it has alone, which no token joins "
    "with the answer; no end-of-sequence token is appended"
)
# before an answer that a prompt's last token would be joined with; the first one that is not
ANCHORS = (":", "1", "a")

Range = tuple[int, int]  # characters from start to before end

_BYTE = re.compile("<0x([0-9A-F]{2})>")
NO_LABEL = -1
PAIRS_KEPT = 1 << 16


class Tokens(NamedTuple):
    """The tokens of a text."""

    ids: list[int]
    # the characters of each, from start to before end; empty where they were not asked for
    offsets: list[tuple[int, int]]


def tokenize(
    tokenizer: "PreTrainedTokenizerBase", text: str, *, special: bool, offsets: bool = True
) -> Tokens:
    """Tokenise a text that goes on: without what a tokenizer appends (`</s>`, `[SEP]`).

    `tokenizer`: it may raise anything for a text that it cannot take. `special`: whether it puts
    its special tokens in front. `offsets`: whether the characters of the tokens are needed, which
    takes a fast tokenizer.

    Raises ValueError: the tokenizer is none of the fast ones.
    """
    if offsets and not tokenizer.is_fast:
        raise ValueError(
            "tokenizer: expected a fast one, which knows the characters of its tokens (contexts "
            f"and given responses need them), found {type(tokenizer).__name__}"
        )
    found = tokenizer(
        text,
        add_special_tokens=special,
        return_offsets_mapping=offsets,
        return_special_tokens_mask=True,
    )
    end = len(found["input_ids"])
    while end and found["special_tokens_mask"][end - 1]:
        end -= 1
    ids = found["input_ids"][:end]
    if not offsets:
        return Tokens(ids, [])
    return Tokens(ids, _character_spans(tokenizer, text, ids, found["offset_mapping"][:end]))


def _character_spans(
    tokenizer: "PreTrainedTokenizerBase", text: str, ids: Sequence[int], offsets: Sequence[Range]
) -> list[Range]:
    """The characters of each of T tokens, from the offsets that a fast tokenizer gives them.

    With byte fallback, what a vocabulary lacks is written as bytes, a token each. Unigram models
    give all bytes of a run the offsets of the run; here each gets the character that it is a byte
    of.

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


def _places(tokenizer: "PreTrainedTokenizerBase", run: str, written: bytes) -> list[Range]:
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


def appends_tokens(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether a tokenizer puts special tokens behind a text."""
    text = next(iter(tokenizer.all_special_tokens), "")  # which any tokenizer can take
    return tokenizer(text, return_special_tokens_mask=True)["special_tokens_mask"][-1:] == [1]


def special_tokens(tokenizer: "PreTrainedTokenizerBase") -> set[str]:
    """The texts of all special tokens, such as those that mark the turns of a chat."""
    added = tokenizer.added_tokens_decoder.values()
    return {*tokenizer.all_special_tokens, *(token.content for token in added if token.special)}


def knows_spaces(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether a space can stand in a text of a tokenizer, be it as a border of words."""
    try:
        ids = tokenizer(" ", add_special_tokens=False)["input_ids"]
    except Exception:  # noqa: BLE001 - the tokenizers library raises nothing narrower
        return False
    return tokenizer.unk_token_id is None or tokenizer.unk_token_id not in ids


def go_on(
    tokenizer: "PreTrainedTokenizerBase", prompt: str, answer: str, *, special: bool
) -> tuple[Tokens, int]:
    """The tokens of a prompt and of an answer behind it, and how many are the prompt's.

    Raises ValueError for a tokenizer that joins the answer with whatever is before it.
    """
    asked = tokenize(tokenizer, prompt, special=special, offsets=False).ids
    for before in (prompt, *ANCHORS):
        begun = asked
        if before is not prompt:
            begun = tokenize(tokenizer, before, special=special, offsets=False).ids
        ids, offsets = tokenize(tokenizer, before + answer, special=special)
        n = len(begun)
        if ids[:n] != begun or (n and offsets[n - 1][1] > len(before)):
            continue
        if before is prompt:
            return Tokens(ids, offsets), n
        shift = len(prompt) - len(before)
        answered = [(start + shift, end + shift) for start, end in offsets[n:]]
        before_it = tokenize(tokenizer, prompt, special=special).offsets
        return Tokens(asked + ids[n:], before_it + answered), len(asked)
    raise ValueError(f"no token that ends before the response {answer!r:.40}")


def label_tokens(
    offsets: Sequence[Range], first: int, spans: Iterable[Range] | None, n_chars: int
) -> NDArray[np.int8]:
    """Label the tokens of an answer: is any of their characters hallucinated?

    `offsets`: characters of each token, as a fast tokenizer of Hugging Face's gives them. `first`:
    the first token of the answer. `spans`: the hallucinated characters; spans may overlap. None:
    there are no annotations. `n_chars`: characters of the text.

    Returns int8 (T,): 1: a token of the answer that shares a character with a span, be it only one
    of several, or a space that belongs to the token; 0: one that shares none; -1: tokens before the
    answer, and all of them without spans.
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


class TokenTexts:
    """Cuts the decoded text of traces into the texts of their tokens."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        # a token's text depends on the one before it alone, but for characters of several tokens
        self._after = lru_cache(PAIRS_KEPT)(self._text_after)

    def to_json(self, ids: Sequence[int]) -> str:
        return json.dumps(self.texts(ids), ensure_ascii=False)

    def texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token.

        `ids`, (T,): token ids, special ones too.

        Returns list of str, (T,): together they are the decoded trace. A character of several
        tokens stands at its first; the others have "".
        """
        whole = self._decode(ids)
        texts = [self._decode(ids[:1])]
        texts += [self._after(before, token) for before, token in pairwise(ids)]
        if "".join(texts) == whole:
            return texts
        texts = self._cut(ids, whole, restarts=True)
        return texts if "".join(texts) == whole else self._cut(ids, whole, restarts=False)

    def _text_after(self, before: int, token: int) -> str:
        return self._decode([before, token])[len(self._decode([before])) :]

    def _cut(self, ids: Sequence[int], whole: str, *, restarts: bool) -> list[str]:
        """The texts from decoding the first tokens, one more each time.

        Where what the last ones add does not go on with the whole text, a character is unfinished.
        Decoding is of a few tokens each time if it `restarts` at the last token with a text: but
        bytes that are no text can be read otherwise without what was before them, and the texts
        together are then not the whole.
        """
        texts = [""] * len(ids)
        first, start = 0, 0  # of the tokens that no text was given to so far, and of their text
        base, before = 0, ""  # the token that decoding begins at, and its text up to `first`
        for n in range(1, len(ids) + 1):
            decoded = self._decode(ids[base:n])
            added = decoded.removeprefix(before)
            if not decoded.startswith(before) or not whole.startswith(added, start):
                continue
            texts[first] = added
            start += len(added)
            before = decoded
            if added and restarts:
                base = first
                before = self._decode(ids[base:n])
            first = n
        return texts

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))
