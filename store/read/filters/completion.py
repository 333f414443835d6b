"""What can stand next in a filter that is being typed."""

import re
from collections.abc import Iterable

from store.read.filters.filter import (
    COMPARE,
    HAVE_LENGTH,
    INSIDE,
    LENGTH,
    MAX_LENGTH,
    SIGNS,
    SPELLINGS,
    WORDS,
    Token,
    Words,
    read_tokens,
)

__all__ = ["complete"]


def complete(text: str, kinds: Words) -> list[str]:
    """What can stand at the end of a filter that is being typed, or replace its last word.

    `text` is the filter up to the cursor.
    """
    begun = re.search(r"[A-Za-z_]\w*$", text, re.ASCII)
    word = begun[0] if begun else ""
    tokens = read_tokens(text[: len(text) - len(word)][-MAX_LENGTH:])
    if any(kind == "unknown" for kind, _, _ in tokens):
        return []
    expected = _expected(tokens, kinds)
    return [entry for entry in expected if entry.startswith(word) and entry != word]


def _expected(tokens: list[Token], kinds: Words) -> Iterable[str]:
    """What may follow tokens, judged by the last two."""
    before = [text for _, text, _ in tokens[-3:-1]]
    last_kind, last, _ = tokens[-2] if len(tokens) > 1 else ("end", "", 0)
    columns = {name: kind for name, kind in kinds.items() if kind in SIGNS}
    maps = [name for name, kind in kinds.items() if kind == "map"]
    if before == [INSIDE, "("]:
        return maps
    if before == [LENGTH, "("]:
        return [name for name, kind in kinds.items() if kind in HAVE_LENGTH]
    if last.lower() in (",", "in") or [*map(str.lower, before)] == ["in", "("] or last in maps:
        return []  # values, and polygons, which are drawn, not typed
    if last in (*COMPARE, *SPELLINGS, "~", "!~"):
        is_number = columns.get(before[0]) == "number"
        return [name for name, kind in columns.items() if kind == "number"] if is_number else []
    if last_kind == "name" and last in columns and before[0] not in COMPARE:
        return SIGNS[columns[last]]
    if last_kind == "end" or last.lower() in (*WORDS, "("):
        return [*columns, "not", f"{LENGTH}(", *([f"{INSIDE}("] if maps else [])]
    return ["and", "or"]
