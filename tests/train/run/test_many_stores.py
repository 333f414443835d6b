"""Several stores as one, and stores that grow, in training: the rows, the splits, the results."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from loops import Linear
from runs import SMALL, call, predict, read_csv
from small import store_columns
from splitting import split_data

from store import Column, Schema, StoreWriter, TraceStore
from store.read.joined.joined_store import open_joined
from store.view import runs as view_runs
from train.commands.main import main
from train.config import Config
from train.data.splits import read_splits
from train.errors import DataError
from train.files import read_json
from train.fit.loop import Hooks, fit
from train.run.trainer import TrainingHooks, joined_warning

QUICK = ["--only=lstm_solo,saplma,mean_logprob"]
FOLLOW = {"follow": True, "schedule": "constant"}


def copy(path, source, rows, change=None, columns=None):
    """Some traces of a store as another one; `change(row)` edits them."""
    schema = Schema(columns or source.schema.columns)
    with StoreWriter.create(path, schema, source.provenance) as writer:
        append(writer, source, rows, change)
    return path


def append(writer, source, rows, change=None):
    for trace in source[np.asarray(rows)]:
        row = {name: trace[name] for name in writer.schema.columns if name in source.schema.columns}
        writer.append(trace.id, row | (change(row) if change else {}))


@pytest.fixture(scope="module")
def source(store_path):
    return TraceStore.open(store_path)


@pytest.fixture(scope="module")
def parts(tmp_path_factory, source):
    """The traces of the small store in two, cut within a question."""
    folder = tmp_path_factory.mktemp("parts")
    return [
        copy(folder / "squad.zarr", source, range(121)),
        copy(folder / "nq.zarr", source, range(121, 200)),
    ]


def train_on(stores, out, *flags):
    argv = ["--store", *map(str, stores), "--output-dir", str(out), *SMALL, *QUICK, *flags]
    assert main(argv) == 0
    return read_json(out / "results.json")


def test_several_stores_give_the_results_of_one(parts, source, tmp_path, capsys):
    one = train_on([source.path], tmp_path / "one")
    two = train_on(parts, tmp_path / "two")
    assert (tmp_path / "one/scores.csv").read_bytes() == (tmp_path / "two/scores.csv").read_bytes()
    for name in ("lstm_solo", "saplma"):
        assert one["models"][name]["test"] == two["models"][name]["test"]
    assert two["store"]["path"] == f"{parts[0]} + {parts[1]}"
    assert two["store"]["uuids"] == [TraceStore.open(path).uuid for path in parts]
    assert two["config"]["store"] == list(map(str, parts))
    assert "squad.zarr + nq.zarr" in (tmp_path / "two/report.md").read_text()

    both = ["predict", "--run", tmp_path / "two", "--force-cpu", "--store", *parts]
    status, out, _ = call(capsys, *both)
    assert status == 0
    _, whole, _ = call(capsys, *predict(tmp_path / "one", source.path))
    assert read_csv(out) == read_csv(whole)
    status, out, _ = call(capsys, "evaluate", "--run", tmp_path / "two", "--store", *parts)
    assert status in (0, 1)  # of no question that the run has not seen nothing is known
    assert "squad" in out


def test_weights_are_shares_of_the_training_rows(parts):
    store = open_joined(parts)
    for weights, replacement in (("squad=.5,nq=.5", False), (".2,.8", True)):
        data = split_data(store, weights=weights, replacement=replacement)
        train = data.splits.train
        n_nq = int(np.sum(train >= 121))
        loader = data.loader("train", ["label"], shuffle=True)
        rows = np.concatenate([batch.rows.numpy() for batch in loader])
        assert len(rows) == data.n_visits
        assert set(rows) <= set(train.tolist())
        if not replacement:
            assert np.sum(rows >= 121) == np.sum(rows < 121) == n_nq
        else:
            assert abs(np.mean(rows >= 121) - 0.8) < 0.01
            assert len(rows) == len(train)
        in_order = [batch.rows for batch in data.loader("val", ["label"])]
        assert torch.cat(in_order).tolist() == data.splits.val.tolist()


def test_the_same_question_in_two_stores_does_not_cross_the_split(source, tmp_path):
    """It has other ids, another case and other white space in the second store; without ids a trace
    of one id in both is one question, whatever the name of the store before it."""
    columns = dict(source.schema.columns)

    def ask(name):
        def change(row):
            number = row["question_id"].removeprefix("q")
            text = f"Who wrote  book {number}?" if name == "a" else f"who wrote BOOK {number}"
            return {"question": text, "question_id": f"{name}{number}"}

        return change

    asked = {**columns, "question": Column("utf8")}
    places = [copy(tmp_path / name, source, range(200), ask(name), asked) for name in "ab"]
    splits = read_splits(open_joined(places), Config())
    assert not splits.shared_questions()
    assert_same_sides(splits)
    apart = read_splits(open_joined(places), Config(join_questions=False))
    assert len(apart.shared_questions()) == 0
    assert len(set(apart.questions)) == 2 * len(set(splits.questions))
    del columns["question_id"]
    places = [copy(tmp_path / name, source, range(200), None, columns) for name in "cd"]
    splits = read_splits(open_joined(places), Config())
    assert splits.questions[:200].tolist() == splits.questions[200:].tolist()
    assert_same_sides(splits)


def assert_same_sides(splits):
    """A trace of the second store, of 200 as the first, is where its twin is."""
    for split in ("train", "val", "test"):
        rows = splits.rows(split)
        assert (rows[rows >= 200] - 200).tolist() == rows[rows < 200].tolist()


@pytest.fixture(scope="module")
def extractions(tmp_path_factory, source):
    """The same questions answered twice, under the same ids: other labels and states."""
    folder = tmp_path_factory.mktemp("extractions")

    def again(row):
        label = row["label"] if row["label"] < 0 else 1 - row["label"]
        return {"label": label, "hs_last": -row["hs_last"], "hidden_states": -row["hidden_states"]}

    return [
        copy(folder / "first.zarr", source, range(200)),
        copy(folder / "second.zarr", source, range(200), again),
    ]


@pytest.fixture(scope="module")
def run_of_both(extractions, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "both"
    train_on(extractions, out)
    return out


def called(store, ids):
    return [f"{store}/{trace_id}" for trace_id in ids]


def test_two_extractions_of_the_same_questions_are_one_store(run_of_both, extractions, source):
    """A question is on one side of the split, whichever store asks it; its id is as it was."""
    lines = read_csv((run_of_both / "scores.csv").read_text())
    labelled = [trace.id for trace in source if trace["label"] >= 0]
    assert set(lines) == {*called("first", labelled), *called("second", labelled)}
    for trace_id in labelled:
        first, second = (lines[f"{store}/{trace_id}"] for store in ("first", "second"))
        assert first["question_id"] == second["question_id"] == source[trace_id]["question_id"]
        assert first["split"] == second["split"]
        assert first["label"] != second["label"]
    results = read_json(run_of_both / "results.json")
    prefixes = {f"{path.stem}/": TraceStore.open(path).uuid for path in extractions}
    assert results["store"]["id_prefixes"] == prefixes
    assert results["store"]["uuids"] == list(prefixes.values())
    (remark,) = [one for one in results["remarks"] if "trace ids in common" in one]
    assert "first/..., second/..." in remark
    text = (run_of_both / "report.md").read_text() + (run_of_both / "report.html").read_text()
    for path in extractions:  # how to open a trace of it
        assert f"{path.stem}/t" in text
        assert f"view {path} --run {run_of_both} --trace=t" in text
    assert "--trace=first" not in text


def test_predict_and_evaluate_with_ids_in_common(run_of_both, extractions, source, capsys):
    both = ["predict", "--run", run_of_both, "--force-cpu", "--store", *extractions]
    status, out, _ = call(capsys, *both)
    assert status == 0
    ids = list(source.ids)
    lines = read_csv(out)
    assert list(lines) == called("first", ids) + called("second", ids)
    written = read_csv((run_of_both / "scores.csv").read_text())
    for path in extractions:
        _, alone, _ = call(capsys, *predict(run_of_both, path))
        for trace_id, line in read_csv(alone).items():
            joined = lines[f"{path.stem}/{trace_id}"]
            scores = {"lstm_solo": line.pop("lstm_solo"), "saplma": line.pop("saplma")}
            for name, score in scores.items():  # a batch of other traces may round differently
                assert float(joined.pop(name)) == pytest.approx(float(score), rel=1e-5)
            assert joined == line | {"trace_id": joined["trace_id"]}
            assert line["split"] == written.get(joined["trace_id"], line)["split"]
    argv = ["evaluate", "--run", run_of_both, "--store", *extractions, "--json"]
    status, out, _ = call(capsys, *argv)
    n_test = sum(line["split"] == "test" for line in written.values()) // 2
    assert status == 0
    assert [one["rows"] for one in json.loads(out)["results"]] == [n_test, n_test]
    status, out, _ = call(capsys, *both, "--tokens", "--models=saplma")
    assert status == 0
    assert [json.loads(line)["trace_id"] for line in out.splitlines()] == list(lines)


def test_each_store_is_shown_with_the_scores_of_its_own_traces(run_of_both, extractions):
    lines = read_csv((run_of_both / "scores.csv").read_text())
    run = view_runs.read_run(run_of_both, "both")
    for path in extractions:
        store = TraceStore.open(path)
        scores, _ = view_runs.join_runs(store, [run])
        wanted = [lines.get(f"{path.stem}/{one}", {}).get("saplma") or "nan" for one in store.ids]
        found = scores["score_saplma"]
        np.testing.assert_array_equal(found, np.array(wanted, np.float32))
        assert np.isfinite(found).any()
    stores = list(map(TraceStore.open, extractions))
    view_runs.check_run(run_of_both, run, stores)


class Seeing(Linear):
    """It keeps the rows that it was trained on, epoch by epoch."""

    def __init__(self):
        super().__init__(8)
        self.seen = [[]]

    def encode(self, batch):
        if self.training:
            self.seen[-1] += batch.rows.tolist()
        return super().encode(batch)


@pytest.mark.parametrize("is_joined", [False, True])
def test_each_epoch_has_the_training_traces_that_are_committed_then(
    source, parts, tmp_path, is_joined
):
    path = copy(tmp_path / "grows.zarr", source, range(121 if is_joined else 0, 140))
    store = open_joined([parts[0], path]) if is_joined else TraceStore.open(path)
    data = split_data(store, **FOLLOW, epochs=3, lr=0.05, patience=9)
    detector = Seeing()
    # of the joined store the last one is copied from
    first = 121 if is_joined else 0

    class Grow(Hooks):
        """After each epoch some traces are appended."""

        def on_epoch(self, epoch):
            detector.seen.append([])
            n = first + len(TraceStore.open(path))
            with StoreWriter.open(path) as writer:
                append(writer, source, range(n, min(n + 20, 200)))

    training = fit(Fabric(accelerator="cpu", devices=1), detector, data, Grow())
    whole = read_splits(source, data.config)
    held = np.isin(whole.questions, whole.questions[np.r_[data.splits.val, data.splits.test]])
    for n, seen in zip((140, 160, 180), detector.seen, strict=False):
        train = whole.train[(whole.train < n) & ~held[whole.train]]
        assert sorted(seen) == train.tolist()
    assert training.step == sum(-(-len(seen) // 32) for seen in detector.seen)
    assert training.data.splits.val.tolist() == data.splits.val.tolist()


def test_the_split_of_the_run_stays(source, tmp_path):
    """A question of val or test stays there, also if a new trace of it would draw it to train; a
    training has a seed of its own, which draws nothing of the split. Only the last store grows."""
    path = copy(tmp_path / "grows.zarr", source, range(100))
    data = split_data(path, **FOLLOW)
    asked = [source[int(row)]["question_id"] for row in data.splits.test]
    with StoreWriter.open(path) as writer:
        append(writer, source, range(100, 110), lambda row: {"question_id": asked[0], "label": 1})
    now = data.with_new_rows()
    assert len(now.store) == 110
    assert now.splits.test.tolist() == data.splits.test.tolist()
    assert now.splits.train.tolist() == data.splits.train.tolist()
    with StoreWriter.open(path) as writer:
        append(writer, source, range(110, 140))
    whole = data.with_new_rows().splits.train.tolist()
    assert set(data.splits.train.tolist()) < set(whole)
    for seed in (1, 2):
        assert data.with_settings(seed=seed).with_new_rows().splits.train.tolist() == whole
    second = copy(tmp_path / "b", source, range(140, 170))
    data = split_data(open_joined([path, second]), **FOLLOW)
    with StoreWriter.open(path) as writer:
        append(writer, source, range(170, 180))
    with pytest.raises(DataError, match="only the last of several stores"):
        data.with_new_rows()


def test_a_trained_question_that_turns_out_to_be_one_of_test_is_said(tmp_path):
    """A new trace has the id of one and the text of the other; neither is trained on any more."""
    path = tmp_path / "grows.zarr"
    columns = {
        "question_id": ("utf8", [f"q{i}" for i in range(100)]),
        "question": ("utf8", [f"number {i}?" for i in range(100)]),
        "label": ("int8", [0, 0, 1, 1] * 25),
    }
    data = split_data(store_columns(path, columns), **FOLLOW)
    begun = data.splits
    learned, tested = int(begun.train[5]), int(begun.test[2])
    with StoreWriter.open(path) as writer:
        row = {"question_id": f"q{learned}", "question": f"number {tested}?", "label": 1}
        writer.append("new", row)
    now = data.with_new_rows().splits
    assert not {learned, 100} & {*now.train.tolist()}
    ever = replace(now, train=np.union1d(begun.train, now.train))
    said = joined_warning(begun, ever)
    first = f"q{min(learned, tested)}"
    assert said.startswith("warning: 1 question of val or test was trained on before new traces")
    assert said.endswith(f"({first!r})")
    assert joined_warning(begun, now) is None


def test_a_store_is_followed_while_it_is_built(source, tmp_path, monkeypatch, capsys):
    """It is finished, and has another name, in the middle of the training.

    What was trained on by then is known as such, in the store and in another one.
    """
    path, partial = tmp_path / "new.zarr", tmp_path / "new.zarr.partial"
    writer = StoreWriter.create(partial, Schema(source.schema.columns), source.provenance)
    append(writer, source, range(100))
    writer.commit()
    on_epoch = TrainingHooks.on_epoch

    def build(hooks, epoch):
        on_epoch(hooks, epoch)
        n = len(writer)
        if n < 200:
            append(writer, source, range(n, n + 20))
            writer.commit()
        elif partial.exists():
            writer.close()
            partial.rename(path)

    monkeypatch.setattr(TrainingHooks, "on_epoch", build)
    flags = ["--follow", "--schedule=constant", "--epochs=9", "--patience=9"]
    results = train_on([path], tmp_path / "run", *flags)
    assert results["store"]["path"] == str(path)
    assert results["store"]["rows"] == 100
    (run,) = results["models"]["lstm_solo"]["runs"]
    n_first = results["split"]["train"]["rows"]
    assert n_first < run["last_rows"] < 200
    assert len(TraceStore.open(path)) == 200
    is_labelled = np.asarray(source.column("label")) >= 0
    for store in (path, source.path):
        _, out, _ = call(capsys, *predict(tmp_path / "run", store, "--models=lstm_solo"))
        splits = [line["split"] for line in read_csv(out).values()]
        n_trained = np.sum(is_labelled & (np.array(splits) == "train"))
        assert run["last_rows"] <= n_trained
    argv = ["evaluate", "--run", tmp_path / "run", "--store", source.path, "--json"]
    _, out, _ = call(capsys, *argv, "--force-cpu")
    assert json.loads(out)["results"][0]["rows"] <= is_labelled.sum() - n_trained
