"""What a file of the older formats holds, decided by its content, never by its name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from store.errors import CorruptError, SchemaError
from store.sources.legacy.fields import DAMAGE, Row, one_line, shown_keys
from store.sources.legacy.preprocessed import GraphTraces, SequenceTraces
from store.sources.legacy.raw import RawTraces
from store.sources.pickles import kind_of_file, read_pickle, read_torch

__all__ = ["FileReader", "Traces", "is_torch", "understand"]


class Traces(Protocol):
    """The traces of one file."""

    @property
    def kind(self) -> str:
        """The format, as messages call it."""

    def __len__(self) -> int: ...

    def row(self, i: int) -> Row:
        """Return the columns of trace i; raise RecordError if it contradicts itself."""


class FileReader:
    """Reads files, of which it holds the last one.

    Parameters
    ----------
    keep_attention
        Whether rows of raw traces hold the full attention maps.
    max_bytes
        Most bytes of a file, and of the arrays of a record.
    refused
        File -> why nothing of it is read; filled here.
    """

    def __init__(self, keep_attention: bool, max_bytes: int, refused: dict[str, str]) -> None:
        self._keep_attention = keep_attention
        self._max_bytes = max_bytes
        self._refused = refused
        self._last: tuple[Path, Traces] | None = None

    def read(self, file: Path) -> Traces:
        """Return the traces of a file, or raise what is wrong; the file before is let go first."""
        if self._last is None or self._last[0] != file:
            self._last = None
            read = read_torch if is_torch(file) else read_pickle
            content = read(file, self._max_bytes)
            traces = understand(content, self._keep_attention, self._max_bytes)
            self._last = (file, traces)
        return self._last[1]

    def open(self, file: Path) -> Traces | None:
        """Return the traces of a file, None if it is refused."""
        if str(file) in self._refused:
            return None
        try:
            return self.read(file)
        except DAMAGE as error:
            self.refuse(file, error)
            return None

    def refuse(self, file: Path, error: Exception) -> None:
        """Leave a file out, with the reason in one line."""
        reason = one_line(error)
        if not reason.startswith(str(file)):
            reason = f"{file}: {reason}"
        self._refused[str(file)] = reason


def is_torch(file: Path) -> bool:
    """Return whether torch saved a file; False also for a damaged one."""
    try:
        return kind_of_file(file) == "torch"
    except CorruptError:  # reported when the file is read
        return False


def understand(content: object, keep_attention: bool, max_bytes: int) -> Traces:
    """Return the traces in a file's content; raise SchemaError with what it is not."""
    if isinstance(content, Mapping):
        keys = content.keys()
        if {"sequences", "labels", "question_ids"} <= keys:
            return SequenceTraces(content)
        if {"graphs", "labels", "question_ids"} <= keys:
            return GraphTraces(content)
        raise _unknown(f"a dict with the keys {shown_keys(content)}")
    if not isinstance(content, list):
        raise _unknown(type(content).__name__)
    if content:
        first = content[0]
        if not isinstance(first, Mapping):
            raise _unknown(f"a list of {type(first).__name__}")
        if not {"hidden_states", "attentions"} <= first.keys():
            raise _unknown(f"a list of {shown_keys(first)}")
    return RawTraces(content, keep_attention, max_bytes)


def _unknown(found: str) -> SchemaError:
    return SchemaError(
        "expected a list of raw traces (hidden_states, attentions), or a dict of sequences or "
        f"graphs with labels and question_ids, found {found}"
    )
