"""Joins a prompt and an answer that exists already to one text, and finds the answer's tokens.

Where tokens end depends on what stands beside them: SentencePiece and byte-level BPE join a word
with the space before it. So prompt and answer are tokenised as one text, and split where the
answer's first character is. A token that holds characters of both is of the answer.
"""

from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

__all__ = ["JOINING", "Tokens", "answer_bounds", "knows_spaces", "separator", "tokenize"]

JOINING = (
    "prompt and response are tokenised as one text; a space is put between them where neither has "
    "one, except behind a special token and for tokenizers without spaces; a chat template decides "
    "itself what it puts there; a token with characters of both is of the answer; no "
    "end-of-sequence token is appended"
)


class Tokens(NamedTuple):
    """The tokens of a text.

    Attributes
    ----------
    ids
        Token ids.
    offsets
        The characters of each, from start to before end.
    is_added
        Whether the tokenizer added it: `<s>` and the like.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]
    is_added: list[bool]


def tokenize(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool) -> Tokens:
    """Tokenise a text with a fast tokenizer, which knows the characters of its tokens.

    Parameters
    ----------
    tokenizer
        It may raise anything for a text that it cannot take.
    text
        The text.
    special
        Whether it adds its special tokens.

    Raises
    ------
    ValueError
        The tokenizer is none of the fast ones.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            "tokenizer: expected a fast one, which knows the characters of its tokens (contexts "
            f"and given responses need them), found {type(tokenizer).__name__}"
        )
    found = tokenizer(
        text,
        add_special_tokens=special,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
    )
    is_added = [bool(flag) for flag in found["special_tokens_mask"]]
    return Tokens(found["input_ids"], found["offset_mapping"], is_added)


def separator(prompt: str, response: str, special_tokens: Sequence[str], spaces: bool) -> str:
    """What comes between a prompt and a response: a space, where neither has one, or nothing.

    Parameters
    ----------
    prompt, response
        The texts.
    special_tokens
        Behind them a model goes on without a space.
    spaces
        Whether the tokenizer has spaces (`knows_spaces`).
    """
    has_one = prompt[-1:].isspace() or response[:1].isspace()
    is_special = any(prompt.endswith(token) for token in special_tokens)
    return " " if spaces and prompt and not has_one and not is_special else ""


def knows_spaces(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a space can stand in a text of a tokenizer, be it as a border of words."""
    try:
        ids = tokenizer(" ", add_special_tokens=False)["input_ids"]
    except Exception:  # noqa: BLE001 - the tokenizers library raises nothing narrower
        return False
    return tokenizer.unk_token_id is None or tokenizer.unk_token_id not in ids


def answer_bounds(tokens: Tokens, n_prompt_chars: int) -> tuple[int, int]:
    """The first token of an answer, and the one after its last.

    Parameters
    ----------
    tokens
        Of prompt, separator and answer.
    n_prompt_chars
        Characters of the prompt.
    """
    n_tokens = len(tokens.ids)
    end = n_tokens
    while end and tokens.is_added[end - 1]:
        end -= 1
    is_answer = (tokens.offsets[i][1] > n_prompt_chars for i in range(end))
    first = next((i for i, found in enumerate(is_answer) if found), end)
    return first, end
