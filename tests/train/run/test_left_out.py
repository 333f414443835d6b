"""--hold-out each: every value left out in turn, beside a run on all of them."""

import json

import numpy as np
import pytest
from runs import SMALL, call, fail, read_csv, train

FLAGS = ["--only=saplma,logreg_best", "--split=answer_len", "--hold-out=each"]


@pytest.fixture(scope="module")
def write_lengths(store_writer):
    """The function that writes a store of some lengths of answers, the shortest of 3 tokens, with
    150 traces of each; `edit(number, row)` changes rows."""

    def write(path, n_lengths, edit):
        def change(number, row):
            row["answer_len"] = 3 + number // 2 % n_lengths
            edit(number, row)

        columns = ["question_id", "label", "hs_last", "answer_len"]
        labels = np.random.default_rng(0).integers(0, 2, 150 * n_lengths)
        return store_writer(path / "s.zarr", labels, columns, change)

    return write


@pytest.fixture(scope="module")
def parts(write_lengths, tmp_path_factory):
    """A store of two lengths of answers, the labels of one turned round."""

    def turn(number, row):
        if row["answer_len"] == 4:
            row["label"] = 1 - row["label"]

    return write_lengths(tmp_path_factory.mktemp("left_out"), 2, turn)


@pytest.fixture(scope="module")
def run(parts, tmp_path_factory):
    out = tmp_path_factory.mktemp("left_out") / "out"
    return out, train(parts, out, *FLAGS)


def test_what_was_never_seen_is_beside_in_domain(run):
    """Signs that other values teach are wrong here, which in-domain traces put right."""
    out, results = run
    assert [one["value"] for one in results["transfer"]] == ["3", "4"]
    for one in results["transfer"]:
        found = one["methods"]["logreg_best"]
        assert found["auroc_ci"][1] < 0.4
        assert found["in_domain_auroc"] > found["auroc"]
        assert found["difference"] < 0
        assert one["rows_in_domain"] < one["test"]["rows"]
    n_tested = sum(one["rows_in_domain"] for one in results["transfer"])
    assert n_tested == results["split"]["test"]["rows"]
    assert "## Left out of training" in (out / "report.md").read_text()


def test_each_is_the_run_without_its_value(run, parts, tmp_path, capsys):
    """Its scores, its metrics, and its directory, which other commands read."""
    out, results = run
    alone = train(parts, tmp_path / "out", *FLAGS, "--hold-out=4")
    place = out / "split-without-4"
    assert (place / "scores.csv").read_bytes() == (tmp_path / "out" / "scores.csv").read_bytes()
    same = results["transfer"][1]["methods"]["saplma"]
    assert same["auroc"] == alone["models"]["saplma"]["test"]["auroc"]
    assert same["auroc_ci"] == alone["models"]["saplma"]["test"]["auroc_ci"]
    status, text, _ = call(capsys, "evaluate", "--run", place, "--store", parts, "--json")
    assert (status, json.loads(text)["results"][0]["rows"]) == (0, 150)


@pytest.fixture
def with_pure(write_lengths, tmp_path):
    """Make a store of three lengths of answers, of which `pure` have right answers alone."""

    def make(*pure):
        def edit(number, row):
            if row["answer_len"] in pure:
                row["label"] = 0

        return write_lengths(tmp_path, 3, edit)

    return make


def test_a_value_of_one_class_is_no_row_of_the_table(with_pure, tmp_path, capsys):
    """Which one, and of which class, is said at once and in the results; the others go on."""
    results = train(with_pure(4), tmp_path / "out", *FLAGS)
    assert [one["value"] for one in results["transfer"]] == ["3", "5"]
    line = "there is no run without answer_len '4': test would have 0 hallucinations and 150 right "
    assert any(remark.startswith(line) for remark in results["remarks"])
    assert line in " ".join(capsys.readouterr().err.split())


def test_without_a_value_of_both_classes_is_one_line(with_pure, tmp_path, capsys):
    """Those of training count as well: where all hallucinations are of one value, none is left."""
    flags = ["--store", with_pure(4, 5), "--output-dir", tmp_path / "o", *SMALL, *FLAGS]
    line = fail(capsys, *flags)
    assert "expected a value of column 'answer_len' with traces of both classes, found none" in line
    assert "without answer_len '3': train would have 0 hallucinations and" in line


def test_questions_that_training_has_are_no_test(write_lengths, tmp_path, capsys):
    """Half the questions of one value are all those of another: the figures are of the others, and
    what is missing is said."""

    def ask_again(number, row):
        if row["answer_len"] == 5:
            row["question_id"] = f"q{number // 12 * 3}"

    path = write_lengths(tmp_path, 3, ask_again)
    out = tmp_path / "out"
    results = train(path, out, *FLAGS)
    one, other = results["transfer"]
    assert (one["value"], other["value"]) == ("3", "4")
    assert (one["test"]["rows"], other["test"]["rows"]) == (74, 150)
    assert one["test"]["questions"] == 37
    lines = read_csv((out / "split-without-3" / "scores.csv").read_text()).values()
    learned, tested = (
        {line["question_id"] for line in lines if (line["split"] == "test") == is_test}
        for is_test in (False, True)
    )
    assert not learned & tested
    alone = train(path, tmp_path / "alone", *FLAGS, "--hold-out=3")
    assert one["methods"]["saplma"]["auroc"] == alone["models"]["saplma"]["test"]["auroc"]
    said = "76 labelled traces are left out of test, because training has their questions"
    assert said in alone["remarks"]
    printed = " ".join(capsys.readouterr().err.split())
    for remark in (
        f"column answer_len, 3 held out: {said}",
        "there is no run without answer_len '5': test would have 0 hallucinations and 0 right "
        "answers besides 150 traces whose questions training has",
    ):
        assert remark.removeprefix("column answer_len, 3 held out: ") in printed
        assert any(one.startswith(remark) for one in results["remarks"])
