"""The entropy of the first block against a whole map."""

import numpy as np
import torch

from models.attention_entropy import ATTENTION_ENTROPY, first_block


def test_the_formula(pack, traces, set_answer):
    """The mean over heads, of the answer's last token alone, even where the trace goes on."""
    trace = traces[2]
    set_answer(trace, 3, 4)
    row = trace["maps"][0, :, 6, :7]
    expected = -(row * np.log(row)).sum(1).mean()
    np.testing.assert_allclose(first_block(pack([trace])), [[[expected]]], rtol=1e-5)


def test_other_layers_and_tokens_are_not_read(pack, traces, set_answer):
    """Which is what the probe declares."""
    set_answer(traces[2], 3, 4)
    batch = pack(traces[2:3])
    before = first_block(batch)
    entropy = batch.ragged("attn_entropy").values
    entropy[:, 1:] = 9.0
    entropy[torch.arange(9) != 6] = 9.0
    assert torch.equal(first_block(batch), before)
    assert ATTENTION_ENTROPY.layers_read == (0,)
    assert ATTENTION_ENTROPY.tokens_read == "last of answer"
