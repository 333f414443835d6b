"""Each readout is what a plain loop over traces gives."""

import pytest
import torch

from models.readout import READOUTS, mean_by_trace_of, readout_tokens, signed_log

ANSWERS = [(2, 3), (0, 1), (-1, 4), (1, 0), (6, 1)]  # prompt_len, answer_len
LENGTHS = [5, 1, 9, 2, 7]


@pytest.fixture
def batch(traces, pack, set_answer):
    for trace, answer in zip(traces, ANSWERS, strict=True):
        set_answer(trace, *answer)
    return pack(traces)


def tokens_by_loop(readout):
    """The positions that are read of each trace."""
    found = []
    for n_tokens, (prompt_len, answer_len) in zip(LENGTHS, ANSWERS, strict=True):
        if readout.startswith("last"):
            found.append([n_tokens - 1])
        elif readout == "answer" and prompt_len >= 0 and answer_len:
            found.append(list(range(prompt_len, prompt_len + answer_len)))
        else:
            found.append(list(range(n_tokens)))
    return found


@pytest.mark.parametrize("readout", READOUTS)
def test_tokens_and_means_are_those_of_a_loop(readout, batch):
    """Prompts of unknown length and empty answers are read at all tokens by `answer`."""
    hidden, offsets = batch.ragged("hidden_states")
    tokens = readout_tokens(readout, batch, offsets)
    starts = offsets[:-1].tolist()
    expected = [
        [start + i for i in own] for start, own in zip(starts, tokens_by_loop(readout), strict=True)
    ]
    assert tokens.tolist() == [token for own in expected for token in own]
    means = torch.stack([hidden[own].float().mean(0) for own in expected])
    torch.testing.assert_close(mean_by_trace_of(hidden[tokens], tokens, offsets), means)


@pytest.mark.parametrize("readout", READOUTS)
def test_a_trace_without_tokens_reads_as_zeros(readout, batch):
    offsets = torch.tensor([0, 0, 2, 2])
    batch.columns = {name: torch.tensor([0, 1, -1]) for name in ("prompt_len", "answer_len")}
    tokens = readout_tokens(readout, batch, offsets)
    means = mean_by_trace_of(torch.ones(len(tokens), 4), tokens, offsets)
    assert means[:, 0].tolist() == [0, 1, 0]


def test_signed_log_keeps_the_others_beside_outliers():
    """Four dimensions of 4,096 that are 100 times the others end at about 5, the others near 1."""
    torch.manual_seed(0)
    x = torch.randn(50, 4096)
    x[:, :4] = 100 * x[:, :4].sign()
    scaled = signed_log(7 * x)
    torch.testing.assert_close(scaled, signed_log(x))
    assert 4 < scaled[:, :4].abs().mean() < 5.5
    assert scaled[:, 4:].std() > 0.6
