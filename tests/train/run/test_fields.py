"""A store of two data sets whose records know more: filtered, held out, and in strata."""

import json

import numpy as np
import pytest
from runs import train

from store import TraceStore
from store.cli.main import main

N = 240  # of each data set
LANGUAGES = ("en", "de", "xx")


def record(rng, dataset, i):
    label = int(rng.integers(0, 2))
    states = rng.normal(size=(2, 4)) + 3 * label
    own = {"title": f"T{i % 7}"} if dataset == "squad" else {"turn": i % 5}
    return own | {
        "id": f"{dataset}-{i}",
        "question": f"What is {dataset} {i}?",
        "answer": f"{'I think it' if label else 'It'} is {rng.integers(100, 9999)}.",
        "hs": states.tolist(),
        "label": label,
        "dataset": dataset,
        "language": LANGUAGES[i % 3],
        "hops": i % 4,
        "split": "test" if i % 5 == 0 else "train",
    }


@pytest.fixture(scope="module")
def store_path(tmp_path_factory):
    """Of each data set, imported from its file: they know other things, and are merged."""
    folder = tmp_path_factory.mktemp("fields")
    rng = np.random.default_rng(0)
    for dataset in ("squad", "coqa"):
        records = [record(rng, dataset, i) for i in range(N)]
        text = "".join(json.dumps(one) + "\n" for one in records)
        (folder / f"{dataset}.jsonl").write_text(text)
        store = str(folder / f"{dataset}.zarr")
        mapped = "question_id=id,hs_last=hs,label=label,question=question,answer=answer"
        assert main(["import", store, str(folder / f"{dataset}.jsonl"), "--map", mapped]) == 0
    out = folder / "both.zarr"
    stores = [str(folder / f"{dataset}.zarr") for dataset in ("squad", "coqa")]
    assert main(["merge", str(out), *stores]) == 0
    return out


def test_a_data_set_is_held_out_of_what_a_filter_means(store_path, tmp_path):
    """With AUROC within the values of another field; the wording tells, which is said first."""
    flags = ["--where", "language in ('en', 'de') and hops < 3", "--split=dataset"]
    out = tmp_path / "run"
    models = "--only=saplma,logreg_pca,logreg_first,question_only,answer_text,metadata"
    results = train(store_path, out, *flags, "--hold-out=coqa", "--strata=hops", models)
    store = TraceStore.open(store_path)
    meant = store.where("language in ('en', 'de') and hops < 3")
    split = results["split"]
    tested = store.where("dataset = 'coqa' and language != 'xx' and hops < 3")
    assert split["test"]["rows"] == len(tested)
    assert sum(split[name]["rows"] for name in ("train", "val", "test")) == len(meant)
    assert split["outside"] == len(store) - len(meant)
    assert split["by"] == "column dataset, coqa held out"
    assert results["strata"]["by"] == "values of hops"
    assert results["strata"]["strata"] == 3
    assert results["models"]["saplma"]["test"]["auroc"] > 0.9
    report = (out / "report.md").read_text()
    assert "values of hops" in report
    verdict = report.partition("## Verdict")[2].strip()
    assert verdict.startswith(
        "This data cannot show what a detector knows of answers beyond their text: answer_text,"
    )
    assert results["verdict"]["control"]["rival"] == "answer_text"
    assert results["baselines"]["metadata"]["test"]["auroc"] < 0.7
    assert "in no split of column dataset, coqa held out and --where, and left out" in report


def test_every_data_set_in_turn_and_the_official_split(store_path, tmp_path):
    """Values that the filter leaves out are none to hold out."""
    flags = ["--only=logreg_pca", "--where", "language != 'xx'"]
    results = train(store_path, tmp_path / "each", "--split=language", "--hold-out=each", *flags)
    assert [one["value"] for one in results["transfer"]] == ["de", "en"]
    official = train(store_path, tmp_path / "official", "--split=split", "--only=logreg_pca")
    assert official["split"]["test"]["rows"] == 2 * N // 5
    assert official["split"]["by"] == "column split, val drawn from its train"
