"""A split that the user gives: a column of the store, a CSV file, or a value that is held out.

Every labelled row gets one of train, val and test, or none; nothing here decides by labels.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store import TraceStore
from store.errors import closest
from store.text_records import LineError, Row, name_file, read_csv, refuse
from store.traces.question_split import SPLITS, side_of_question
from train.errors import DataError

__all__ = ["OwnSplit", "describe_own_split", "is_file", "own_split", "read_values"]

Texts = NDArray[np.object_]
KEYS = ("trace_id", "question_id")
N_SHOWN = 10  # values that a message names


class OwnSplit(NamedTuple):
    """A split that the user gives."""

    by_row: Texts  # (n_rows,): "train", "val", "test", or "" for none
    n_unmatched: int = 0  # ids of a file that no trace has


def is_file(split: str) -> bool:
    """Whether --split names a CSV file, not a column."""
    return split.lower().endswith(".csv")


def describe_own_split(split: str, hold_out: str | None) -> str:
    if is_file(split):
        return f"file {split}"
    return f"column {split}" if hold_out is None else f"column {split}, {hold_out} held out"


def own_split(
    store: TraceStore,
    split: str,
    hold_out: str | None,
    seed: int,
    question_ids: Texts,
    is_used: NDArray[np.bool_],
) -> OwnSplit:
    """The split of each row.

    Parameters
    ----------
    store : TraceStore
    split : str
        A column of text with the words train, val and test; or a CSV file with the columns
        `trace_id` or `question_id`, and `split`, whose other rows are in no split; or, to hold out
        a value, a column of text or integers.
    hold_out : str or None
        The rows of this value are test; the others are train and val by question, in the
        proportions of the usual split.
    seed : int
        Of the split into train and val.
    question_ids : texts (n_rows,)
    is_used : bool (n_rows,)
        Rows whose split matters: the labelled ones.

    Raises
    ------
    DataError
        For a column that is not there, or of another kind; other words; a value that no row has; a
        file all of whose ids no row has.
    StoreError
        For a file that cannot be read.
    """
    if is_file(split):
        return split_by_file(Path(split), store, question_ids)
    values = read_values(store, split, "--split", np.arange(len(store)))
    if hold_out is not None:
        return OwnSplit(hold_out_value(store, split, values, hold_out, seed, question_ids))
    for row in np.flatnonzero(is_used & ~np.isin(values, SPLITS))[:1]:
        raise DataError(
            f"{store.path}: --split: column {split!r}, trace {store.ids[row]!r}: expected one of "
            f"{', '.join(SPLITS)}, found {str(values[row])!r:.80}; give a column of these words, "
            "or --hold-out VALUE to test on the rows of one value"
        )
    return OwnSplit(values.astype(object))


def read_values(store: TraceStore, column: str, flag: str, rows: NDArray[np.int64]) -> NDArray:
    """Values (n,) of a column of text or integers; raises DataError for any other."""
    columns = store.schema.columns
    if column not in columns:
        raise DataError(
            f"{store.path}: {flag}: expected a column of text or integers, found no {column!r}"
            f"{closest(column, columns)}; there are {', '.join(columns)}"
        )
    found = columns[column]
    if found.is_text:
        return np.array(store.read(rows, columns=[column]).texts(column), dtype=object)
    if found.axis or found.item_shape or "int" not in str(found.dtype):
        raise DataError(
            f"{store.path}: {flag}: expected column {column!r} of text or one integer a trace, "
            f"found {found.dtype} {'ragged' if found.axis else list(found.item_shape)}; "
            "choose another column"
        )
    return store.read(rows, columns=[column]).fixed(column).numpy()


def hold_out_value(
    store: TraceStore, column: str, values: NDArray, hold_out: str, seed: int, question_ids: Texts
) -> Texts:
    """Test are the rows of a value; the others are split by question."""
    texts = np.array([str(value) for value in values], dtype=object)
    is_held_out = texts == hold_out
    if not is_held_out.any():
        distinct = sorted(set(texts.tolist()))
        more = ", ..." if len(distinct) > N_SHOWN else ""
        raise DataError(
            f"{store.path}: --hold-out: expected a value of column {column!r}, one of "
            f"{', '.join(map(repr, distinct[:N_SHOWN]))}{more}, found {hold_out!r:.80}"
        )
    distinct_ids, question = np.unique(question_ids, return_inverse=True)
    sides = np.array([side_of_question(one, seed) for one in distinct_ids], dtype=object)
    return np.where(is_held_out, "test", sides[question])


def split_by_file(path: Path, store: TraceStore, question_ids: Texts) -> OwnSplit:
    """The splits of a CSV file; rows that it does not name are in none."""
    with name_file(path, "splits as CSV"):
        if path.exists() and not path.is_file():
            raise LineError("expected a file of splits, found something else", 1)
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, records = read_csv(file)
            key = check_header(header)
            split_by_key = read_records(key, refuse(records))
    keys = store.ids if key == "trace_id" else question_ids
    unmatched = split_by_key.keys() - set(keys)
    if unmatched and len(unmatched) == len(split_by_key):
        known = str(next(iter(keys), "none"))
        raise DataError(
            f"{path}: expected the {key} of traces of {store.path}, such as {known!r:.80}, "
            f"found {min(unmatched)!r:.80}, and no trace of any other; give the file of this store"
        )
    by_row = np.array([split_by_key.get(one, "") for one in keys], dtype=object)
    return OwnSplit(by_row, len(unmatched))


def check_header(header: list[str]) -> str:
    """The column of ids; raises LineError for a header without one."""
    keys = [key for key in KEYS if key in header]
    if len(keys) != 1 or "split" not in header or len(set(header)) < len(header):
        raise LineError(
            f"expected a header with {' or '.join(KEYS)}, and split, found {header!r:.300}", 1
        )
    return keys[0]


def read_records(key: str, records: Iterable[Row]) -> dict[str, str]:
    """Id -> split; raises LineError for another word, and for an id of two splits."""
    split_by_key: dict[str, str] = {}
    for line, record in records:
        name, split = record[key], record["split"].strip()
        if split not in SPLITS:
            raise LineError(f"expected one of {', '.join(SPLITS)}, found {split!r:.80}", line)
        earlier = split_by_key.setdefault(name, split)
        if earlier != split:
            message = f"expected one split of {key} {name!r:.80}, found {earlier} and {split}"
            raise LineError(message, line)
    return split_by_key
