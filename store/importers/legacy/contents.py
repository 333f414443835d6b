"""What a file of the older formats holds, decided by its content, never by its name."""

from collections.abc import Mapping
from functools import partial

from store.errors import SchemaError
from store.importers.arrays.pickled import read_content
from store.importers.damage import DAMAGE, one_line
from store.importers.files import Given
from store.importers.legacy.fields import shown_keys
from store.importers.legacy.preprocessed import GraphTraces, PreprocessedTraces, SequenceTraces
from store.importers.legacy.raw import RawTraces

__all__ = ["FileReader", "Traces"]

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
        self._last: tuple[Given, Traces] | None = None

    def read(self, item: Given) -> Traces:
        """Return the traces of a file, or raise what is wrong; the file before is let go first."""
        if self._last is None or self._last[0] != item:
            self._last = None
            self._last = (item, self._understand(read_content(item, self._max_bytes)))
        return self._last[1]

    @property
    def last_kind(self) -> str:
        """The kind of the file that was read last."""
        return self._last[1].kind if self._last else ""

    def open(self, item: Given) -> Traces:
        """Return the traces of a file, none if it is refused."""
        if str(item.path) not in self._refused:
            try:
                return self.read(item)
            except DAMAGE as error:
                self.refuse(item, error)
        return self._raw_traces([])

    def refuse(self, item: Given, error: Exception) -> None:
        """Leave a file out, with the reason in one line."""
        name = str(item.path)
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
