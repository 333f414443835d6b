"""Training and judging on labels of tokens, and scores of tokens of new traces."""

import json
from itertools import pairwise

import numpy as np
import pytest
from rich.console import Console
from runs import SMALL, call, fail, predict, train
from sklearn.metrics import roc_auc_score
from token_stores import write_token_store

from store import TraceStore
from train.files import read_json
from train.report.console import print_results
from train.run.results import read_results

FLAGS = ["--epochs=3", "--batch-size=16"]
ALL = "--only=token_probe,saplma,lstm_solo,mean_logprob,logreg_first,logreg_best,answer_length"
COLUMN = "score_token_token_probe"


def arguments(store, out, *flags):
    return ["--store", store, "--output-dir", out, *SMALL, *FLAGS, *(flags or [ALL])]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_token_store(tmp_path_factory.mktemp("stores") / "tokens.zarr")


@pytest.fixture(scope="module")
def run(store, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "out"
    train(store, path, *FLAGS, ALL)
    return path


@pytest.fixture(scope="module")
def results(run):
    return read_json(run / "results.json")


def no_hallucination(number, row):
    row["token_label"] = np.minimum(row["token_label"], 0)


def read_tokens(store, column):
    values, offsets = TraceStore.open(store).read(np.arange(160), columns=[column]).ragged(column)
    return values.numpy(), offsets.numpy()


def test_results_judge_tokens(results, store):
    """The probe finds the tokens and chose the layer that knows them; what cannot score a token has
    no entry; counts are those of the store."""
    probe = results["models"]["token_probe"]
    assert probe["tokens"]["auroc"] > 0.85
    assert probe["test"]["auroc"] > 0.8
    assert probe["runs"][0]["layer"] == 2
    # its score of a trace is the largest of its answer's tokens
    assert probe["tokens"]["trace_auroc"] == probe["test"]["auroc"]
    entries = results["models"] | results["baselines"]
    judged = {name for name, entry in entries.items() if "tokens" in entry}
    baselines = {"mean_logprob", "logreg_first", "logreg_best"}
    assert judged == {"token_probe", "saplma", "lstm_solo"} | baselines
    labels, _ = read_tokens(store, "token_label")
    counts = results["tokens"]
    assert 0 < counts["test"]["hallucinated"] + counts["val"]["hallucinated"] < (labels == 1).sum()


def test_reports_show_tokens(run, capsys):
    """A table on the terminal, a section in both reports."""
    print_results(read_results(run / "results.json"), Console(width=100))
    printed = capsys.readouterr().out
    assert "hallucinated in" in printed
    assert "trace AUROC" in printed
    assert "## Tokens" in (run / "report.md").read_text()
    assert ">Tokens</h2>" in (run / "report.html").read_text()


def test_scores_of_tokens_as_columns(run, store, tmp_path, capsys):
    """A ragged column for each method, NaN for no prediction; a second time replaces them; the
    largest of an answer is the logit of its trace's score."""
    path = write_token_store(tmp_path / "new.zarr")
    names = "token_probe,saplma,mean_logprob,answer_length"
    for _ in range(2):
        command = predict(run, path, "--tokens", "--to-store", "--models", names)
        status, out, lines = call(capsys, *command)
        assert (status, lines[0]) == (0, "no scores of tokens: answer_length")
    assert COLUMN in out
    assert "replaced: " in out
    scores, offsets = read_tokens(path, COLUMN)
    labels, expected_offsets = read_tokens(path, "token_label")
    np.testing.assert_array_equal(offsets, expected_offsets)
    assert roc_auc_score(labels[labels >= 0], scores[labels >= 0]) > 0.85
    surprise, _ = read_tokens(path, "score_token_mean_logprob")
    logprob, _ = read_tokens(path, "logprob")
    np.testing.assert_array_equal(surprise, -logprob)
    of_traces = TraceStore.open(path).column("score_token_probe")
    largest = [scores[a + 2 : b].max() for a, b in pairwise(offsets)]
    np.testing.assert_allclose(of_traces, 1 / (1 + np.exp(-np.array(largest))), rtol=1e-5)


def test_scores_of_tokens_as_json_lines(run, store, capsys):
    """One object for each trace, in the order of the store; what is missing is null."""
    _, out, _ = call(capsys, *predict(run, store, "--tokens", "--models=mean_logprob,saplma"))
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["trace_id"] for line in lines] == [f"t{i}" for i in range(160)]
    _, offsets = read_tokens(store, "token_label")
    for line, length in zip(lines, np.diff(offsets), strict=True):
        assert line["split"] in ("train", "val", "test")
        assert set(line["scores"]) == {"mean_logprob", "saplma"}
        assert [len(one) for one in line["token_scores"].values()] == [length, length]
        assert line["token_scores"]["mean_logprob"][0] is None


def test_new_traces_need_no_labels(run, tmp_path, capsys):
    """Scores of tokens of a store without any label; methods that score no token, without states of
    tokens, are refused before anything is written."""
    plain = write_token_store(tmp_path / "plain.zarr", 5, without=("token_label", "label"))
    flags = ("--tokens", "--models=token_probe,lstm_solo", "--to-store")
    status, _, _ = call(capsys, *predict(run, plain, *flags))
    assert status == 0
    assert COLUMN in TraceStore.open(plain).schema.columns
    path = write_token_store(tmp_path / "last.zarr", 5, without=("hidden_states", "token_label"))
    flags = ("--tokens", "--models=saplma,answer_length", "--to-store")
    line = fail(capsys, *predict(run, path, *flags))
    assert "--tokens: expected a method that scores tokens, found saplma, answer_length" in line
    assert "score_saplma" not in TraceStore.open(path).schema.columns


def test_settings_of_the_probe(store, tmp_path):
    """Weights of the classes of tokens, and metrics that are means over the seeds."""
    flags = ["--only=token_probe", "--class-weights", "--seeds=2"]
    results = train(store, tmp_path / "out", *FLAGS, *flags)
    assert results["models"]["token_probe"]["tokens"]["auroc"] > 0.7


def one_less(number, row):
    if number == 7:
        row["token_label"] = row["token_label"][:-1]


def two(number, row):
    row["token_label"][-1] = 2


@pytest.mark.parametrize(
    "made, message",
    [
        ({"without": ("token_label",)}, "token_probe: expected column 'token_label'"),
        (
            {"change": no_hallucination},
            "token_probe: column 'token_label', train split: expected hallucinated and right",
        ),
        (
            {"change": one_less, "axis": "labels"},
            "column 'token_label', trace 't7': expected ",
        ),
        ({"change": two}, "expected 1, 0 or -1, found 2"),
    ],
    ids=["no column", "one class", "another length", "another number"],
)
def test_labels_of_tokens_that_cannot_be_trained_on(made, message, tmp_path, capsys):
    """Methods that learn from labels of traces are trained all the same; why tokens are not judged
    is said."""
    path = write_token_store(tmp_path / "s.zarr", **made)
    assert message in fail(capsys, *arguments(path, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    if made == {"change": no_hallucination}:
        assert "tokens" not in train(path, tmp_path / "out", *FLAGS, "--only=saplma")
        said = "tokens are not judged: column 'token_label', train split"
        assert said in capsys.readouterr().out


@pytest.mark.slow
def test_all_methods_leave_out_what_cannot_learn(store, tmp_path):
    """With --models all a probe on tokens is trained where it can be, and left out elsewhere."""
    flags = (*FLAGS, "--models=all", "--epochs=1")
    assert "token_probe" in train(store, tmp_path / "a", *flags)["models"]
    assert "token_probe" not in train(store, tmp_path / "b", *flags, "--mixup=0.2")["models"]
