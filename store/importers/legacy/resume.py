"""Where a stopped import goes on. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Done", "find_place"]


@dataclass(frozen=True)
class Done:
    """How far an import had come when it stopped.

    Attributes
    ----------
    file
        Number of the file that comes next, or goes on.
    n_rows, n_records
        Of this file: rows that are made but not yielded, records that are not looked at.
    left_out
        Those of its records that were left out.
    """

    file: int = 0
    n_rows: int = 0
    n_records: int = 0
    left_out: int = 0


def find_place(
    names: Sequence[str], committed: Sequence[str], place: tuple[int, ...], is_raw: bool
) -> Done:
    """Return where an import stopped.

    The records of a raw file that it had seen are those that it committed and those that it left
    out.

    Parameters
    ----------
    names
        Of all files.
    committed
        The file of each committed row; one at least.
    place
        Number of the last file that was begun, and of its records that were left out; empty if the
        import recorded none.
    is_raw
        Whether each record makes a row or is left out. Of preprocessed files one may do both, or
        be a part of another's row.
    """
    n_committed = Counter(committed)
    last = names.index(committed[-1])
    if not is_raw or place < (last, 0):
        return Done(last, n_rows=n_committed[names[last]])
    file, n_left_out = place
    n_seen = n_committed[names[file]] + n_left_out
    return Done(file, n_records=n_seen, left_out=n_left_out)
