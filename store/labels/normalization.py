"""The normal form of an answer: two texts that people would take for the same have the same one.

Numbers keep what decides their value: 3.14 is not 31.4, nor -12 the same as 12, but 1,000 is 1000.
Words lose case, accents, punctuation and English articles, but not the marks that are vowels, as in
Hindi or Thai. Pure functions of strings.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import cache

__all__ = ["ARTICLES", "normalize_answer"]

ARTICLES = frozenset({"a", "an", "the"})

_ASCII = dict(zip(range(0xFF01, 0xFF5F), range(0x21, 0x7F), strict=True))  # full-width forms
_SUBSCRIPTS = {0x2080 + digit: str(digit) for digit in range(10)}
_HYPHENS = dict.fromkeys([0x2212, *range(0x2010, 0x2016), 0xFE58, 0xFE63], "-")
_QUOTES = dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b\u2032\u02bc\u00b4`"), "'")
_LETTERS = str.maketrans(  # that have no canonical decomposition
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i"}
)
_SAME_CHARACTERS = _ASCII | _SUBSCRIPTS | _HYPHENS | _QUOTES
# of Latin, Greek and Cyrillic letters; the vowel points of Hebrew and Arabic, which mostly are not
# written; what encloses a character, and what chooses a form of it
_ACCENT = re.compile(
    "[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u064b-\u0652\u0670"
    "\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f]"
)

# an article stands before a word: the letter A at the end, or in "A) Paris", is none
_ARTICLE = re.compile(r"""(?<![\w'-])(?:a|an|the)(?=\s+["'(]?\w)""")
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:[,'\u00a0\u202f]\d{3})+(?!\d|[,']\d)")
_SIGN = "\ue000"  # the sign of a number, while hyphens become spaces
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
_SYMBOL = f"([{''.join(_CURRENCIES)}])"
_AMOUNT = rf"({_SIGN}?\.?\d(?:[\d.]*\d)?(?:\s(?:hundred|thousand|million|billion|trillion)\b)?)"
_MONEY = re.compile(rf"(?<!\d){_SYMBOL}\s?{_AMOUNT}")  # behind a digit it is of that number
_MONEY_LAST = re.compile(rf"{_AMOUNT}\s?{_SYMBOL}")
_SIGNED_MONEY = re.compile(rf"(?<![\w)\].])-{_SYMBOL}(?=\.?\d)")
_MINUS = re.compile(r"\bminus\s+(?=\.?\d)")
_SIGNED = re.compile(r"(?<![\w)\].])-(?=\.?\d)")
_POINT_FIRST = re.compile(r"(?<!\w)\.(?=\d)")
_SAME_WORDS = {f"{name}s": name for name in _CURRENCIES.values() if name != "yen"}


def normalize_answer(text: str, *, keep_articles: bool = False) -> str:
    """Bring an answer to the form in which answers are compared.

    This goes beyond the normalisation of SQuAD's evaluation script (Rajpurkar et al. 2016,
    arXiv:1606.05250), which deletes all punctuation and so makes 3.14 and 31.4, or -12 and 12, the
    same:

    - Case, accents (é = e), kinds of quotes, hyphens and minus signs, full-width and subscript
      characters do not count. Hyphens and other punctuation part words, apostrophes do not, and
      initials are joined: twenty-one = twenty one, don't = dont, U.S.A. = USA.
    - The articles a, an, the are dropped where a word follows; the answer "A" is a letter.
    - A number keeps its sign, point, colon and slash, and loses the separators of thousands.
    - & = and, % = percent, $5 = 5 $ = 5 dollars; C++ and C# keep what tells them from C.
    - A text of nothing but punctuation is itself: "+" is not "-".

    Returns words joined by one space; two answers are the same iff their normal forms are equal.
    """
    plain = _plain_letters(text)
    parts = _join_numbers(plain.replace("_", " "))
    if not keep_articles:
        parts = _ARTICLE.sub(" ", parts)
    initials, word = _initials_and_word()
    parts = initials.sub(_join_initials, parts)
    parts = parts.replace("&", " and ").replace("%", " percent ")
    parts = re.sub(r"\bper cent\b", "percent", parts.replace("'", ""))
    words = [_SAME_WORDS.get(found, found) for found in word.findall(parts)]
    return " ".join(words).replace(_SIGN, "-") or plain.strip()


@cache
def _initials_and_word() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What finds initials, and the words that stay; made when a text is compared first: it takes
    40 ms.

    Marks belong to words, where Python's \\w ends. What stays are signs and points of numbers, and
    what tells C++ and C# from C.
    """
    every = map(chr, range(0x600, 0x1E900))
    marks = "".join(one for one in every if unicodedata.category(one)[0] == "M")
    letter = r"[^\W\d_]"
    initials = rf"(?<![\w.])(?:{letter}\.\s?)+(?:{letter}\.|{letter}(?![\w{marks}]))"
    number = rf"{_SIGN}?\d+(?:[.:/]\d+)+(?!\w)"
    word = rf"{_SIGN}?\w[\w{marks}]*(?:(?<=[^\W\d])[+#]+)?"
    return re.compile(initials), re.compile(f"{number}|{word}")


def _plain_letters(text: str) -> str:
    """Lower case, without accents, with one kind of each quote, hyphen and space."""
    same = unicodedata.normalize("NFD", text.translate(_SAME_CHARACTERS).casefold())
    return unicodedata.normalize("NFC", _ACCENT.sub("", same)).translate(_LETTERS)


def _join_numbers(text: str) -> str:
    """Numbers without separators of thousands, with signs, and with the currency behind them."""
    joined = _THOUSANDS.sub(lambda number: re.sub(r"\D", "", number[0]), text)
    signed = _SIGNED.sub(_SIGN, _MINUS.sub("-", joined))
    priced = _MONEY.sub(_money(2, 1), _SIGNED_MONEY.sub(rf"\1{_SIGN}", signed))
    priced = _MONEY_LAST.sub(_money(1, 2), priced)
    return _POINT_FIRST.sub("0.", re.sub(r"(?<=\d)'(?=\d)", " ", priced))


def _money(amount: int, symbol: int) -> Callable[[re.Match[str]], str]:
    """What writes the groups of these numbers as an amount and the name of its currency."""
    return lambda found: f"{found[amount]} {_CURRENCIES[found[symbol]]} "


def _join_initials(initials: re.Match[str]) -> str:
    letters = "".join(filter(str.isalpha, initials[0]))
    return f"{letters} "
