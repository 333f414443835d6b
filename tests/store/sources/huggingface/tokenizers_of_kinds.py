"""Small tokenizers of the kinds in use, built here: what they do at the border of two texts."""

import json
from collections.abc import Callable

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "Question: What is the capital of France?\nAnswer: Paris",
    "Context: The grüße of naïve café owners, 😀 and 東京 in Japan.",
    "Question: 12 + 345 = 357?\nAnswer: yes, it is 357.",
    "the cat sat on the mat; The Cat Sat On The Mat.",
    "Élan vital, coöperate, Ångström, São Paulo, 北京市 한국어 🇫🇷 👩‍👩‍👧",
] * 4
UNKNOWN = "<unk>"
SPECIAL = ["<pad>", "<s>", "</s>", UNKNOWN]


def _finish(tokenizer: Tokenizer, unk: bool) -> PreTrainedTokenizerFast:
    """Put `<s>` in front, as most tokenizers of causal models do."""
    tokenizer.post_processor = processors.Sequence(
        [
            *([tokenizer.post_processor] if tokenizer.post_processor else []),
            processors.TemplateProcessing(
                single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
            ),
        ]
    )
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    if unk:
        names["unk_token"] = UNKNOWN
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def byte_level(trim: bool = False) -> PreTrainedTokenizerFast:
    """Byte-level BPE, as GPT-2's (which trims spaces from offsets) and Llama 3's (which does not):
    a character may be several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _finish(tokenizer, unk=False)


def byte_level_trimmed() -> PreTrainedTokenizerFast:
    """Byte-level BPE whose offsets leave out the space before a word."""
    return byte_level(trim=True)


def unigram() -> PreTrainedTokenizerFast:
    """As SentencePiece: spaces become "▁", which words begin with, the first one too."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=SPECIAL, unk_token=UNKNOWN, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _finish(tokenizer, unk=True)


def byte_fallback() -> PreTrainedTokenizerFast:
    """SentencePiece's BPE, as Llama 2's: each byte of an unknown letter is a token."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN, byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    strip = decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    )
    every_byte = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=[*SPECIAL, *every_byte],
        limit_alphabet=40,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _finish(tokenizer, unk=True)


def unigram_bytes() -> PreTrainedTokenizerFast:
    """As SentencePiece's Unigram with byte fallback: bytes of unknown letters, run by run."""
    trained = json.loads(unigram().backend_tokenizer.to_str())["model"]["vocab"]
    known = [(piece, score) for piece, score in trained if piece.replace("▁", "").isascii()]
    every_byte = [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    unk_id = [piece for piece, _ in known].index(UNKNOWN)
    tokenizer = Tokenizer(models.Unigram([*known, *every_byte], unk_id, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = byte_fallback().backend_tokenizer.decoder
    return _finish(tokenizer, unk=True)


def wordpiece() -> PreTrainedTokenizerFast:
    """WordPiece with BERT's normaliser: lower case, no accents, spaces between ideographs."""
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _finish(tokenizer, unk=True)


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte-level": byte_level,
    "byte-level, trimmed": byte_level_trimmed,
    "byte fallback": byte_fallback,
    "unigram": unigram,
    "unigram, byte fallback": unigram_bytes,
    "wordpiece": wordpiece,
}


def appending(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The tokenizer, which also puts `</s>` behind every text."""
    ends = [("<s>", tokenizer.bos_token_id), ("</s>", tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends),
        ]
    )
    return tokenizer
