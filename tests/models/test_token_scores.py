"""Scores of single tokens: gradients, tokens read as traces, and what baselines say of a token."""

import numpy as np
import pytest
import torch

from models import BASELINES, DETECTORS, PROBES
from models.probe import FittedProbe

every_detector = pytest.mark.parametrize("name", DETECTORS)
every_probe = pytest.mark.parametrize("name", BASELINES | PROBES)


def fitted(k, n_alternatives=1):
    rng = np.random.default_rng(k)
    areas = tuple(rng.random(n_alternatives))
    return FittedProbe(n_alternatives - 1, np.zeros(k), rng.normal(size=k), 0.3, areas)


def scores_of_probe(name, batch):
    probe = (BASELINES | PROBES)[name]
    _, n_alternatives, k = probe.features(batch).shape
    batch.columns = {one: batch.columns[one] for one in probe.columns_for_tokens()}
    return probe.token_scores(fitted(k, n_alternatives), batch)


@every_detector
def test_detectors_give_a_finite_score_per_token_or_none(name, build, pack, traces):
    """None exactly where no column is named to compute them from; those columns suffice."""
    detector = build(name).eval()
    batch = pack(traces)
    columns = detector.columns_for_tokens(detector.columns)
    batch.columns = {column: batch.columns[column] for column in columns}
    scores = detector.token_scores(batch)
    assert (scores is None) == (not columns)
    if scores is not None:
        assert scores.shape == (24,)
        assert scores.dtype == torch.float32
        assert scores.isfinite().all()
        assert not scores.requires_grad


@every_detector
def test_scores_of_a_trace_do_not_depend_on_its_batch(name, build, pack, traces):
    """Alone, or in another place of a batch, the tokens of a trace have the same scores."""
    detector = build(name).eval()
    if not detector.columns_for_tokens(detector.columns):
        pytest.skip("it scores no tokens")
    together = detector.token_scores(pack(traces)).split([5, 1, 9, 2, 7])
    order = [3, 0, 4, 2, 1]
    permuted = detector.token_scores(pack([traces[i] for i in order]))
    expected = torch.cat([together[i] for i in order])
    torch.testing.assert_close(permuted, expected, rtol=1e-3, atol=1e-5)
    for trace, scores in zip(traces, together, strict=True):
        torch.testing.assert_close(
            detector.token_scores(pack([trace])), scores, rtol=1e-3, atol=1e-5
        )


@pytest.mark.parametrize("name", ["gnn_det_lstm", "gvae_lstm"])
def test_gradient_times_input_is_the_slope(name, build, pack, traces):
    """Shrinking the state of a token by a little changes the logit by its score times that."""
    detector = build(name).eval()
    for trace in traces:
        trace["hidden_states"] = trace["hidden_states"].float()
    scores = detector.token_scores(pack(traces))
    token = 8  # of the third trace, its position 2
    step = 1e-2
    logits = []
    for factor in (1 - step, 1 + step):
        changed = [dict(trace) for trace in traces]
        states = changed[2]["hidden_states"].clone()
        states[2] *= factor
        changed[2]["hidden_states"] = states
        logits.append(detector(pack(changed)).logits[2].item())
    slope = (logits[1] - logits[0]) / (2 * step)
    assert scores[token].item() == pytest.approx(slope, rel=0.05, abs=2e-4)


@pytest.mark.parametrize("name", ["lstm_solo", "saplma"])
def test_a_detector_of_one_state_reads_each_token_s(name, build, pack, traces):
    """The score of a token is the logit of a trace that ends with it."""
    detector = build(name).eval()
    scores = detector.token_scores(pack(traces)).tolist()
    expected = [
        detector(pack([trace | {"hs_last": state}])).logits.item()
        for trace in traces
        for state in trace["hidden_states"]
    ]
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


@every_probe
def test_probes_give_a_score_per_token_or_none(name, pack, traces):
    """None exactly where no column is named to compute them from; those columns suffice."""
    probe = (BASELINES | PROBES)[name]
    scores = scores_of_probe(name, pack(traces))
    assert (scores is None) == (not probe.columns_for_tokens())
    if scores is not None:
        assert scores.shape == (24,)
        assert scores.dtype == torch.float32


def test_a_regression_on_states_reads_each_token_s(pack, traces):
    """w x + b of the chosen layer at each token."""
    probe = fitted(8, n_alternatives=3)
    scores = BASELINES["logreg_best"].token_scores(probe, pack(traces))
    states = torch.cat([trace["hidden_states"][:, 2] for trace in traces]).double().numpy()
    expected = [float(np.sum(state * probe.weight)) + probe.bias for state in states]
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_uncertain_tokens_have_high_scores(pack, traces):
    """Minus the log-probability; the entropy; minus the margin."""
    batch = pack(traces)
    logprob = torch.cat([trace["logprob"] for trace in traces])
    entropy = torch.cat([trace["entropy"] for trace in traces])
    topk = torch.cat([trace["topk_logprob"] for trace in traces]).float().exp()
    expected = {"mean_logprob": -logprob, "entropy": entropy, "margin": topk[:, 1] - topk[:, 0]}
    for name, values in expected.items():
        found = BASELINES[name].token_scores(fitted(1), batch)
        torch.testing.assert_close(found, values, equal_nan=True)
