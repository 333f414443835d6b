"""What a method reads to score a trace, in bytes, and what its columns were made from."""

import pytest
from splitting import split_data

from store.cli.main import main as store_main
from train.data.requirements import reader_of
from train.fit.probes import score_probe
from train.run.detectors import also_needed, bytes_of_answers

L, D = 2, 8  # of the store: float16 states, some tokens, two answers to each question


@pytest.fixture(scope="module")
def data(store_writer, labels, tmp_path_factory):
    path = store_writer(tmp_path_factory.mktemp("costs") / "s.zarr", labels)
    assert store_main(["derive", str(path), "eigenscore"]) == 0
    return split_data(path)


def test_bytes_are_those_that_are_read(data):
    """Of states all layers, whose axis has no name, and one token; of tokens the answer's; beside
    the lengths in int32."""
    n_answer = data.store.column("answer_len")[data.splits.test].float().mean().item()
    expected = {"logreg_best": 2 * L * D, "prompt_state": 2 * L * D, "eigenscore": 4}
    expected |= {"mean_logprob": n_answer * 4 + 4 + 4, "first_logprob": 4 + 4 + 4}
    for name, n_bytes in expected.items():
        scored, _ = score_probe(name, reader_of(name, data), data)
        assert scored.facts.bytes_per_trace == pytest.approx(n_bytes), name


def test_further_generations_are_said_and_their_bytes_counted(data):
    """Of one layer of the states of both answers."""
    assert also_needed("eigenscore", data) == "2 answers a question"
    assert also_needed("lstm_solo", data) is None
    assert bytes_of_answers("eigenscore", data) == pytest.approx(2 * 2 * D)
    assert bytes_of_answers("lstm_solo", data) == 0
