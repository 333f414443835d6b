"""Which traces ask the same: by id and by text; no question is in two splits, whatever its ids."""

import json
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from runs import call, predict, read_csv, train
from small import store_columns

from store import Column, StoreError, TraceStore
from store.read.joined.joined_store import open_joined
from store.traces.question_split import SPLITS, split_of_question
from train.config import Config, check_config
from train.data.batches import TrainingData
from train.data.questions import read_questions
from train.data.remarks import find_remarks
from train.data.splits import Splits, read_labels, read_splits
from train.errors import ConfigError, DataError
from train.evaluate.findings import count_splits
from train.run.results import read_asked, write_asked

N = 300
WIDTH = 256


def write(path, ids, texts, labels, states=None, contexts=None):
    states = np.zeros((len(ids), 1, WIDTH), np.float16) if states is None else states
    columns = {"question_id": ("utf8", ids), "question": ("utf8", texts), "label": ("int8", labels)}
    columns |= {"hs_last": (Column("float16", (1, WIDTH)), states), "context": ("utf8", contexts)}
    given = {name: one for name, one in columns.items() if one[1] is not None}
    return store_columns(path, given).path


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """Each question three times, under other ids, in other case and blanks; its label is a coin."""
    rng = np.random.default_rng(0)
    texts = [f"What is number {i}?" for i in range(N)]
    texts += [text.upper() for text in texts] + [f"  {text} ".replace(" ", "  ") for text in texts]
    states = np.tile(rng.normal(size=(N, 1, WIDTH)), (3, 1, 1)).astype(np.float16)
    labels = np.tile(rng.integers(0, 2, N), 3)
    ids = [f"q{i}" for i in range(3 * N)]
    return write(tmp_path_factory.mktemp("copies") / "s.zarr", ids, texts, labels, states)


@pytest.fixture(scope="module")
def runs(copies, tmp_path_factory):
    """A run that joins questions, and one that does not."""
    folder = tmp_path_factory.mktemp("runs")
    flags = ["--only=saplma,logreg_best", "--epochs=1"]
    return {
        flag: (folder / flag, train(copies, folder / flag, *flags, flag))
        for flag in ("--join-questions", "--no-join-questions")
    }


def test_copies_under_other_ids_teach_nothing(runs):
    """The truth is .5; a probe that has seen in train the copies of test is far above."""
    areas = {
        flag: results["baselines"]["logreg_best"]["test"]["auroc_ci"]
        for flag, (_, results) in runs.items()
    }
    assert areas["--no-join-questions"][0] > 0.8
    low, high = areas["--join-questions"]
    assert low < 0.5 < high
    results = runs["--join-questions"][1]
    assert results["split"]["joined"] == 2 * N
    assert results["remarks"][0].startswith(f"{2 * N} question ids have the text of an earlier one")


def test_copies_in_another_store_are_no_test(runs, copies, tmp_path, capsys):
    """`evaluate` leaves out what the run was trained on, and `predict` marks it."""
    store = TraceStore.open(copies)
    texts = [f"«{text}»" for text in store.column("question")[:N]]
    ids = [f"o{i}" for i in range(N)]
    other = write(tmp_path / "o.zarr", ids, texts, store.column("label")[:N])
    out, results = runs["--join-questions"]
    tested = results["split"]["test"]["questions"]
    flags = ["evaluate", "--run", out, "--store", other, "--models=saplma", "--force-cpu", "--json"]
    for more, n_rows in ((), tested), (("--keep-trained-questions",), N):
        found = json.loads(call(capsys, *flags, *more)[1])["results"][0]
        assert found["rows"] == n_rows
        assert f"{N - tested} traces of {N - tested} questions" in found["remarks"][0]
    _, text, lines = call(capsys, *predict(out, other))
    splits = [line["split"] for line in read_csv(text).values()]
    assert splits == [split_of_question(f"q{i}", 0) for i in range(N)]
    assert lines[-1].startswith(f"{N - tested} traces are of questions that the run was trained or")


needs_datasketch = pytest.mark.skipif(
    find_spec("datasketch") is None, reason="pip install '.[duplicates]'"
)
SAME = [*["Summarize the document in one sentence."] * 5, ""]
DOCUMENTS = ["A river rose.", "A mayor left.", "a  RIVER rose", "", "", "A storm came."]
BLANK, WHY = ["", "", "q", "", " ", "q"], ["", "", "", "Why?", "why", ""]
LONGEST = [f"Which of the many rivers of the country is the longest{s}" for s in ("", "s", "s")]
LONG = ["One. " * 99, "One. " * 99, "Two. " * 99]
MANY = [f"Which of the {i} rivers of country {i * i} is the longest" for i in range(40, 80)]
MANY_IDS = [f"q{i}" for i in range(80)]


@pytest.mark.parametrize(
    "ids, texts, contexts, settings, keys",
    [
        ("abcdef", SAME, DOCUMENTS, {}, "abaddf"),
        (BLANK, WHY, None, {}, ["t0", "t1", "q", "t3", "t3", "q"]),
        (BLANK, WHY, None, {"join_questions": False}, ["t0", "t1", "q", "t3", "t4", "q"]),
        ("abc", LONGEST, LONG, {}, "abc"),
        pytest.param("abc", LONGEST, LONG, {"near_duplicates": 0.9}, "aac", marks=needs_datasketch),
        pytest.param(
            MANY_IDS,
            [*MANY, *(f"{one}s" for one in MANY)],
            None,
            {"near_duplicates": 0.9},
            MANY_IDS[:40] * 2,
            marks=needs_datasketch,
        ),
    ],
)
def test_traces_of_one_question(ids, texts, contexts, settings, keys, tmp_path):
    """Have one id, or one text and one context; a blank id is of a question of its own. Similar
    texts of one context are one on request, however long the context is."""
    labels = [i % 2 for i in range(len(ids))]
    store = TraceStore.open(write(tmp_path / "s.zarr", ids, texts, labels, contexts=contexts))
    found = read_questions(store, Config(**settings))
    assert found.keys.tolist() == list(keys)
    assert found.n_joined == len(set(found.ids)) - len(set(keys))


def test_texts_and_contexts_count_where_another_store_has_no_such_column(tmp_path):
    """Stores that are read as one; the rows of each keep what it has."""
    labels, texts = [0, 1] * 2, ["Why?", "why", "Why?", "Who?"]
    ids = [[f"{name}{i}" for i in range(4)] for name in "abc"]
    paths = [
        write(tmp_path / "a.zarr", ids[0], texts, labels, contexts=["", "", "A river.", ""]),
        write(tmp_path / "b.zarr", ids[1], None, labels),
        write(tmp_path / "c.zarr", ids[2], texts, labels),
    ]
    joined = read_questions(open_joined(paths), Config())
    keys = ["a0", "a0", "a2", "a3", *ids[1], "a0", "a0", "a0", "a3"]
    assert joined.keys.tolist() == keys
    assert joined.n_without_text() == 4


def test_what_a_run_knows_by_ids_alone_is_remarked_on(tmp_path):
    """Where the store has texts that could not be compared."""
    ids, labels = [f"q{i}" for i in range(60)], [0, 1] * 30
    bare = TraceStore.open(write(tmp_path / "bare.zarr", ids, None, labels))
    splits = read_splits(bare, Config())
    write_asked(tmp_path, splits)
    run = read_asked(tmp_path)
    other = TraceStore.open(write(tmp_path / "o.zarr", ids, ["Why?"] * 60, labels))
    (remark,) = run.remarks_on_texts(read_questions(other, Config()))
    n_learned = len(splits.train) + len(splits.val)
    assert remark.startswith(f"the run has no text of {n_learned} questions that it was trained")
    assert run.remarks_on_texts(read_questions(bare, Config())) == []


def test_near_duplicates_that_cannot_be_found(tmp_path, monkeypatch):
    """One line where the package or the text is missing; not of a store that a run is asked of."""
    labels = [0, 1] * 40
    bare = TraceStore.open(write(tmp_path / "bare.zarr", MANY_IDS, [""] * 80, labels))
    near = Config(near_duplicates=0.9)
    with pytest.raises(DataError, match="expected a column of texts of questions"):
        read_splits(bare, near)
    assert read_questions(bare, near).n_joined == 0
    with pytest.raises(ConfigError, match="--no-join-questions"):
        check_config(Config(near_duplicates=0.9, join_questions=False))
    store = TraceStore.open(write(tmp_path / "s.zarr", MANY_IDS, MANY * 2, labels))
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(StoreError, match=r"--near-duplicates: the package datasketch .*\[dupl"):
        read_questions(store, near)


@pytest.mark.parametrize("setting", [{}, {"join_questions": False}])
def test_what_a_text_would_have_said_is_remarked_on(tmp_path, setting):
    """Copies under other ids may be in two splits: it is said and counted where texts lack."""
    ids = [f"new {i}" for i in range(N)]
    texts = {"all": ["other"] * N, "half": ["other", ""] * (N // 2), "none": [""] * N}
    remarks = {}
    for name, of_rows in texts.items():
        path = write(tmp_path / f"{name}.zarr", ids, of_rows, [0, 1] * (N // 2))
        data = split_as_ids(TraceStore.open(path), Config(**setting))
        remarks[name] = [one for one in find_remarks(data) if "no text of the question" in one]
        assert remarks[name] == data.splits.asked.remarks()
        n_tested = count_splits(data.splits).without_text
        assert n_tested == sum(not of_rows[row] for row in data.splits.test)
    (half,), (none,) = remarks["half"], remarks["none"]
    assert remarks["all"] == []
    assert half.startswith(f"{N // 2} traces have no text of the question")
    assert none.startswith(f"{N} traces have no text of the question")


def split_as_ids(store, config):
    """Data whose splits are by row, as of ids alone."""
    rows, labels = np.arange(len(store)), read_labels(store, config)
    splits = Splits(*np.array_split(rows, 3), labels, rows, seed=0)
    return TrainingData(store, replace(splits, asked=read_questions(store, config)), config)


def test_the_questions_of_a_run_are_recorded(runs, copies):
    """Of every split, by id and text."""
    out, _ = runs["--join-questions"]
    splits = read_splits(TraceStore.open(copies), Config())
    asked = np.array(read_asked(out).find_splits(splits.asked))
    assert all(set(asked[splits.rows(split)]) == {split} for split in SPLITS)
