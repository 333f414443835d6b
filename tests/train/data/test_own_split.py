"""Splits that the user gives: each row where it was put, and one line for what cannot be meant."""

import numpy as np
import pytest
import small
from small import complaint

from store import Column
from store.labels.rule import UNLABELLED
from store.traces.question_split import side_of_question, split_of_question
from train.config import Config, check_config
from train.data.remarks import find_split_remarks
from train.data.splits import (
    BY_QUESTION,
    read_grades,
    read_second_labels,
    read_splits,
    read_values,
)
from train.errors import DataError, TrainError, store_errors

WORDS = ["train", "train", "val", "test"]
TEXTS = ("fold", "data", "empty", "official", "spelled", "gaps")
N = 240


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two traces a question; `fold` has a word for each, `year` an integer, `data` a name."""
    columns = dict.fromkeys(("question_id", *TEXTS), "utf8")
    columns |= {"label": "int8", "year": "int8", "merged": "float64", "share": "float64"}
    columns |= {"second": "float32", "state": Column("float32", (2,))}
    rows = {}
    for i in range(N):
        row = {"question_id": f"q{i // 2}", "fold": WORDS[i // 2 % 4], "empty": ""}
        row |= {"data": f"set {i // 2 % 3}", "year": i // 2 % 5, "label": i % 7 % 2}
        row |= {"official": ("train", "test")[i // 2 % 2]}
        row |= {"spelled": row["fold"].replace("val", "validation").title()}
        row |= {"gaps": row["fold"] if i // 2 % 7 else "", "share": i / N}
        row |= {"merged": float(row["year"]) if i // 2 % 7 else np.nan}
        row |= {"second": float(i % 2) if i % 3 else np.nan}
        row |= {"state": np.zeros(2, np.float32)}
        if i % 20 == 0:
            row |= {"label": -1, "fold": "unknown"}
        rows[f"t{i}"] = row
    return small.make_store(tmp_path_factory.mktemp("own") / "s.zarr", columns, rows)


def placed(splits):
    """Row -> split."""
    return {row: name for name in ("train", "val", "test") for row in splits.rows(name).tolist()}


def labelled():
    return [i for i in range(N) if i % 20]


def read(store, **settings):
    config = Config(**settings)
    check_config(config)
    with store_errors():
        return read_splits(store, config)


def side(i):
    """The split of the question of a row where none is drawn for test."""
    return side_of_question(f"q{i // 2}", 0)


def usual(i):
    return split_of_question(f"q{i // 2}", 0)


def write_csv(path, names, key="trace_id", key_of=lambda i: f"t{i}"):
    """A file that names the split of some rows."""
    lines = [f"{key_of(i)},{split}" for i, split in names.items()]
    path.write_text("\n".join([f"{key},split", *lines]) + "\n")
    return str(path)


@pytest.mark.parametrize(
    "settings, expected, by",
    [
        ({"split": "fold", "seed": 3}, lambda i: WORDS[i // 2 % 4], "column fold"),
        ({"split": "spelled"}, lambda i: WORDS[i // 2 % 4], "column spelled"),
        ({"split": "gaps"}, lambda i: i // 2 % 7 and WORDS[i // 2 % 4], "column gaps"),
        (
            {"split": "official"},
            lambda i: "test" if i // 2 % 2 else side(i),
            "column official, val drawn from its train",
        ),
        (
            {"split": "fold", "where": "fold != 'val'"},
            lambda i: {"train": side(i), "test": "test"}.get(WORDS[i // 2 % 4]),
            "column fold, val drawn from its train, as no trace of its val is used",
        ),
        (
            {"split": "data", "hold_out": "set 1"},
            lambda i: "test" if i // 2 % 3 == 1 else side(i),
            "column data, set 1 held out",
        ),
        (
            {"split": "year", "hold_out": "4"},
            lambda i: "test" if i // 2 % 5 == 4 else side(i),
            "column year, 4 held out",
        ),
        (
            {"split": "merged", "hold_out": "4"},
            lambda i: i // 2 % 7 and ("test" if i // 2 % 5 == 4 else side(i)),
            "column merged, 4 held out",
        ),
        (
            {"where": "data != 'set 1' and year < 4"},
            lambda i: i // 2 % 3 != 1 and i // 2 % 5 < 4 and usual(i),
            BY_QUESTION,
        ),
        (
            {"where": "year < 4", "split": "data", "hold_out": "set 0"},
            lambda i: i // 2 % 5 < 4 and ("test" if i // 2 % 3 == 0 else side(i)),
            "column data, set 0 held out",
        ),
    ],
)
def test_each_row_is_where_it_was_put(settings, expected, by, store):
    """By a word in any spelling, a value that is held out, or a filter; val is drawn from train by
    question where there is none. Rows without a label need no word; those without a value, as in a
    merged store whose parts lack the column, are left out, counted and remarked on."""
    splits = read(store, **settings)
    sides = {i: expected(i) for i in labelled()}
    assert placed(splits) == {i: split for i, split in sides.items() if split}
    assert splits.by == by
    n_outside = sum(not split for split in sides.values())
    assert splits.n_outside == n_outside
    remarks = find_split_remarks(splits)
    assert len(remarks) == bool(n_outside)
    meant = f"{by} and --where" if "where" in settings else by
    for remark in remarks:
        assert f"{n_outside} labelled traces are in no split of {meant}, and left out" in remark


def test_floats_with_gaps_are_integers_if_whole(store):
    """Read as integers, and nothing where there is NaN; no other float is a value."""
    found = read_values(store, "merged", "--strata", np.arange(20))
    assert found.tolist() == [i // 2 % 5 if i // 2 % 7 else "" for i in range(20)]
    with pytest.raises(DataError, match="found float64"):
        read_values(store, "share", "--strata", np.arange(20))


def test_a_trace_without_a_second_label_is_left_out(store):
    """NaN, of floats as of integers that were merged; without any label the column is refused."""
    rows = np.arange(0, 20)
    labels = read_second_labels(store, "second", rows)
    assert labels.tolist() == [i % 2 if i % 3 else UNLABELLED for i in rows]
    with pytest.raises(DataError, match="found none for 1 trace of test"):
        read_second_labels(store, "second", rows[:1])
    with pytest.raises(DataError, match="1, 0 or -1, or yes and no, in column 'year', found 2"):
        read_second_labels(store, "year", rows)


def test_a_second_grader_who_says_right_means_no_hallucination():
    words = "1 yes True fail wrong Incorrect 0 no False pass right Correct"
    grades, others = read_grades(np.array(words.split(), dtype=object))
    assert grades.tolist() == [1] * 6 + [0] * 6
    assert not len(others)


def test_train_and_val_keep_their_proportion():
    """70 to 15; and a question in train of the usual split stays there."""
    ids = [f"q{i}" for i in range(4000)]
    sides = [side_of_question(one, 0) for one in ids]
    assert sides.count("train") / len(ids) == pytest.approx(0.70 / 0.85, abs=0.02)
    usual = [split_of_question(one, 0) for one in ids]
    assert all(a == "train" for a, b in zip(sides, usual, strict=True) if b == "train")


def test_a_file_names_traces(store, tmp_path):
    """What it does not name is in no split, which is said; of it no trace is drawn."""
    names = {i: WORDS[i % 4] for i in range(N) if i % 7}
    path = write_csv(tmp_path / "s.csv", names | {"other": "val"})
    splits = read(store, split=path)
    expected = {i: names[i] for i in labelled() if i in names}
    assert placed(splits) == expected
    n_outside = len(labelled()) - len(expected)
    shared, outside, unmatched = find_split_remarks(splits)
    assert unmatched.startswith("warning: 1 id is of no trace: file ")
    assert f"{n_outside} labelled traces are in no split of file" in outside
    pairs = [{expected[i] for i in (q, q + 1) if i in expected} for q in range(0, N, 2)]
    n_shared = sum(len(sides) > 1 for sides in pairs)
    assert f"warning: {n_shared} questions have traces in more than one split" in shared
    assert ", such as 'q" in shared
    drawn = read(store, split=path, max_traces=60)
    assert len(placed(drawn)) == 60
    assert placed(drawn).items() <= expected.items()
    assert drawn.n_outside == n_outside


def test_a_file_names_questions_or_both(store, tmp_path):
    """Of both the traces count, as in the scores of a run, whose split it gives again. The digest
    is of the rows: another row in another split is another one."""
    by_question = {i: WORDS[i // 2 % 4] for i in range(0, N, 2)}
    ids = {"key": "question_id", "key_of": lambda i: f"q{i // 2}"}
    splits = read(store, split=write_csv(tmp_path / "s.CSV", by_question, **ids))
    assert placed(splits) == {i: WORDS[i // 2 % 4] for i in labelled()}
    assert splits.shared_questions() == []
    assert splits.digest() == read(store, split="fold").digest()
    moved = by_question | {N - 2: "val"}
    assert (
        read(store, split=write_csv(tmp_path / "b.csv", moved, **ids)).digest() != splits.digest()
    )
    both = {"key": "question_id,trace_id", "key_of": lambda i: f"q{i // 2},t{i}"}
    every = {i: WORDS[i % 4] for i in range(N)}
    splits = read(store, split=write_csv(tmp_path / "c.csv", every, **both))
    assert placed(splits) == {i: WORDS[i % 4] for i in labelled()}


def test_what_is_no_split_is_one_line(store, tmp_path, golden_lines):
    """Settings, or the text of a file, which is named with the line."""
    path = tmp_path / "s.csv"

    def refuse(given):
        settings = given if isinstance(given, dict) else {"split": str(path)}
        if settings is not given:
            path.write_bytes(given.encode("latin-1"))
        text = complaint(TrainError, read, store, **settings)
        return text.replace(f"{tmp_path}/", "").replace(f"{store.path.parent}/", "")

    golden_lines("wrong_splits.txt", refuse)
