"""What a file of the older formats holds, decided by its content, never by its name."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from store.errors import CorruptError, SchemaError
from store.importers.legacy.fields import DAMAGE, one_line, shown_keys
from store.importers.legacy.preprocessed import GraphTraces, PreprocessedTraces, SequenceTraces
from store.importers.legacy.raw import RawTraces
from store.importers.pickles import kind_of_file, read_pickle, read_torch

__all__ = ["FileReader", "Traces", "is_torch"]


Traces = RawTraces | PreprocessedTraces  # of one file


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
        self._raw_traces = partial(RawTraces, keep_attention=keep_attention, max_bytes=max_bytes)
        self._max_bytes = max_bytes
        self._refused = refused
        self._last: tuple[Path, Traces] | None = None

    def read(self, file: Path) -> Traces:
        """Return the traces of a file, or raise what is wrong; the file before is let go first."""
        if self._last is None or self._last[0] != file:
            self._last = None
            read = read_torch if is_torch(file) else read_pickle
            self._last = (file, self._understand(read(file, self._max_bytes)))
        return self._last[1]

    def open(self, file: Path) -> Traces:
        """Return the traces of a file, none if it is refused."""
        if str(file) not in self._refused:
            try:
                return self.read(file)
            except DAMAGE as error:
                self.refuse(file, error)
        return self._raw_traces([])

    def refuse(self, file: Path, error: Exception) -> None:
        """Leave a file out, with the reason in one line."""
        name = str(file)
        reason = one_line(error)
        if not reason.startswith(name):
            reason = f"{name}: {reason}"
        self._refused[name] = reason

    def _understand(self, content: object) -> Traces:
        """Return the traces in a file's content; raise SchemaError with what it is not."""
        if isinstance(content, Mapping):
            for kind in (SequenceTraces, GraphTraces):
                if {kind.key, "labels", "question_ids"} <= content.keys():
                    return kind(content)
            found = f"a dict with the keys {shown_keys(content)}"
        elif not isinstance(content, list):
            found = type(content).__name__
        elif not content or any(map(_is_raw, content)):
            return self._raw_traces(content)
        elif isinstance(content[0], Mapping):
            found = f"a list of {shown_keys(content[0])}"
        else:
            found = f"a list of {type(content[0]).__name__}"
        raise SchemaError(
            "expected a list of raw traces (hidden_states, attentions), or a dict of sequences or "
            f"graphs with labels and question_ids, found {found}; python -m store import --inspect "
            "shows a --map for other arrays"
        )


def _is_raw(record: object) -> bool:
    """Return whether it is a record of a raw file; damaged ones beside it are told one by one."""
    return isinstance(record, Mapping) and {"hidden_states", "attentions"} <= record.keys()


def is_torch(file: Path) -> bool:
    """Return whether torch saved a file; False also for a damaged one."""
    try:
        return kind_of_file(file) == "torch"
    except CorruptError:  # reported when the file is read
        return False
