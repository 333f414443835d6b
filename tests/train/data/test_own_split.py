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
from train.errors import ConfigError, DataError, TrainError, store_errors

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
    with store_errors():
        return read_splits(store, Config(**settings))


def write_csv(path, rows, header=("trace_id", "split")):
    path.write_text("\n".join(",".join(row) for row in [header, *rows]) + "\n")
    return str(path)


def test_words_of_a_column_are_the_splits(store):
    """Whatever the seed is; rows without a label need no word."""
    splits = read(store, split="fold", seed=3)
    assert placed(splits) == {i: WORDS[i // 2 % 4] for i in labelled()}
    assert splits.by == "column fold"
    assert find_split_remarks(splits) == []


def test_a_filter_leaves_rows_out_of_every_split(store):
    """They are counted; the others stay where they were."""
    every = placed(read(store))
    splits = read(store, where="data != 'set 1' and year < 4")
    kept = {i for i in labelled() if i // 2 % 3 != 1 and i // 2 % 5 < 4}
    assert placed(splits) == {i: every[i] for i in kept}
    assert splits.n_outside == len(labelled()) - len(kept)
    (remark,) = find_split_remarks(splits)
    assert "in no split of question_id and --where, and left out" in remark
    held_out = read(store, where="year < 4", split="data", hold_out="set 0")
    expected = [i for i in labelled() if i // 2 % 3 == 0 and i // 2 % 5 < 4]
    assert sorted(held_out.test) == expected
    with pytest.raises(TrainError, match=r"filter, character 0: .* closest: 'year'"):
        read(store, where="yeer < 4")


def test_the_official_split_of_a_data_set_needs_no_val(store):
    """It is drawn from train, by question; other words for val are known."""
    splits = read(store, split="official")
    drawn = {i: side_of_question(f"q{i // 2}", 0) for i in labelled()}
    assert placed(splits) == {i: "test" if i // 2 % 2 else side for i, side in drawn.items()}
    assert splits.by == "column official, val drawn from its train"
    assert placed(read(store, split="spelled")) == placed(read(store, split="fold"))
    filtered = read(store, split="fold", where="fold != 'val'")
    assert filtered.by == "column fold, val drawn from its train, as no trace of its val is used"


@pytest.mark.parametrize("column, value", [("data", "set 1"), ("year", "4")])
def test_the_rows_of_a_value_are_held_out(store, column, value):
    """The others are train and val by question, in the proportions of the usual split."""
    splits = read(store, split=column, hold_out=value)
    kept = {i: side_of_question(f"q{i // 2}", 0) for i in labelled()}
    values = [f"set {i // 2 % 3}" if column == "data" else f"{i // 2 % 5}" for i in range(N)]
    assert placed(splits) == {i: "test" if values[i] == value else side for i, side in kept.items()}
    assert splits.by == f"column {column}, {value} held out"


@pytest.mark.parametrize(
    "settings", [{"split": "merged", "hold_out": "4"}, {"split": "gaps"}], ids=["NaN", "empty"]
)
def test_rows_without_a_value_are_left_out_and_counted(store, settings):
    """A merged store has NaN, and empty text, where one of the stores lacks the column."""
    full = {"split": "year", "hold_out": "4"} if "hold_out" in settings else {"split": "fold"}
    expected = {i: side for i, side in placed(read(store, **full)).items() if i // 2 % 7}
    splits = read(store, **settings)
    assert placed(splits) == expected
    n_outside = len(labelled()) - len(expected)
    (remark,) = find_split_remarks(splits)
    assert f"{n_outside} labelled traces are in no split of column" in remark


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
    """What it does not name is in no split, which is said."""
    rows = [(f"t{i}", WORDS[i % 4]) for i in range(N) if i % 7]
    splits = read(store, split=write_csv(tmp_path / "s.csv", [*rows, ("other", "val")]))
    expected = {i: WORDS[i % 4] for i in labelled() if i % 7}
    assert placed(splits) == expected
    n_outside = len(labelled()) - len(expected)
    shared, outside, unmatched = find_split_remarks(splits)
    assert unmatched.startswith("warning: 1 id is of no trace: file ")
    assert f"{n_outside} labelled traces are in no split of file" in outside
    pairs = [{expected[i] for i in (q, q + 1) if i in expected} for q in range(0, N, 2)]
    n_shared = sum(len(sides) > 1 for sides in pairs)
    assert f"warning: {n_shared} questions have traces in more than one split" in shared
    assert ", such as 'q" in shared


def test_traces_are_drawn_from_the_splits(store, tmp_path):
    """Of those that the file leaves out none is drawn, and all are counted."""
    named = [i for i in labelled() if i < N // 2]
    path = write_csv(tmp_path / "s.csv", [(f"t{i}", WORDS[i % 4]) for i in named])
    splits = read(store, split=path, max_traces=60)
    drawn = placed(splits)
    assert len(drawn) == 60
    assert drawn.items() <= {i: WORDS[i % 4] for i in named}.items()
    assert splits.n_outside == len(labelled()) - len(named)


def test_a_file_names_questions(store, tmp_path):
    rows = [(f"q{i}", WORDS[i % 4]) for i in range(N // 2)]
    path = write_csv(tmp_path / "s.CSV", rows, ("question_id", "split"))
    splits = read(store, split=path)
    assert placed(splits) == {i: WORDS[i // 2 % 4] for i in labelled()}
    assert splits.shared_questions() == []


def test_a_file_of_both_ids_names_traces(store, tmp_path):
    """As the scores of a run do, whose split it gives again."""
    rows = [(f"t{i}", WORDS[i % 4], f"q{i // 2}") for i in range(N)]
    path = write_csv(tmp_path / "s.csv", rows, ("trace_id", "split", "question_id"))
    assert placed(read(store, split=path)) == {i: WORDS[i % 4] for i in labelled()}


def test_what_is_no_split_is_one_line(store, tmp_path, golden_lines):
    """Settings, or the text of a file, which is named with the line."""
    path = tmp_path / "s.csv"

    def refuse(given):
        settings = given if isinstance(given, dict) else {"split": str(path)}
        if settings is not given:
            path.write_bytes(given.encode("latin-1"))
        text = complaint(TrainError, read, store, **settings)
        assert "expected" in text
        return text.replace(f"{tmp_path}/", "").replace(f"{store.path.parent}/", "")

    golden_lines("wrong_splits.txt", refuse)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"hold_out": "x"}, "--hold-out: expected --split COLUMN"),
        ({"hold_out": "x", "split": "a.csv"}, "--hold-out: expected a column as --split"),
        ({"split": "a", "splits": 2}, "--splits: expected 1 with --split"),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(ConfigError, match=message):
        check_config(Config(**settings))


def test_the_digest_is_of_the_rows(store, tmp_path):
    """Another row in another split is another digest."""
    rows = [(f"q{i}", WORDS[i % 4]) for i in range(N // 2)]
    first = read(store, split=write_csv(tmp_path / "a.csv", rows, ("question_id", "split")))
    same = read(store, split="fold")
    assert first.digest() == same.digest()
    moved = [*rows[:-1], ("q119", "val")]
    other = read(store, split=write_csv(tmp_path / "b.csv", moved, ("question_id", "split")))
    assert other.digest() != first.digest()
    assert read(store).by == BY_QUESTION
