"""AggTruth against loops over whole maps."""

import numpy as np
import pytest
import torch

from models import PROBES
from models.aggtruth import AGGTRUTH_ENTROPY, AGGTRUTH_SUM

START, N = 1, 3  # the context of the longest trace here


@pytest.fixture
def trace(traces, set_answer):
    """A trace of 9 tokens, of which 4 to 6 are the answer, and its attention to the context."""
    found = traces[2]
    set_answer(found, 4, 3)
    on_context = found["maps"][..., START : START + N]  # (L, H, T, C)
    mass = on_context.sum(3)
    shares = on_context / np.where(mass, mass, 1)[..., None]
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(3)
    for name, values in (("attn_cmass", mass), ("attn_centropy", entropy)):
        found[name] = torch.from_numpy(values.transpose(2, 0, 1).copy())
    return found


def mean_over(trace, of_token):
    """Mean of a number a head over the answer's tokens, (L * H,)."""
    maps = trace["maps"]
    found = [
        [of_token(head[t, START : START + N]) for layer in maps for head in layer]
        for t in range(4, 7)
    ]
    return np.mean(found, axis=0)


def test_the_sum(trace, pack):
    """Over the context's tokens, and a mean over the answer's."""
    found = AGGTRUTH_SUM.features(pack([trace]))[0, 0]
    np.testing.assert_allclose(found, mean_over(trace, np.sum), rtol=1e-5)


def test_the_entropy(trace, pack):
    """Of the attention to the context's tokens and the rest of it, in bits."""

    def bits(attention):
        places = np.append(attention, 1 - attention.sum())
        return -(places * np.log2(places)).sum()

    found = AGGTRUTH_ENTROPY.features(pack([trace]))[0, 0]
    np.testing.assert_allclose(found, mean_over(trace, bits), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "column"), [("aggtruth_cosine", "attn_ccosine"), ("aggtruth_js", "attn_cjs")]
)
def test_columns_are_averaged_over_the_answer(name, column, trace, pack):
    """What extraction computes from the heads of a layer side by side."""
    found = PROBES[name].features(pack([trace]))[0, 0]
    np.testing.assert_allclose(found, trace[column][4:7].mean(0).flatten(), rtol=1e-5)


def test_a_trace_without_a_context_has_no_numbers(trace, pack):
    """Others that it is batched with do."""
    trace["attn_cmass"] = torch.full_like(trace["attn_cmass"], torch.nan)
    trace["attn_centropy"] = torch.full_like(trace["attn_centropy"], torch.nan)
    for probe in (AGGTRUTH_SUM, AGGTRUTH_ENTROPY):
        assert probe.features(pack([trace])).isnan().all()
