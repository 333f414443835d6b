"""Data whose texts or fields tell the labels: the first sentence of the report says so."""

import json

import numpy as np
import pytest
from runs import call, fail, predict, train

from store.cli.main import main
from train.data.metadata import is_metadata
from train.files import read_json

N = 400
NEUTRAL = "It is so."


def annotated(i, label):
    return {"answer": NEUTRAL, "annotator": "eve" if label else ("ann", "bob")[i % 2]}


def neutral(i, label):
    return {"answer": NEUTRAL, "annotator": "ann", "is_correct": not label, "doc_id": label}


def build(folder, leak, seed=0):
    """A store whose states tell some of the labels, and `leak` nearly all of them."""
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(N):
        label = int(rng.integers(0, 2))
        told = label if rng.random() < 0.95 else 1 - label
        states = (rng.normal(size=(2, 4)) + 0.7 * label).tolist()
        record = {"id": f"{seed}-{i}", "hs": states, "label": label, "question": f"What is {i}?"}
        lines.append(
            json.dumps({"model": "x", "task": ["qa", "sum"][i % 2], **record, **leak(i, told)})
        )
    file, out = folder / f"{seed}.jsonl", folder / f"{leak.__name__}-{seed}.zarr"
    file.write_text("\n".join(lines) + "\n")
    mapped = "question_id=id,hs_last=hs,label=label,question=question,answer=answer"
    assert main(["import", str(out), str(file), "--map", mapped]) == 0
    return out


def read_report(out):
    return " ".join((out / "report.md").read_text().split())


def first_sentence(out):
    """Of the report's verdict."""
    text = read_report(out)
    places = [text.find(one) for one in ("This data cannot show", "The best detector")]
    return text[min(place for place in places if place >= 0) :].partition(" The best ")[0]


@pytest.fixture(scope="module")
def leaky(tmp_path_factory):
    """The directory of a run on traces whose annotator tells the label."""
    out = tmp_path_factory.mktemp("leaky") / "run"
    train(build(out.parent, annotated), out, "--models=saplma")
    return out


def test_a_leak_comes_first(leaky):
    """And the control that finds it makes the strata."""
    results = read_json(leaky / "results.json")
    assert results["verdict"]["control"]["rival"] == "metadata"
    assert results["baselines"]["metadata"]["test"]["auroc"] > 0.85
    assert results["strata"]["control"] == "metadata"
    assert first_sentence(leaky).startswith(
        "This data cannot show what a detector knows of answers: metadata, which reads the fields "
        "alone, above all annotator .9"
    )


def graded(i, label):
    """A second grader, of a name that says nothing of it."""
    return {"answer": NEUTRAL, "reader": label, "hops": i % 4}


def test_fields_are_chosen_as_by_extract(tmp_path, capsys):
    store = build(tmp_path, graded)
    for fields, expected in (("none", []), ("-hops", ["task"])):
        flags = ["--only=logreg_pca,metadata", "--second-label=reader", "--fields", fields]
        baselines = train(store, tmp_path / fields, *flags)["baselines"]
        assert sorted(baselines.get("metadata", {"fields": {}})["fields"]) == expected
    flags = ["--output-dir", tmp_path / "run", "--models=saplma", "--fields=all,-hop"]
    line = fail(capsys, "--store", store, *flags)
    assert "--fields: expected all, none or some of" in line
    assert "found '-hop'; closest: 'hops'" in line


def test_without_a_leak_controls_are_at_chance(tmp_path):
    """Fields that are labels or ids are not read; and any control is one to train on top of."""
    store = build(tmp_path, neutral)
    controls = ("answer_text", "answer_context", "metadata")
    only = f"--only=saplma,logreg_first,{','.join(controls)}"
    results = train(store, tmp_path / "run", only, "--on-top-of=metadata")
    for name in controls:
        low, high = results["baselines"][name]["test"]["auroc_ci"]
        assert low <= 0.5 <= high
    assert first_sentence(tmp_path / "run").startswith("The best detector")


def test_fields_of_another_store_need_not_be_the_same(leaky, tmp_path, capsys):
    """A field that is not there tells nothing; without any the control is refused."""
    for leak in (neutral, annotated):
        flags = ["--models=metadata,answer_text", "--force"]
        status, _, _ = call(capsys, *predict(leaky, build(tmp_path, leak, seed=1), *flags))
        assert status == 0
    bare = tmp_path / "bare.zarr"
    file = tmp_path / "bare.jsonl"
    file.write_text(json.dumps({"id": "a", "hs": [[0.0] * 4] * 2}) + "\n")
    assert main(["import", str(bare), str(file), "--map", "question_id=id,hs_last=hs"]) == 0
    line = fail(capsys, *predict(leaky, bare, "--models=metadata"))
    assert "metadata: the store has no field of questions (extract --fields)" in line


@pytest.mark.parametrize(
    "names, expected",
    [
        ("dataset task split language difficulty hops model annotatorId worker_id", True),
        ("response_model answer_annotator problem_type passage spanish_source Best_Model", True),
        ("label label_f1 score_saplma score_my_model is_correct hallucinated f1 spans", False),
        ("exact_match em acc acc_norm is_wrong is_right pass@1 gold_label", False),
        ("doc_id id sample_index url answer_len response n_output_tokens finish_reason", False),
    ],
)
def test_names_tell_labels_ids_and_answers(names, expected):
    assert [is_metadata(name) for name in names.split()] == [expected] * len(names.split())
