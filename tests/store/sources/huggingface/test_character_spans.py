"""The characters of tokens, against oracles that count bytes and letters themselves; labels of
tokens, from spans of characters."""

import random

import pytest
from building import build_prompts
from character_oracles import ORACLES, byte_of_symbols
from tokenizers import normalizers
from tokenizers_of_kinds import KINDS, unigram_bytes

from store.sources.huggingface.tokenization import label_tokens, tokenize, tokens_of

N_TEXTS = 300
WORDS = [
    *("東京は", "首都です。", "北京市", "한국어", "กรุงเทพ", "مدينة", "الْقَاهِرَةُ"),
    *("👩‍👩‍👧", "🇫🇷", "👍🏽", "❤️", "e\u0301te\u0301", "n\u0303o", "क्षि", "か\u3099"),
    *("the", "cat", "sat", "Question:", "357", "Paris", "grüße", "yes,"),
]
BETWEEN = ["", " ", " ", "\n", "\n\n"]
TEMPLATES = ["{question}\nAnswer:", "{question}\nAnswer:\n", "{question}\nAnswer: ", "{question}京"]


def draw_text(rng):
    """Words of several scripts, some of which nothing parts."""
    words = rng.choices(WORDS, k=rng.randint(1, 6))
    text = "".join(word + rng.choice(BETWEEN) for word in words)
    return text.strip() or "the"


@pytest.mark.parametrize("kind", KINDS)
def test_spans_are_the_characters_of_many_texts(kind):
    """Ideographs, Arabic, emoji with joiners, combining marks and new lines: each token has the
    characters that it was made of."""
    tokenizer = KINDS[kind]()
    rng = random.Random(kind)  # noqa: S311 - draws of a test
    for _ in range(N_TEXTS):
        text = draw_text(rng)
        found = tokenize(tokenizer, text, special=False)
        tokens = tokenizer.convert_ids_to_tokens(found.ids)
        expected = list(ORACLES[kind](tokens, text))
        assert [set(range(*span)) for span in found.offsets] == expected, (text, tokens)


def bytes_of(kind, tokens):
    """What tokens of a kind that loses nothing write."""
    if kind == "byte-level":
        return [bytes(byte_of_symbols()[symbol] for symbol in token) for token in tokens]
    return [
        bytes.fromhex(token[3:5]) if token.startswith("<0x") else token.replace("▁", " ").encode()
        for token in tokens
    ]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("kind", ["byte-level", "byte fallback", "unigram, byte fallback"])
def test_a_border_of_tokens_lies_between_prompt_and_response(kind, template):
    """The prompt has the tokens that a model is asked with, the response's write nothing but the
    response, and a token is 1 if it has a byte of a character in a span."""
    tokenizer = KINDS[kind]()
    prompts = build_prompts(tokenizer, template, n=100_000)
    rng = random.Random(template)  # noqa: S311 - draws of a test
    for _ in range(N_TEXTS // 4):
        response = draw_text(rng)
        start = rng.randrange(len(response))
        span = {"start": start, "end": rng.randint(start + 1, len(response)), "label": ""}
        question = {"question_id": "q", "question": draw_text(rng), "answers": []}
        given = question | {"trace_id": "q", "response": response, "spans": [span]}
        asked, found = prompts.encode(question), prompts.encode(given)
        assert found.prompt.tolist() == asked.prompt.tolist()
        written = bytes_of(kind, tokenizer.convert_ids_to_tokens(found.answer))
        assert b"".join(written).decode().removeprefix(" ") == response
        characters = [-1] * b"".join(written).startswith(b" ")  # the space that separates them
        characters += [i for i, character in enumerate(response) for _ in character.encode()]
        expected = []
        for piece in written:
            own, characters = characters[: len(piece)], characters[len(piece) :]
            expected.append(int(any(span["start"] <= i < span["end"] for i in own)))
        assert found.token_label.tolist() == [-1] * len(asked.prompt) + expected


def test_bytes_of_what_a_normaliser_changed_have_its_characters():
    """Characters that become others or several, and letters that take their marks."""
    tokenizer = unigram_bytes()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    found = tokenize(tokenizer, "東㍿か\u3099京", special=False)
    tokens = tokenizer.convert_ids_to_tokens(found.ids)
    assert bytes_of("unigram", tokens)[1:4] == [bytes([byte]) for byte in "東".encode()]
    assert b"".join(bytes_of("unigram", tokens)).decode() == " 東株式会社が京"
    assert found.offsets == [(0, 1)] * 4 + [(1, 2)] * 12 + [(2, 4)] * 3 + [(4, 5)] * 3


def test_spans_that_overlap_count_once():
    """Their union is what is marked."""
    offsets = [(0, 0), (0, 2), (2, 4), (4, 6), (6, 8)]
    labels = label_tokens(offsets, 2, [(3, 5), (2, 5), (4, 5)], 8)
    assert labels.tolist() == [-1, -1, 1, 1, 0]
    assert label_tokens(offsets, 2, [], 8).tolist() == [-1, -1, 0, 0, 0]
    assert label_tokens(offsets, 2, None, 8).tolist() == [-1] * 5
    assert label_tokens([], 0, [], 0).tolist() == []


def test_the_tokens_of_a_place():
    """From the first that shares a character with it to the last."""
    offsets = [(0, 0), (0, 2), (2, 4), (4, 6), (6, 8)]
    assert tokens_of(offsets, (3, 5)) == (2, 2)
    assert tokens_of(offsets, (0, 8)) == (1, 4)
    assert tokens_of(offsets, (8, 9)) == (-1, 0)
    assert tokens_of(offsets, (3, 3)) == (-1, 0)
