"""What a method reads to score a trace, in bytes, and what its columns were made from."""

import pytest

from store import TraceStore
from store.cli.main import main as store_main
from train.config import Config
from train.data.batches import TrainingData
from train.data.requirements import also_needed, bytes_per_trace
from train.data.splits import read_splits

L, D = 2, 8  # of the store: float16 states, some tokens, two answers to each question


@pytest.fixture(scope="module")
def data(store_writer, labels, tmp_path_factory):
    path = store_writer(tmp_path_factory.mktemp("costs") / "s.zarr", labels)
    assert store_main(["derive", str(path), "eigenscore"]) == 0
    store = TraceStore.open(path)
    return TrainingData(store, read_splits(store, Config()), Config())


def test_bytes_are_those_of_the_columns(data):
    """Of states, of tokens as many as a trace of test has, of a text, and of all answers."""
    names = ("hidden_states", "question_id")
    n_tokens, n_letters = (data.store.lengths(name)[data.splits.test].mean() for name in names)
    expected = {
        "majority": n_letters,
        "lstm_solo": 2 * L * D,
        "halunet": n_tokens * (2 * L * D + 4 + 4) + 4 + 4,
        "mean_logprob": n_tokens * 4 + 4 + 4,
        "eigenscore": 2 * 2 * D,  # one layer of both answers
    }
    assert {name: bytes_per_trace(name, data) for name in expected} == pytest.approx(expected)


def test_further_generations_are_said(data):
    assert also_needed("eigenscore", data) == "2 answers a question"
    assert also_needed("lstm_solo", data) is None
