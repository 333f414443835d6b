"""The tokenizer of a folder, for the texts of tokens that a store holds as ids only."""

from pathlib import Path
from typing import Any

from store.errors import FormatError, NotFoundError
from store.extras import needs_extra
from store.sources.huggingface.tokenization import TokenTexts

__all__ = ["read_tokenizer"]

FILE = "tokenizer.json"


class Decoder:
    """What `TokenTexts` asks of a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def decode(self, ids: list[int], **_: object) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


def read_tokenizer(path: Path) -> TokenTexts:
    """Read a file `tokenizer.json`, or that of a folder; nothing of it is executed.

    Raises NotFoundError if there is no such file, or the package tokenizers is not installed;
    FormatError if the file is no tokenizer.
    """
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise NotFoundError(f"--tokenizer: expected a file {FILE}, found none at {file}")
    with needs_extra("extract", "--tokenizer: "):
        from tokenizers import Tokenizer
    try:
        tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:
        raise FormatError(f"{file}: expected a tokenizer, found: {error!s:.200}") from error
    return TokenTexts(Decoder(tokenizer))  # type: ignore[arg-type]  # it only decodes
