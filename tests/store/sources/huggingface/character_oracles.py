"""The characters of each token of a text, counted byte by byte and letter by letter."""

import unicodedata
from functools import cache

from tokenizers_of_kinds import UNKNOWN


@cache
def byte_of_symbols():
    """Byte-level BPE writes each byte as a symbol: printable ones as they are, others from 256."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


def characters_of_byte_level(tokens, text):
    """Each token's characters: those that it has a byte of."""
    character_of_byte = [i for i, char in enumerate(text) for _ in char.encode()]
    byte_of = byte_of_symbols()
    written = bytes(byte_of[symbol] for token in tokens for symbol in token)
    assert written == text.encode()
    position = 0
    for token in tokens:
        yield set(character_of_byte[position : position + len(token)])
        position += len(token)


def characters_of_trimmed(tokens, text):
    """The same without the spaces around a token."""
    for characters in characters_of_byte_level(tokens, text):
        ordered = sorted(characters)
        while ordered and text[ordered[0]] == " ":
            ordered.pop(0)
        while ordered and text[ordered[-1]] == " ":
            ordered.pop()
        yield set(ordered)


def characters_of_byte_fallback(tokens, text):
    """Bytes, or letters with "▁" for a space; there is one before the first word as well."""
    character_of_byte = [i for i, char in enumerate(f" {text}") for _ in char.encode()]
    position = 0
    for token in tokens:
        is_byte = token.startswith("<0x")
        n_bytes = 1 if is_byte else len(token.replace("▁", " ").encode())
        found = character_of_byte[position : position + n_bytes]
        yield {max(i - 1, 0) for i in found}
        position += n_bytes
    assert position == len(character_of_byte)


def characters_of_unigram(tokens, text):
    """Pieces are characters, of which "▁" is a space; what is unknown is one token to the next."""
    left = f"▁{text.replace(' ', '▁')}"
    position = -1
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        n = len(token) if token != UNKNOWN else left.find(following) if following else len(left)
        assert token == UNKNOWN or left.startswith(token)
        yield {max(i, 0) for i in range(position, position + n)}
        left = left[n:]
        position += n
    assert not left


def characters_of_wordpiece(tokens, text):
    """Pieces of words in lower case and without marks; an unknown word is one token."""
    simple = [  # each letter that is left, and where it stands
        (letter, i)
        for i, character in enumerate(text)
        for letter in unicodedata.normalize("NFD", character).lower()
        if unicodedata.category(letter) not in ("Mn", "Cf")
    ]
    for token in tokens:
        while simple[0][0].isspace():
            simple.pop(0)
        n = len(token.removeprefix("##"))
        if token == UNKNOWN:
            n = next((k for k in range(1, len(simple)) if ends_word(simple, k)), len(simple))
        found = [i for _, i in simple[:n]]
        simple = simple[n:]
        yield set(range(found[0], found[-1] + 1))


def ends_word(simple, k):
    """Whether a word ends before a letter: at a space, punctuation, or around an ideograph."""
    return any(
        letter.isspace() or unicodedata.category(letter)[0] == "P" or "\u4e00" <= letter <= "\u9fff"
        for letter, _ in simple[k - 1 : k + 1]
    )


ORACLES = {
    "byte-level": characters_of_byte_level,
    "byte-level, trimmed": characters_of_trimmed,
    "byte fallback": characters_of_byte_fallback,
    "unigram": characters_of_unigram,
    "unigram, byte fallback": characters_of_byte_fallback,
    "wordpiece": characters_of_wordpiece,
}
