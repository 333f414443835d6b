"""Scores of samples as columns of a store: values, what is missing, what is refused, kills."""

import shutil
from itertools import pairwise

import numpy as np
import pytest
import small
import torch
from classifiers import build_classifier, build_pair_tokenizer, save_classifier
from small import make_store, store_columns

from store import Column, StoreWriter, TraceStore
from store.cli.main import main
from store.sources.huggingface.nli import HuggingFaceNli
from store.transform.derive import derive_columns
from store.transform.samples import agreement
from store.transform.samples.names import NEEDS, NLI
from store.transform.samples.scores import ScoreSettings

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
ANSWERS = ["It was Paris.", "Paris. A city.", "London!", "", "Madrid was the capital.", "paris"]
COLUMNS = dict.fromkeys(("question_id", "question", "answer"), "utf8")
COLUMNS |= dict.fromkeys(("prompt_len", "answer_len"), "int32")
COLUMNS |= {
    "hs_last": Column("float16", (5, 4), axis_names=("layers", "hidden")),
    "logprob": Column("float32", axis="tokens"),
}
PLACES = [("q0", 3), ("q1", 1), ("q2", 5), ("q3", 2), ("q4", 4)]  # question, its traces


class ByLength:
    """A classifier whose answer follows from the lengths of the texts."""

    n_pairs = n_cut = 0

    def infer(self, pairs):
        lengths = [tuple(map(len, pair)) for pair in pairs]
        return [
            agreement.Inference(one % 3 == other % 3, (one + other) % 7 / 7)
            for one, other in lengths
        ]

    def describe(self):
        return {"model": "by length"}


BY_LENGTH = ScoreSettings(nli=ByLength())
SCORE = ["eigenscore"]


def make_rows():
    """Traces of five questions, of which one has a single trace; a prompt of unknown length, and an
    answer without tokens."""
    rng = np.random.default_rng(0)
    rows = []
    for question, n_traces in PLACES:
        for i in range(n_traces):
            n_tokens = int(rng.integers(4, 9))
            row = {
                "question_id": question,
                "question": f"What is {question}?",
                "answer": ANSWERS[int(rng.integers(len(ANSWERS)))],
                "prompt_len": 2,
                "answer_len": n_tokens - 2,
                "hs_last": rng.normal(size=(5, 4)).astype(np.float16),
                "logprob": -rng.random(n_tokens).astype(np.float32),
            }
            row["logprob"][0] = np.nan
            rows.append((f"{question}#{i}", row))
    rows[4][1]["prompt_len"] = -1
    rows[5][1]["answer_len"] = 0
    rows[-1][1]["prompt_len"] = 0
    return rows


def make(path, rows=None, columns=tuple(COLUMNS)):
    chosen = {id_: {name: row[name] for name in columns} for id_, row in rows or make_rows()}
    kinds = {name: COLUMNS[name] for name in columns}
    return make_store(path, kinds, chosen, {"source": "test"}).path


def make_states(path, states, numbers, provenance=None):
    """Traces of one question with states."""
    columns = {"question_id": ("utf8", ["q"] * len(numbers)), "hs_last": (states, numbers)}
    return store_columns(path, columns, provenance).path


def derive(path, names=tuple(NEEDS), settings=BY_LENGTH, **options):
    with StoreWriter.open(path) as writer:
        derive_columns(writer, names, settings=settings, **options)
    return TraceStore.open(path, check=True)


def values(store, names=tuple(NEEDS)):
    """Trace id -> its scores."""
    columns = [store.column(name).tolist() for name in names]
    return dict(zip(store.ids, zip(*columns, strict=True), strict=True))


def test_columns_are_the_scores_of_each_question(tmp_path):
    """Against plain loops over the rows; a question with one trace has no score."""
    store = derive(make(tmp_path / "s.zarr"))
    found = values(store)
    rows = make_rows()
    for question, n_traces in PLACES:
        traces = [(id_, row) for id_, row in rows if row["question_id"] == question]
        if n_traces == 1:
            assert np.isnan(found[traces[0][0]]).all()
            continue
        answers = [row["answer"] for _, row in traces]
        logs = []
        for _, row in traces:
            end = row["prompt_len"] + row["answer_len"]
            counted = row["logprob"][max(1, row["prompt_len"]) : end].astype(float)
            is_known = row["prompt_len"] >= 0 and row["answer_len"] > 0
            logs.append(counted.mean() if is_known else np.nan)
        samples = agreement.Samples(f"What is {question}?", answers)
        (clusters,) = agreement.cluster_meanings([samples], ByLength().infer)
        expected = [
            agreement.eigen_score(np.stack([row["hs_last"][2] for _, row in traces])),
            agreement.lexical_similarity(answers),
            agreement.entropy_of_likelihoods(clusters, np.array(logs)),
            agreement.entropy_of_numbers(clusters),
        ]
        for trace_id, _ in traces:
            np.testing.assert_allclose(found[trace_id][:4], expected, rtol=1e-5, atol=1e-7)
    for name in NEEDS:
        assert store.schema.columns[name] == Column("float32")


def test_scores_do_not_depend_on_the_order_of_the_rows(tmp_path):
    """Bit for bit, also where the questions' traces are apart."""
    rows = make_rows()
    expected = values(derive(make(tmp_path / "s.zarr", rows)))
    permutation = np.random.default_rng(1).permutation(len(rows))
    found = values(derive(make(tmp_path / "p.zarr", [rows[i] for i in permutation])))
    for trace_id, scores in expected.items():
        np.testing.assert_array_equal(found[trace_id], scores)


def test_many_questions_are_scored_block_by_block(tmp_path):
    """As alone; progress counts rows to their end, in each pass."""
    rng = np.random.default_rng(2)
    few, many = make_rows()[:3], []
    for i in rng.permutation(600):
        many += [(f"{i}-{id_}", row | {"question_id": f"q{i}"}) for id_, row in few]
    expected = [*values(derive(make(tmp_path / "few.zarr", few))).values()]
    seen = []
    with StoreWriter.open(make(tmp_path / "many.zarr", many)) as writer:
        derive_columns(writer, [*NEEDS], seen.append, BY_LENGTH)
    found = [*values(TraceStore.open(tmp_path / "many.zarr")).values()]
    np.testing.assert_array_equal(found, expected * 600)
    assert seen.count(1800) == 4
    assert sum(later <= earlier for earlier, later in pairwise(seen)) == 3


def test_layers_of_the_eigenscore(tmp_path):
    """The one in the middle, or as the model numbers them; the provenance says which."""
    path = make(tmp_path / "s.zarr")
    for layer, position in ((None, 2), (1, 0), (5, 4), (-1, 4), (-5, 0)):
        store = derive(path, SCORE, ScoreSettings(layer), again=True)
        states = np.stack([row["hs_last"][position] for _, row in make_rows()[:3]])
        assert store.column("eigenscore")[0] == pytest.approx(agreement.eigen_score(states))
        described = store.provenance["derived"]["eigenscore"]
        assert described == {"from": ["hs_last"], "layer": position + 1, "alpha": 0.001}
        assert store.provenance["source"] == "test"


@pytest.mark.parametrize(
    ("layers", "middle"),
    [(range(1, 33), 16), (range(33), 16), ([8, 16, 24], 16), ([0], 0), ([0, 1, 2], 1), ([1, 2], 1)],
)
def test_the_layer_in_the_middle(tmp_path, layers, middle):
    """Of 32 it is 16, with and without the embedding; of some that were kept the middle one."""
    numbers = list(layers)
    states = Column("float16", (len(numbers), 2), axis_names=("layers", "hidden"))
    ones = np.ones((2, len(numbers), 2), "f2")
    store = derive(make_states(tmp_path / "s.zarr", states, ones, {"layers": numbers}), SCORE)
    assert store.provenance["derived"]["eigenscore"]["layer"] == middle


def test_layers_without_a_name_are_counted(tmp_path):
    """From 1, as in training."""
    numbers = np.random.default_rng(0).normal(size=(3, 5, 4)).astype(np.float32)
    path = make_states(tmp_path / "s.zarr", Column("float32", (5, 4)), numbers)
    store = derive(path, SCORE, ScoreSettings(-2))
    assert store.column("eigenscore")[0] == pytest.approx(agreement.eigen_score(numbers[:, 3]))
    assert store.provenance["derived"]["eigenscore"]["layer"] == 4


def test_semantic_entropy_by_number_needs_no_likelihoods(tmp_path):
    path = make(tmp_path / "s.zarr", columns=("question_id", "question", "answer"))
    store = derive(path, ["semantic_entropy_discrete"])
    whole = derive(make(tmp_path / "w.zarr"))
    found, expected = (one.column("semantic_entropy_discrete") for one in (store, whole))
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_scores_that_are_there_stay_unless_they_are_replaced(tmp_path, capsys):
    """Replaced, they are of the new settings, and nothing else changes."""
    path = str(make(tmp_path / "s.zarr"))
    assert main(["derive", path, "eigenscore", "lexical_similarity"]) == 0
    out = capsys.readouterr().out
    assert "eigenscore of 15 traces added" in out
    assert "eigenscore: 1 trace without a value (NaN): no other trace of the question, or" in out
    assert "lexical_similarity: 1 trace without a value (NaN): no other trace of the" in out
    first = TraceStore.open(path)
    before = {name: first.column(name) for name in NEEDS if name in first.schema.columns}
    assert main(["derive", path, "eigenscore", "--layer", "-1"]) == 0
    assert "nothing to do; --replace makes scores again" in capsys.readouterr().out
    assert TraceStore.open(path).generation == first.generation
    assert main(["derive", path, "eigenscore", "--layer", "-1", "--replace"]) == 0
    second = TraceStore.open(path, check=True)
    assert second.column("eigenscore")[0] != before["eigenscore"][0]
    assert second.provenance["derived"]["eigenscore"]["layer"] == 5
    assert second.provenance["derived"]["lexical_similarity"] == {"from": ["answer"]}
    found = second.column("lexical_similarity")
    torch.testing.assert_close(found, before["lexical_similarity"], equal_nan=True)


def test_states_are_derived_for_the_eigenscore_in_one_command(tmp_path, capsys):
    """hs_last first; alone, the score says how to get it."""
    states = Column("float16", (2, 3), "tokens", ("layers", "hidden"))
    path = str(tmp_path / "s.zarr")
    numbers = np.random.default_rng(0).normal(size=(4, 3, 2, 3)).astype("f2")
    ids = ["q0", "q0", "q1", "q1"]
    columns = {"question_id": ("utf8", ids), "hidden_states": (states, numbers)}
    store_columns(path, columns)
    said = f"python -m store derive {path} hs_last adds it"
    assert said in refused(path, capsys, "eigenscore")
    assert main(["derive", path, "eigenscore,hs_last"]) == 0
    out = capsys.readouterr().out
    assert out.index("hs_last of 4 traces added") < out.index("eigenscore of 4 traces added")


def refused(path, capsys, *arguments):
    """The line on stderr of a command that fails, and changes nothing."""
    before = TraceStore.open(path).generation
    error = small.refused(capsys, "derive", path, *arguments)
    assert TraceStore.open(path).generation == before
    return error


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return str(save_classifier(tmp_path_factory.mktemp("nli") / "m"))


def test_a_classifier_is_asked_by_the_command(tmp_path, classifier, capsys):
    """As in Python; the provenance names it, and long texts are counted."""
    rows = make_rows()
    rows[0][1]["answer"] = "It was Paris. " + "Madrid " * 99
    path = make(tmp_path / "s.zarr", rows)
    assert main(["derive", str(path), *NLI, "--nli", classifier, "--batch-size", "3"]) == 0
    out = capsys.readouterr().out
    assert "semantic_entropy, semantic_entropy_discrete of 15 traces added" in out
    assert f" pairs of texts were too long for {classifier}, and were cut" in out
    assert "no other trace of the question, or no words in the answer" in out
    store = TraceStore.open(path, check=True)
    nli = HuggingFaceNli(build_classifier(), build_pair_tokenizer(), name=classifier)
    expected = derive(make(tmp_path / "e.zarr", rows), NLI, ScoreSettings(nli=nli))
    for name in NLI:
        found, right = store.column(name), expected.column(name)
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-6, equal_nan=True)
        described = store.provenance["derived"][name]["nli"]
        for key in ("model", "weights_crc32c", "tokenizer_sha256", "longest_input"):
            assert described[key] == nli.describe()[key]


def test_mistakes_are_one_line(tmp_path, capsys, golden_lines):
    """Of what is typed, and of stores that lack what a score is made from, or have something else
    in its place."""
    path = tmp_path / "s.zarr"

    def say(case):
        *typed, others = case
        shutil.rmtree(path, ignore_errors=True)
        if others:
            columns = {
                name: kind for name, kind in COLUMNS.items() if others.get(name, "") is not None
            }
            columns |= {name: Column(*kind) for name, kind in others.items() if kind}
            make_store(path, columns, {})
        else:
            make(path)
        line = refused(path, capsys, *typed).replace(str(path), "s.zarr")
        return line.partition(", found Column")[0].strip()

    golden_lines("wrong_scores.txt", say)


def test_questions_that_were_answered_once_are_refused(tmp_path, capsys):
    """Before a classifier is loaded."""
    rows = [(id_, row | {"question_id": id_}) for id_, row in make_rows()]
    path = make(tmp_path / "s.zarr", rows)
    for name in NEEDS:
        nli = ["--nli", "./nothing"] if name in NLI else []
        error = refused(path, capsys, name, *nli)
        assert "found one trace of each of 15 questions" in error
        assert "python -m store extract --num-samples N" in error


def test_what_is_done_when_a_classifier_fails_stays(tmp_path):
    """The passes before it are committed; the command goes on with the rest."""

    class Failing(ByLength):
        def infer(self, pairs):
            raise KeyboardInterrupt

    path = make(tmp_path / "s.zarr")
    with StoreWriter.open(path) as writer, pytest.raises(KeyboardInterrupt):
        derive_columns(writer, [*NEEDS], settings=ScoreSettings(nli=Failing()))
    store = TraceStore.open(path)
    made = set(store.schema.columns) - set(COLUMNS)
    assert made == {"eigenscore", "lexical_similarity"} == set(store.provenance["derived"])
    whole = values(derive(make(tmp_path / "w.zarr")))
    np.testing.assert_array_equal([*values(derive(path)).values()], [*whole.values()])
