"""Scores and labels from files: which column is read, as what, and what is refused."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from store import FormatError, SchemaError, TraceStore
from store.cli.main import main
from store.labels.score_file import read_scores


@pytest.fixture
def read(tmp_path):
    """Write a file and read it."""

    def write_and_read(text, **options):
        (tmp_path / "s.csv").write_bytes(text.encode(errors="surrogateescape"))
        return read_scores(tmp_path / "s.csv", **options)

    return write_and_read


def labelled(table, values, threshold):
    """The score and the label that each value makes."""
    made = replace(table, threshold=threshold).label(values)
    return list(zip(*(one.tolist() for one in made), strict=True))


@pytest.mark.parametrize("name", ["score", "bleurt_score", "bleurt", "rouge_l", "rougeL", "Score"])
def test_known_names_of_scores(read, name):
    """They are scores, higher is better, wherever their column stands."""
    table = read(f"{name},model,question_id\n0.25,x,q1\n")
    assert (table.kind, table.column, table.lower_is_better) == ("score", name, False)
    assert table.by_question == {"q1": 0.25}
    assert labelled(table, [0.25, 0.5], 0.5) == [(0.25, 1), (0.5, 0)]


@pytest.mark.parametrize("name", ["label", "is_hallucination", "hallucination", "Label"])
def test_known_names_of_labels(read, name):
    """They are labels, 1 = hallucination, never scores of which 1 is right."""
    table = read(f"question_id,{name}\na,1\nb,0\nc,-1\nd,TRUE\ne,false\nf,1.0\ng,\n")
    assert table.kind == "label"
    assert table.by_question == {"a": 1, "b": 0, "c": -1, "d": 1, "e": 0, "f": 1}
    assert table.n_empty == 1
    scores, labels = table.label([1.0, 0.0, -1.0])
    assert np.isnan(scores).all()
    assert labels.tolist() == [1, 0, -1]


def test_columns_can_be_named(read):
    """As scores or as labels, with a direction for scores."""
    text = "question_id,correct,wrong,ppl\nq1,True,0,3.5\n"
    assert labelled(read(text, score_column="correct"), [1.0], 0.5) == [(1.0, 0)]
    assert read(text, label_column="wrong").by_question == {"q1": 0}
    table = read(text, score_column="ppl", lower_is_better=True)
    expected = [(-3.5, 0), (-20.0, 0), (-20.5, 1)]
    assert labelled(table, [3.5, 20.0, 20.5], 20.0) == expected
    assert replace(table, threshold=20.0).stored_threshold == -20.0


def test_a_trace_id_comes_before_the_question(read):
    """Where a line has both; where it has only the question, it is of all its traces."""
    table = read("\ufefftrace_id,question_id,score\nq1#2,q1,0.1\n,q1,0.9\n")
    assert (table.by_trace, table.by_question) == ({"q1#2": 0.1}, {"q1": 0.9})
    assert table.value_of("q1#2", "q1") == 0.1
    assert table.value_of("q1", "q1") == 0.9
    assert table.value_of("q2", "q2") is None


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters(read, delimiter):
    """A comma, a semicolon or a tab, by the header; texts may hold the others."""
    lines = [["trace_id", "question", "score"], ["t1", '"a,;\tb"', "1"]]
    table = read("\n".join(map(delimiter.join, lines)))
    assert table.by_trace == {"t1": 1.0}


def test_json_lines(read):
    """Their keys are columns; null and a missing key say nothing, booleans are labels."""
    lines = [
        {"trace_id": "a", "label": True},
        {"label": 0, "trace_id": 7},
        {"trace_id": "b", "label": None},
        {"trace_id": "c"},
    ]
    table = read("\n".join(map(json.dumps, lines)) + "\n\n")
    assert (table.by_trace, table.n_empty) == ({"a": 1.0, "7": 0.0}, 2)


def test_what_holds_no_value_is_named(read, tmp_path, golden_lines):
    """Files of which no column is meant for sure, options that contradict one, lines without an id
    or a value."""

    def refuse(given):
        text, options = given
        with pytest.raises((FormatError, SchemaError)) as caught:
            read(text, **options)
        return str(caught.value).replace(f"{tmp_path}/", "")

    golden_lines("wrong_scores.txt", refuse)


@pytest.fixture
def imported(tmp_path, capsys):
    """Import three raw traces, two of one question, with a file of scores."""
    n = 3

    def record(question_id):
        return {
            "hidden_states": [np.zeros((n, 4), np.float16)] * 2,
            "attentions": [np.full((1, n, n), 1 / n, np.float16)] * 2,
            "tokens": np.arange(n),
            "tokens_decoded": ["a"] * n,
            "generated_answer_clean": "a",
            "question_id": question_id,
        }

    (tmp_path / "t.pkl").write_bytes(pickle.dumps([record("q1"), record("q1"), record("q2")]))

    def run(text, *options):
        arguments = [str(tmp_path / "s.zarr"), str(tmp_path / "t.pkl"), *options]
        if text is not None:
            (tmp_path / "s.csv").write_text(text)
            arguments += ["--scores", str(tmp_path / "s.csv")]
        status = main(["import", *arguments])
        said = capsys.readouterr()
        if status == 2:
            return status, None, said.err
        return status, TraceStore.open(tmp_path / "s.zarr"), said.out

    return run


def test_import_scores_traces_one_by_one(imported):
    """Samples of a question have ids of their own; what fits nothing is counted."""
    status, store, out = imported("trace_id,question_id,score\nq1#2,,0.9\n,q1,0.1\nq9,,1\n")
    assert (status, store.ids[:]) == (0, ["q1", "q1#2", "q2"])
    batch = store.read(range(3), ["score", "label"])
    np.testing.assert_array_equal(batch["score"], np.float32([0.1, 0.9, np.nan]))
    assert batch["label"].tolist() == [1, 0, -1]
    assert "1 score of traces or questions that are not there" in out
    assert "column 'score' read as scores, higher is better: hallucination below 0.5" in out
    assert "trace_id q1#2: score 0.9 -> label 0 (right)" in out


def test_import_reads_a_column_of_labels_as_labels(imported):
    """They came out inverted: 1 was taken for a score of 1, which is right."""
    _, store, _ = imported("question_id,is_hallucination\nq1,1\nq2,0\n")
    batch = store.read(range(3), ["score", "label"])
    assert batch["label"].tolist() == [1, 1, 0]
    assert batch["score"].isnan().all()
    assert store.provenance["label_rule"].startswith("labels given in column 'is_hallucination'")


def test_import_turns_scores_of_which_a_low_one_is_better(imported):
    options = ["--score-column", "ppl", "--lower-is-better", "--score-threshold", "20"]
    _, store, _ = imported("question_id,ppl\nq1,30\nq2,4\n", *options)
    assert store.read(range(3), ["label"])["label"].tolist() == [1, 1, 0]
    assert store.provenance["score_threshold"] == -20.0


@pytest.mark.parametrize(
    "text, options, message",
    [
        ("question_id,score,label\nq1,1,1\n", [], "several columns could be meant"),
        (None, ["--lower-is-better"], "says how a file of scores is read: give it with --scores"),
        # traces of a part get other ids in the whole, a score could go to another
        ("trace_id,score\nq1#2,1\n", ["--part", "1/2"], "the parts, then python -m store label"),
    ],
)
def test_import_refuses_what_could_mean_two_things(imported, text, options, message):
    status, _, error = imported(text, *options)
    assert status == 2
    assert message in error
