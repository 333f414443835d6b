"""Texts of tokens: together they are the decoded trace, whatever the tokenizer."""

import json

import pytest
from character_tokenizer import build_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from store.sources.huggingface.tokenization import TokenTexts


def byte_tokenizer():
    """Every byte is a token, as where a byte-level vocabulary has no longer piece."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def sentence_tokenizer():
    """Pieces that begin with a space, whose first one decoding strips; bytes for the rest."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "b", "▁ab"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


BYTES, SENTENCES = byte_tokenizer(), sentence_tokenizer()


def test_spaces_stand_with_the_token_that_brings_them():
    """Only the space that decoding strips from the whole text is missing."""
    ids = SENTENCES.convert_tokens_to_ids(["▁a", "▁ab", "b", "<0xC3>", "<0xA9>", "▁a"])
    assert TokenTexts(SENTENCES).texts(ids) == ["a", " ab", "b", "é", "", " a"]


@pytest.mark.parametrize("tokenizer", [BYTES, SENTENCES], ids=["bytes", "sentences"])
@given(st.data())
def test_together_they_are_the_decoded_trace(tokenizer, data):
    """Also where the bytes are no text."""
    numbers = st.integers(0, len(tokenizer) - 1)
    ids = data.draw(st.lists(numbers, min_size=1, max_size=12))
    texts = json.loads(TokenTexts(tokenizer).to_json(ids))
    assert len(texts) == len(ids)
    assert "".join(texts) == tokenizer.decode(ids, clean_up_tokenization_spaces=False)


@given(st.text(min_size=1, max_size=8))
def test_every_character_stands_at_its_first_byte(text):
    """In a tokenizer of bytes the texts follow from UTF-8 alone."""
    expected = []
    for character in text:
        expected += [character, *[""] * (len(character.encode()) - 1)]
    assert TokenTexts(BYTES).texts(BYTES(text)["input_ids"]) == expected


def test_special_tokens_have_their_names():
    """A trace is decoded with them."""
    tokenizer = build_tokenizer()
    ids = tokenizer("1+2")["input_ids"]
    assert TokenTexts(tokenizer).texts(ids) == ["<s>", "1", "+", "2"]


@pytest.mark.parametrize("tokenizer", [BYTES, SENTENCES], ids=["bytes", "sentences"])
@given(st.lists(st.sampled_from([" ", "a", "b", "é", "日", "😀", "\ufffd"]), min_size=1))
def test_texts_are_those_of_prefixes(tokenizer, characters):
    """Which decode every token with all that are before it."""
    ids = tokenizer("".join(characters))["input_ids"]
    texts = TokenTexts(tokenizer)
    whole = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    assert texts.texts(ids) == texts._cut(ids, whole, restarts=False)


def test_a_long_trace_with_a_character_of_several_tokens_is_decoded_in_short_pieces(monkeypatch):
    """The time is that of its tokens, not of their square."""
    ids = BYTES("東京" + "word " * 400)["input_ids"]
    texts = TokenTexts(BYTES)
    n_decoded = []
    decode = texts._decode

    def counted(ids):
        n_decoded.append(len(ids))
        return decode(ids)

    monkeypatch.setattr(texts, "_decode", counted)
    assert "".join(texts.texts(ids)).startswith("東京word")
    assert sum(n_decoded) < 20 * len(ids)
