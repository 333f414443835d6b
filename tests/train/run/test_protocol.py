"""What a comparison has to show: controls, strata, several splits, splits of one's own."""

import re

import numpy as np
import pytest
import small
from runs import SMALL, call, fail, predict, read_csv, read_scores, train

from store import Column
from train.files import read_json

KINDS = ("who", "what", "when", "where")
N_LAYERS, WIDTH = 2, 8
FEW = ["--only", "lstm_solo,majority,logreg_first,mean_logprob"]
LOGREG = ["--only", "saplma,logreg_best,question_only,prompt_state", "--epochs", "3"]


def write(path, knows, n=2000):
    """Traces whose label depends on the kind of question alone, or on the states alone.

    The states tell the kind of question in either case.
    """
    columns = dict.fromkeys(("question_id", "question", "kind"), "utf8") | {"label": "int8"}
    columns |= dict.fromkeys(("hs_last", "hs_prompt"), Column("float16", (N_LAYERS, WIDTH)))
    rng = np.random.default_rng(0)
    rows = {}
    for i in range(n):
        kind = int(rng.integers(len(KINDS)))
        p = (0.05, 0.35, 0.65, 0.95)[kind] if knows == "question" else 0.5
        label = int(rng.random() < p)
        prompt = rng.normal(size=(N_LAYERS, WIDTH))
        prompt[:, kind] += 4
        last = prompt + 0.3 * rng.normal(size=(N_LAYERS, WIDTH))
        if knows == "states":
            last[:, 6] += 3 * label
        row = {"question_id": f"q{i}", "question": f"{KINDS[kind]} is {i}?", "kind": KINDS[kind]}
        states = {"hs_last": last.astype(np.float16), "hs_prompt": prompt.astype(np.float16)}
        rows[f"t{i}"] = row | {"label": label} | states
    return small.make_store(path, columns, rows).path


@pytest.fixture(scope="module")
def of_questions(tmp_path_factory):
    """The directory of a run where the question alone decides."""
    path = tmp_path_factory.mktemp("questions")
    train(write(path / "s.zarr", "question"), path / "out", *LOGREG, "--strata", "kind")
    return path / "out"


def test_a_detector_of_difficulty_is_unmasked(of_questions):
    """Its AUROC is that of the question alone, and nothing remains among questions of a kind."""
    results = read_json(of_questions / "results.json")
    control = results["baselines"]["question_only"]["test"]
    for name, group in (("saplma", "models"), ("logreg_best", "baselines")):
        test = results[group][name]["test"]
        assert control["auroc"] > 0.75
        assert test["auroc"] == pytest.approx(control["auroc"], abs=0.04)
        # some 2,800 pairs of 300 test rows: a standard error of about .045
        assert test["auroc_within"] == pytest.approx(0.5, abs=0.12)
    assert results["strata"]["strata"] == len(KINDS)
    explained = results["explained"]
    assert explained["control"] == results["verdict"]["control"]["rival"]
    assert explained["rank_correlation"]["saplma"] > 0.8


def test_a_detector_that_knows_more_keeps_its_auroc(tmp_path):
    """Where the states of the answer alone decide: the controls are worth nothing, and the AUROC
    within strata is that of all pairs."""
    of_states = train(write(tmp_path / "s.zarr", "states"), tmp_path / "out", *LOGREG)
    test = of_states["models"]["saplma"]["test"]
    assert test["auroc"] > 0.9
    assert test["auroc_within"] == pytest.approx(test["auroc"], abs=0.03)
    for control in ("question_only", "prompt_state"):
        low, high = of_states["baselines"][control]["test"]["auroc_ci"]
        assert low - 0.02 < 0.5 < high + 0.02
        assert of_states["baselines"][control]["control"] is True
    assert abs(of_states["explained"]["rank_correlation"]["saplma"]) < 0.3
    hardest = of_states["verdict"]["control"]["rival"]
    assert of_states["explained"]["control"] == of_states["strata"]["control"] == hardest
    assert of_states["strata"]["by"].endswith(f"s of the score of {hardest}")


@pytest.fixture(scope="module")
def three(store_path, tmp_path_factory):
    """The directory of a run of three splits, and what its table shows."""
    path = tmp_path_factory.mktemp("splits") / "out"
    train(store_path, path, *FEW, "--splits", "3", "--seed", "4")
    return path


def test_each_split_is_the_run_with_its_seed(three, store_path, tmp_path):
    """Scores and metrics, bit for bit; shown are means, and one test a pair."""
    alone = train(store_path, tmp_path / "out", *FEW, "--seed", "5")
    results = read_json(three / "results.json")
    splits = results["splits"]
    assert splits["seeds"] == [4, 5, 6]
    areas = [one["models"]["lstm_solo"]["test"]["auroc"] for one in splits["runs"]]
    assert splits["models"]["lstm_solo"]["test"]["auroc"] == pytest.approx(np.mean(areas))
    assert results["models"] == splits["runs"][0]["models"]
    assert splits["comparisons"]
    assert all(len(one["differences"]) == 3 for one in splits["comparisons"])
    assert {path.name for path in three.glob("split-*")} == {"split-5", "split-6"}
    second = splits["runs"][1]
    assert second["split"] == alone["split"]
    for group in ("models", "baselines"):
        assert second[group].keys() == alone[group].keys()
        for name, entry in alone[group].items():
            assert second[group][name]["test"] == entry["test"]
    assert second["comparisons"] == alone["comparisons"]
    assert read_scores(three / "split-5") == read_scores(tmp_path / "out")


def test_what_is_of_the_first_split_says_so(three, store_path, capsys):
    """Tables of one split, and what compares or tests the run again."""
    text = (three / "report.md").read_text()
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")}
    for title in ("Most confident mistakes", "The run"):
        assert "the first split" in sections[title]
    assert any(title.startswith("Tests over the splits") for title in sections)
    assert not any(title.startswith("Paired tests") for title in sections)
    caption = (three / "table.tex").read_text()
    counts = r"Means over 3 splits, with \d+ to \d+ traces of \d+ to \d+ questions in test\."
    assert re.search(counts, caption)
    assert r"95\% intervals of the means by the corrected t-test over the splits." in caption
    _, out, _ = call(capsys, "compare", three, three / "split-5")
    assert "out: the first of its 3 splits" in " ".join(out.split())
    command = ["evaluate", "--store", store_path, "--models", "majority", "--run"]
    status, out, _ = call(capsys, *command, three)
    assert (status, "the run has 3 splits" in " ".join(out.split())) == (0, True)
    status, out, _ = call(capsys, *command, three / "split-5")
    assert (status, "the run has" in out) == (0, False)


def test_new_questions_are_scored_by_the_control(of_questions, tmp_path, capsys):
    """`predict` reads texts of another store."""
    new = write(tmp_path / "new.zarr", "question", n=20)
    flags = ["--models", "question_only", "--force"]
    found = read_csv(call(capsys, *predict(of_questions, new, *flags))[1])
    scores = {trace_id: float(line["question_only"]) for trace_id, line in found.items()}
    written = {line["trace_id"]: line["question_only"] for line in read_scores(of_questions)}
    # the first traces of both stores have the same questions
    for trace_id in scores:
        if written[trace_id]:
            assert scores[trace_id] == pytest.approx(float(written[trace_id]), rel=1e-12)


def test_splits_of_ones_own_are_kept_everywhere(make_store, labels, tmp_path, capsys):
    """In scores.csv, in what `predict` writes, in the report; a changed file is another run."""
    store = make_store(labels)
    words = {f"q{i}": ("train", "train", "val", "test")[i % 4] for i in range(100)}
    file = tmp_path / "splits.csv"
    lines = [f"{question},{word}" for question, word in words.items()]
    file.write_text("\n".join(["question_id,split", *lines]) + "\n")
    out = tmp_path / "out"
    flags = [*SMALL, "--only", "lstm_solo", "--split", str(file)]
    train(store, out, *flags)
    assert {line["split"] == words[line["question_id"]] for line in read_scores(out)} == {True}
    assert f"The splits are those of file {file}." in (out / "report.md").read_text()
    found = read_csv(call(capsys, *predict(out, store))[1])
    question_of = {f"t{i}": f"q{i // 2}" for i in range(200)}
    assert all(line["split"] == words[question_of[one]] for one, line in found.items())
    file.write_text(file.read_text().replace("q3,test", "q3,val"))
    command = ["--store", store, "--output-dir", out, *SMALL, *flags]
    assert "splits: digest" in fail(capsys, *command, "--resume")
