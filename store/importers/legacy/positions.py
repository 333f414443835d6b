"""Ids of traces whose files have none: their positions over all the files, in the files' order.

A position is the same in every part of an import and in one that goes on, because the records of
the files before are counted. If such a file cannot be read, positions after it are not known, and
none is guessed.
"""

from collections.abc import Sequence

from store.errors import SchemaError
from store.importers.damage import DAMAGE
from store.importers.files import Given
from store.importers.legacy.contents import FileReader
from store.importers.legacy.generations import UNCLEAR, belongs_to

__all__ = ["Positions"]


class Positions:
    """The position of the first record of each file.

    Parameters
    ----------
    files
        All of the import, in order, not only those of its part.
    kind
        Only files of this kind count; others make a store of their own.
    reader
        For the files before. The last one it has read costs nothing.
    """

    def __init__(self, files: Sequence[Given], kind: str, reader: FileReader) -> None:
        self._files = files
        self._kind = kind
        self._reader = reader
        self._counts: dict[Given, int] = {}

    def first_of(self, item: Given) -> int:
        """Return the position of a file's first record.

        Raises
        ------
        SchemaError
            A file before it cannot be read.
        """
        before = self._files[: self._files.index(item)]
        return sum(map(self._count, before))

    def _count(self, item: Given) -> int:
        if item not in self._counts:
            self._counts[item] = self._read_count(item)
        return self._counts[item]

    def _read_count(self, item: Given) -> int:
        try:
            traces = self._reader.read(item)
        except DAMAGE as error:
            raise _not_known(item) from error
        if traces.kind == UNCLEAR:
            raise _not_known(item)
        return len(traces) if belongs_to(traces.kind, self._kind) else 0


def _not_known(item: Given) -> SchemaError:
    return SchemaError(
        "expected ids, or positions after the records of the files before, found no ids, and "
        f"{item.path} before it cannot be read; restore that file"
    )
