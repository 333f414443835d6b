"""Which rows a run learns from, and which ones judge it.

The split of a row is a pure function of (question, seed), unless the user gives one: rows that ask
the same stay together, and rows that are appended later change no split, but where they show that
two earlier questions are one. Unlabelled rows (label -1) are in no split; they are never counted as
right answers. A split that the user gives is a column of the store, a CSV file, or a value that is
held out; nothing here decides by labels.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store import TraceStore
from store.errors import closest
from store.labels.rule import UNLABELLED, label_scores
from store.reports import count
from store.text_records import LineError, Row, name_file, read_csv, refuse
from store.traces.question_split import SPLITS, side_of_question, split_of_question
from train.config import Config
from train.data.questions import NOT_ASKED, Questions, read_questions
from train.errors import DataError, OneClassError

__all__ = [
    "BY_QUESTION",
    "Splits",
    "all_as_test",
    "check_batch",
    "filtered_rows",
    "is_missing",
    "label_column",
    "name_counts",
    "read_labels",
    "read_second_labels",
    "read_splits",
    "read_values",
]

Integers = NDArray[np.int64]
Texts = NDArray[np.object_]
BY_QUESTION = "question_id"
KEYS = ("trace_id", "question_id")
N_SHOWN = 10  # values that a message names
# labels of a second grader: yes says hallucination, as 1 does
YES = ("1", "true", "yes", "y", "fail", "wrong", "incorrect")
NO = ("0", "false", "no", "n", "pass", "right", "correct")
NO_GRADE = ("", "nan", "-1")
SPELLINGS = {"validation": "val", "valid": "val", "dev": "val", "training": "train"}


@dataclass(frozen=True)
class Splits:
    """The rows of each split, and label and question of every row."""

    # int64 (n_split,): labelled rows of the store, ascending
    train: Integers
    val: Integers
    test: Integers
    labels: Integers  # int64 (n_rows,): 1, 0, or -1 where unlabelled
    questions: Integers  # int64 (n_rows,): equal for rows of the same question
    seed: int  # the seed that the splits follow from
    # what the splits follow from besides: "question_id", or what the user gave
    by: str = BY_QUESTION
    n_outside: int = 0  # labelled rows that are in no split
    n_unmatched: int = 0  # ids of a file of splits that no row has
    # labelled rows of a value held out that are in no split: train or val asks them
    n_seen: int = 0
    is_filtered: bool = False  # whether --where leaves rows out of all splits
    asked: Questions = NOT_ASKED  # of all rows; none where nothing was split

    def rows(self, split: str) -> Integers:
        return getattr(self, split)

    def labels_of(self, split: str) -> Integers:
        return self.labels[self.rows(split)]

    def shared_questions(self) -> list[str]:
        """The ids of the questions that have rows in more than one split."""
        found = [np.unique(self.asked.keys[self.rows(split)]) for split in SPLITS]
        distinct, counts = np.unique(np.concatenate(found), return_counts=True)
        return distinct[counts > 1].tolist()

    def digest(self) -> str:
        """Equal for the same rows in the same splits."""
        digest = hashlib.sha256()
        for split in SPLITS:
            rows = self.rows(split).astype("<i8")
            digest.update(len(rows).to_bytes(8, "little") + rows.tobytes())
        return digest.hexdigest()


class Placed(NamedTuple):
    """The split of each row, and where it is from."""

    by_row: Texts  # (n_rows,): "train", "val", "test", or "" for none
    by: str = BY_QUESTION
    n_unmatched: int = 0
    n_seen: int = 0


def by_question(questions: Texts, rule: Callable[[str, int], str], seed: int) -> Texts:
    """The split (n_rows,) that a rule gives the question of each row."""
    distinct, question = np.unique(questions, return_inverse=True)
    return np.array([rule(one, seed) for one in distinct], dtype=object)[question]


def place_rows(
    placed: Placed, questions: Texts, labels: Integers, seed: int, max_traces: int | None
) -> Splits:
    """Put the labelled rows, or `max_traces` of them, into the splits that are named for them.

    Rows that are in no split are not drawn.
    """
    is_labelled = labels != UNLABELLED
    is_inside = np.isin(placed.by_row, SPLITS)
    inside = np.flatnonzero(is_labelled & is_inside)
    drawn = np.sort(np.random.default_rng(seed).permutation(inside)[:max_traces])
    rows = {split: drawn[placed.by_row[drawn] == split] for split in SPLITS}
    return Splits(
        **rows,
        labels=labels,
        questions=np.unique(questions, return_inverse=True)[1],
        seed=seed,
        by=placed.by,
        n_outside=int(np.sum(is_labelled & ~is_inside)) - placed.n_seen,
        n_unmatched=placed.n_unmatched,
        n_seen=placed.n_seen,
    )


def all_as_test(store: TraceStore, seed: int = 0) -> Splits:
    """Every row in the test split, and no labels: what is needed to score a store."""
    none = np.zeros(0, np.int64)
    every = np.arange(len(store))
    labels = np.full(len(store), UNLABELLED)
    return Splits(none, none, every, labels, questions=every, seed=seed)


def label_column(config: Config) -> str:
    """The column that labels are read or made from."""
    return "label" if config.score_threshold is None else "score"


def read_splits(
    store: TraceStore, config: Config, asked: Questions | None = None, kept: Integers | None = None
) -> Splits:
    """Read labels, and what was asked and the rows of --where unless they are given, and split.

    Raises OneClassError, a DataError, where a split lacks a class.
    """
    labels = read_labels(store, config)
    asked = asked or read_questions(store, config)
    if config.near_duplicates is not None and not any(asked.texts):
        raise DataError(
            f"{store.location}: --near-duplicates: expected a column of texts of questions, found "
            "none; name it with --columns question=COLUMN, or leave out --near-duplicates"
        )
    meant = filtered_rows(store, config.where) if kept is None else kept
    used = np.full(len(labels), UNLABELLED)  # rows that --where leaves out are drawn into no split
    used[meant] = labels[meant]
    if config.where is not None and not has_both(used) and has_both(labels):
        raise no_such_filter(store, config.where, name_counts(used[used != UNLABELLED]))
    if config.split is None:
        placed = Placed(by_question(asked.keys, split_of_question, config.seed))
    else:
        placed = place_as_given(store, config, asked, used != UNLABELLED)
    splits = place_rows(placed, asked.keys, used, config.seed, config.max_traces)
    n_outside = splits.n_outside + int(np.sum(labels != used))
    filtered = config.where is not None
    splits = replace(splits, labels=labels, asked=asked, n_outside=n_outside, is_filtered=filtered)
    check_splits(splits, store)
    return splits


def read_labels(store: TraceStore, config: Config) -> Integers:
    """Labels (n_rows,), as they are stored or by --score-threshold; raises DataError."""
    values = np.asarray(store.column(label_column(config)))
    if config.score_threshold is not None:
        return label_scores(values, config.score_threshold)
    return check_labels(values, store)


def has_both(labels: Integers) -> bool:
    """Whether labels (n,) are of both classes."""
    return bool(np.isin((0, 1), labels).all())


def filtered_rows(store: TraceStore, where: str | None) -> NDArray[np.int64]:
    """The rows (n,) that --where keeps; raises DataError if there are none."""
    rows = store.where(where or "")
    if where is not None and not len(rows):
        raise no_such_filter(store, where, f"0 of {count(len(store), 'trace')}")
    return rows


def no_such_filter(store: TraceStore, where: str, kept: str) -> DataError:
    return DataError(
        f"{store.location}: --where {where!r:.80} kept {kept}; expected a filter that keeps traces "
        "of both classes"
    )


def check_labels(labels: NDArray, store: TraceStore) -> Integers:
    """The labels as int64; raises DataError for any but 1, 0 and -1."""
    wrong = np.flatnonzero(~np.isin(labels, (0, 1, UNLABELLED)))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{store.location}: column 'label', trace {store.ids[row]!r}: expected 1, 0 or -1, "
            f"found {labels[row]}; correct the {len(wrong)} labels like it"
        )
    return labels.astype(np.int64)


def check_splits(splits: Splits, store: TraceStore) -> None:
    if not np.any(splits.labels != UNLABELLED):
        raise DataError(
            f"{store.location}: expected labelled traces, found all {len(splits.labels)} "
            "unlabelled; add scores to the store, then train again"
        )
    ways = f"{'--seed' if splits.by == BY_QUESTION else '--split'} or --score-threshold"
    if splits.is_filtered:
        ways += ", or another --where"
    if splits.asked.n_joined:
        ways += ", or --no-join-questions if equal texts are not one question"
    for split in SPLITS:
        labels = splits.labels_of(split)
        n_positive = int(labels.sum())
        if not 0 < n_positive < len(labels):
            seen = count(splits.n_seen, "trace")
            besides = f" besides {seen} whose questions training has" if splits.n_seen else ""
            message = (
                f"{store.location}: {split} split: expected both classes, found {n_positive} "
                f"hallucinations among {len(labels)} labelled traces{besides} ({splits.by}); add "
                f"traces, or try another {ways}"
            )
            raise OneClassError(message, f"{split} would have {name_counts(labels)}{besides}")


def name_counts(labels: Integers) -> str:
    """How many there are of each class, in words."""
    n_positive = int(labels.sum())
    return f"{n_positive} hallucinations and {len(labels) - n_positive} right answers"


def check_batch(splits: Splits, store: TraceStore, batch_size: int) -> None:
    """Raise DataError unless train fills a batch."""
    n_train = len(splits.train)
    if n_train < batch_size:
        raise DataError(
            f"{store.location}: train split: expected at least one batch of {batch_size} traces, "
            f"found {n_train}; lower --batch-size, to {n_train} at most"
        )


def is_file(split: str) -> bool:
    """Whether --split names a CSV file, not a column."""
    return split.lower().endswith(".csv")


def place_as_given(
    store: TraceStore, config: Config, asked: Questions, is_used: NDArray[np.bool_]
) -> Placed:
    """The splits of --split and --hold-out.

    --split is a column of text with the words train, val (or validation, valid, dev) and test, in
    any case;
    without val, as most data sets have it, val is drawn from train by question and `seed`, in the
    proportions of the usual split; or a CSV file with the columns
    `trace_id` or `question_id`, and `split`, whose other rows are in no split; or, to hold out a
    value, a column of text or integers: the rows of that value are then test, the others
    train and val by question and `seed`, in the proportions of the usual split. Rows without a
    value are in no split, nor are those held out whose questions others ask. `is_used`
    (n_rows,) are the rows whose split matters, the labelled ones.

    Raises DataError for a column that is not there, or of another kind; other words; a value that
    no row has; a file all of whose ids no row has; and StoreError for a file that cannot be read.
    """
    split, by = str(config.split), f"column {config.split}"
    if is_file(split):
        return split_by_file(Path(split), store, asked.ids)._replace(by=f"file {split}")
    given = read_values(store, split, "--split", np.arange(len(store)))
    if config.hold_out is not None:
        return hold_out_value(store, config, given, asked.keys, is_used)
    lower = [str(value).strip().lower() for value in given.tolist()]
    values = np.array([SPELLINGS.get(word, word) for word in lower], dtype=object)
    is_word = np.isin(values, SPLITS)
    is_wrong = ~is_word & ~is_missing(values) if is_word[is_used].any() else ~is_word
    for row in np.flatnonzero(is_used & is_wrong)[:1]:
        raise DataError(
            f"{store.location}: --split: column {split!r}, trace {store.ids[row]!r}: expected one "
            f"of {', '.join(SPLITS)}, found {str(given[row])!r:.80}; give a column of these words, "
            "or --hold-out VALUE to test on the rows of one value"
        )
    if np.any(values[is_used] == "val"):
        return Placed(values, by)
    sides = by_question(asked.keys, side_of_question, config.seed)
    by += ", val drawn from its train"
    if np.any(values == "val"):
        by += ", as no trace of its val is used"  # unlabelled, or left out by --where
    return Placed(np.where(values == "train", sides, values), by)


def read_values(store: TraceStore, column: str, flag: str, rows: NDArray[np.int64]) -> NDArray:
    """Values (n,) of a column of text, integers or booleans; raises DataError for any other.

    A column of floats that are whole numbers, as `merge` writes integers of some stores alone, is
    one of integers, and "" where it has NaN.
    """
    columns = store.schema.columns
    if column not in columns:
        raise DataError(
            f"{store.location}: {flag}: expected a column of text or integers, found no {column!r}"
            f"{closest(column, columns)}; there are {', '.join(columns)}"
        )
    found = columns[column]
    if found.is_text:
        return np.array(store.read(rows, columns=[column]).texts(column), dtype=object)
    values = store.read(rows, columns=[column]).fixed(column).numpy() if found.is_single else None
    if values is not None and found.dtype.startswith("float") and are_whole(values):
        return np.array(["" if np.isnan(one) else int(one) for one in values], dtype=object)
    if values is None or not re.fullmatch(r"u?int\d+|bool", found.dtype):
        raise DataError(
            f"{store.location}: {flag}: expected column {column!r} of text or one integer a trace, "
            f"found {found.dtype} {'ragged' if found.axis else list(found.item_shape)}; "
            "choose another column"
        )
    return values


def are_whole(values: NDArray) -> bool:
    """Whether numbers (n,) are whole, but for NaN, of which not all are."""
    numbers = values[~np.isnan(values)]
    return bool(len(numbers) and np.all(np.isfinite(numbers) & (numbers == np.trunc(numbers))))


def is_missing(values: NDArray) -> NDArray[np.bool_]:
    """Where `read_values` found none, (n,)."""
    return np.array([value == "" for value in values.tolist()], dtype=bool)


def read_second_labels(
    store: TraceStore, column: str | None, rows: NDArray[np.int64]
) -> Integers | None:
    """Labels (n,) of the second grader, yes as 1, -1 where there is none; None without a column.

    Raises DataError for a column that has none of labels, or none for these rows.
    """
    if column is None:
        return None
    values = read_values(store, column, "--second-label", np.arange(len(store)))[rows]
    grades, wrong = read_grades(values)
    others = wrong.tolist()
    if others or np.all(np.isnan(grades)):
        found = f"{others[0]!r:.80}" if others else f"none for {count(len(rows), 'trace')} of test"
        raise DataError(
            f"{store.location}: --second-label: expected labels of 1, 0 or -1, or yes and no, in "
            f"column {column!r}, found {found}; choose another column"
        )
    return np.where(np.isnan(grades), UNLABELLED, grades).astype(np.int64)


def read_grades(values: NDArray) -> tuple[NDArray[np.float64], NDArray]:
    """1 for yes, 0 for no and NaN for anything else, (n,); and those values that say another."""
    words = [str(one).lower().removesuffix(".0") for one in values.tolist()]
    grades = np.array([1.0 if one in YES else 0.0 if one in NO else np.nan for one in words])
    return grades, values[np.isnan(grades) & ~np.isin(words, NO_GRADE)]


def hold_out_value(
    store: TraceStore, config: Config, values: NDArray, questions: Texts, is_used: NDArray[np.bool_]
) -> Placed:
    """Test are the rows of a value whose questions no other asks; the others that have a value are
    split by question."""
    texts = np.array([str(value) for value in values], dtype=object)
    is_held_out = (texts == config.hold_out) & ~is_missing(values)
    if not is_held_out.any():
        distinct = sorted({*texts.tolist()} - {""})
        more = ", ..." if len(distinct) > N_SHOWN else ""
        raise DataError(
            f"{store.location}: --hold-out: expected a value of column {config.split!r}, one of "
            f"{', '.join(map(repr, distinct[:N_SHOWN]))}{more}, found {config.hold_out!r:.80}"
        )
    learned = is_used & ~is_held_out & ~is_missing(values)
    is_seen = is_held_out & np.isin(questions, questions[learned])
    sides = by_question(questions, side_of_question, config.seed)
    sides[is_held_out] = "test"
    sides[is_missing(values) | is_seen] = ""
    by = f"column {config.split}, {config.hold_out} held out"
    return Placed(sides, by, n_seen=int(np.sum(is_seen & is_used)))


def split_by_file(path: Path, store: TraceStore, question_ids: Texts) -> Placed:
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
            f"{path}: expected the {key} of traces of {store.location}, such as {known!r:.80}, "
            f"found {min(unmatched)!r:.80}, and no trace of any other; give the file of this store"
        )
    by_row = np.array([split_by_key.get(one, "") for one in keys], dtype=object)
    return Placed(by_row, n_unmatched=len(unmatched))


def check_header(header: list[str]) -> str:
    """The column of ids; raises LineError for a header without one."""
    keys = [key for key in KEYS if key in header]  # the scores of a run have both
    if not keys or "split" not in header or len(set(header)) < len(header):
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
