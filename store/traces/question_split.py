"""Which question is asked, and its split: train, val or test. Pure."""

import hashlib
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence

__all__ = [
    "SPLITS",
    "join_questions",
    "normalize_question",
    "side_of_question",
    "split_of_question",
]

SPLITS = ("train", "val", "test")
CUTS = (0.70, 0.85)  # 70 / 15 / 15

_MARK = re.compile(r"[^\w\s]|_")
_MEANT = "*/%&#@\\"  # punctuation that decides what is asked: 3 * 4, C#, and - before a number
_HYPHEN = re.compile(r"-(?!\s?\d)")
_KEPT = re.compile(r" ?([^\w\s]) ?")
_TYPED = {ord(character): "-" for character in "\u2010\u2012\u2013\u2014\u2212"}  # as it is typed
_TYPED |= dict.fromkeys(map(ord, "\u2018\u2019\u02bc\u2032`"), "'")
_TYPED |= dict.fromkeys(range(0xFE00, 0xFE10), "")  # selectors of a glyph


def normalize_question(text: str) -> str:
    """Bring a question to the form in which questions are compared; "" has none to compare.

    Two texts that differ in Unicode form (NFKC, https://unicode.org/reports/tr15), case, white
    space, invisible characters or punctuation have the same one. But for apostrophes, punctuation
    is white space: "U.S." is not "US". Letters keep their accents, and arithmetic its signs, with
    blanks around them or without.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    typed = folded.translate(_TYPED)
    words = _MARK.sub(_replace_mark, _HYPHEN.sub(" ", typed)).split()
    return _KEPT.sub(_close_up, " ".join(words))


def _replace_mark(mark: re.Match[str]) -> str:
    character = mark[0]
    kind = unicodedata.category(character)
    if kind[0] in "SM" or character in _MEANT or character == "-":
        return character
    return "" if kind == "Cf" or character == "'" else " "


def _close_up(mark: re.Match[str]) -> str:
    is_accent = unicodedata.category(mark[1])[0] == "M"  # a word may end in one
    return mark[0] if is_accent else mark[1]


def join_questions(
    ids: Sequence[str], texts: Sequence[str], alike: Iterable[tuple[int, int]] = ()
) -> list[str]:
    """Return the id of each row's question: that of the first row that asks the same.

    Rows ask the same that are connected, over any number of others, by an equal id, by an equal
    text that is not "", or by a pair of rows in `alike`. Appended rows change the question of a row
    only where they connect it to a row that is still earlier.
    """
    earlier = list(range(len(ids)))  # a row of the same question, itself for the first

    def find_first(row: int) -> int:
        while earlier[row] != row:
            earlier[row] = earlier[earlier[row]]
            row = earlier[row]
        return row

    by_id: dict[str, int] = {}
    by_text: dict[str, int] = {}
    of_ids = ((row, by_id.setdefault(one, row)) for row, one in enumerate(ids))
    of_texts = ((row, by_text.setdefault(one, row)) for row, one in enumerate(texts) if one)
    for pairs in (of_ids, of_texts, alike):
        for a, b in pairs:
            first, second = sorted((find_first(a), find_first(b)))
            earlier[second] = first
    return [ids[find_first(row)] for row in range(len(ids))]


def split_of_question(question_id: str, seed: int) -> str:
    """Return the split of a question: its hash, cut at CUTS."""
    return SPLITS[bisect_right(CUTS, _fraction(question_id, seed))]


def side_of_question(question_id: str, seed: int) -> str:
    """Return train or val, in their proportions of `split_of_question`, where test is chosen."""
    train, train_and_val = CUTS
    return "train" if _fraction(question_id, seed) < train / train_and_val else "val"


def _fraction(question_id: str, seed: int) -> float:
    """A keyed hash (BLAKE2b) of a question as a number in [0, 1)."""
    key = seed.to_bytes(8, "little")
    digest = hashlib.blake2b(question_id.encode(), key=key, digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
