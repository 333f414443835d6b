"""Detectors that are an MLP on some numbers of a trace: against NumPy, a trace at a time."""

import numpy as np
import pytest
import torch
from plain import mlp, standardise

ANSWERS = [(3, 2), (1, 0), (9, 0), (-1, 0), (0, 4)]  # of traces of 5, 1, 9, 2 and 7 tokens


def drift(trace):
    """Two layers of the prompt's last token; without a prompt nothing."""
    end = int(trace["prompt_len"]) - 1
    states = trace["hidden_states"][:, :2].double().numpy()
    return states[max(-1, end)].ravel() if end != -1 else np.full(16, np.nan)


def layer_transitions(trace):
    return np.diff(trace["hs_last"].double().numpy(), axis=0).ravel()


def mind(trace):
    """The mean over the layers, and the highest layer of the mean state."""
    return np.concatenate([trace["hs_last"].double().mean(0), trace["hs_mean"][2].double()])


def icr_probe(trace):
    """The mean over the answer."""
    start, n = int(trace["prompt_len"]), int(trace["answer_len"])
    answer = trace["icr"][start : start + n].double().numpy()
    return answer.mean(0) if n else np.full(3, np.nan)


def saplma(trace, layer=1):
    return trace["hs_last"][layer].double().numpy()


@pytest.mark.parametrize(
    "features, settings, scale, slope",
    [
        (drift, {}, "standard", 0.01),
        (layer_transitions, {}, "standard", 0.0),
        (mind, {}, "raw", 0.0),
        (icr_probe, {}, "standard", 0.01),
        (saplma, {}, "raw", 0.0),
        (lambda trace: saplma(trace, 0), {"saplma_layer": 0}, "raw", 0.0),
    ],
)
def test_the_formula(features, settings, scale, slope, build, pack, traces, set_answer):
    """The numbers, standardised over the traces or as they are, through the MLP."""
    for trace, answer in zip(traces, ANSWERS, strict=True):
        set_answer(trace, *answer)
    detector = build("saplma" if settings else features.__name__, **settings)
    detector.prepare([pack(traces)])
    rows = np.stack([features(trace) for trace in traces])
    if scale == "standard":
        rows = standardise(rows, np.nanmean(rows, axis=0), np.nanvar(rows, axis=0))
    found = detector.eval()(pack(traces)).logits.detach()
    expected = [mlp(detector.mlp, row, slope)[0] for row in rows]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_embedding_that_is_kept_hides_no_layer(build, pack, traces):
    """Its scores are NaN; normalised by themselves, those of the other layers still count."""
    detector = build("icr_probe", input_scale="norm").eval()
    kept = traces[2:5]
    for one in kept:
        one["icr"][:, 0] = torch.nan
    features = detector.encode(pack(kept))
    assert features.isfinite().all()
    assert (features.std(1) > 0.5).any()
