"""Probes that reduce numbers of the answer's tokens: against loops over tokens and heads."""

import numpy as np
import pytest
import torch

from models import METHODS

ANSWERS = [(2, 3), (1, 0), (4, 4), (1, 1), (-1, 3)]  # of traces of 5, 1, 9, 2 and 7 tokens
LENS = ("lens_entropy", "lens_entropy_attention", "lens_entropy_mlp")


def of(*names):
    """The numbers of some columns at a token."""
    return lambda trace, t: np.concatenate([trace[one][t].double().ravel() for one in names])


def candidates(trace, t):
    return np.exp(trace["topk_logprob"][t].double().numpy())


def margin(trace, t):
    p = candidates(trace, t)
    return [p[0] - p[1] if len(p) > 1 else np.nan]


def ratio(trace, t, n_tokens):
    """Mean attention to the first tokens, as a share of it and that to the answer so far."""
    on_first = trace["maps"][:, :, t, :n_tokens].mean(axis=2)
    on_answer = trace["maps"][:, :, t, int(trace["prompt_len"]) : t + 1].mean(axis=2)
    return (on_first / (on_first + on_answer)).ravel()


def on_context(trace, t):
    """(L * H, C)"""
    return trace["maps"][:, :, t, : int(trace["context_len"])].reshape(6, -1)


def bits(trace, t):
    """The entropy of the attention to the context's tokens and the rest of it."""
    attention = on_context(trace, t)
    places = np.column_stack([attention, 1 - attention.sum(1)])
    places = np.where(np.isclose(places, 0, atol=1e-12), 1, places)
    return -(places * np.log2(places)).sum(1)


def of_likeliest(trace, t):
    """Log-probability, entropy, and the entropy of at most 50 candidates, renormalised."""
    p = candidates(trace, t)[:50]
    p = p[p > 0] / p.sum()
    return [float(trace["logprob"][t]), float(trace["entropy"][t]), -(p * np.log(p)).sum()]


def all_of_them(trace, t):
    return [*of("logprob", "entropy")(trace, t), *margin(trace, t), candidates(trace, t).sum()]


def mean(rows):
    return rows.mean(axis=0)


def first(rows):
    return rows[0]


def five_numbers(rows):
    return np.stack([rows.sum(0), rows.mean(0), rows.min(0), rows.max(0), rows[0]], axis=1)


CASES = {
    "mean_logprob": (of("logprob"), mean),
    "sum_logprob": (of("logprob"), sum),
    "min_logprob": (of("logprob"), min),
    "first_logprob": (of("logprob"), first),
    "perplexity": (of("logprob"), lambda rows: np.exp(-rows.mean(0))),
    "entropy": (of("entropy"), mean),
    "max_entropy": (of("entropy"), max),
    "margin": (margin, mean),
    "uncertainty": (all_of_them, five_numbers),
    "llm_check_logit": (
        of_likeliest,
        lambda rows: [np.exp(-rows[:, 0].mean()), rows[:, 1].max(), rows[:, 2].mean()],
    ),
    "trilens": (of(*LENS), lambda rows: np.stack([rows[0], rows[:3].mean(0), rows.mean(0)])),
    "lookback_lens": (lambda trace, t: ratio(trace, t, int(trace["prompt_len"])), mean),
    "lookback_context": (lambda trace, t: ratio(trace, t, int(trace["context_len"])), mean),
    "aggtruth_sum": (lambda trace, t: on_context(trace, t).sum(1), mean),
    "aggtruth_entropy": (bits, mean),
    "aggtruth_cosine": (of("attn_ccosine"), mean),
    "aggtruth_js": (of("attn_cjs"), mean),
}
ANY_NUMBER = [(name, k) for name in ("margin", "uncertainty", "llm_check_logit") for k in (1, 60)]


@pytest.mark.parametrize("name, n_candidates", [*((name, 4) for name in CASES), *ANY_NUMBER])
def test_features_are_those_of_loops(name, n_candidates, pack, traces, set_answer):
    """Over the answer's tokens and no others; NaN for an answer of no tokens, or of unknown place.
    A candidate of no probability adds nothing to an entropy."""
    rng = np.random.default_rng(0)
    of_token, reduce = CASES[name]
    for trace, answer in zip(traces, ANSWERS, strict=True):
        set_answer(trace, *answer)
        falling = -np.sort(5 * rng.random((len(trace["logprob"]), n_candidates)), axis=1)
        falling[::2, 2:] = -np.inf
        trace["topk_logprob"] = torch.from_numpy(falling).half()
    found = METHODS[name].features(pack(traces)).flatten(1)
    for trace, (start, n), numbers in zip(traces, ANSWERS, found, strict=True):
        if name == "uncertainty":
            assert numbers[-2:].tolist() == pytest.approx([n, float(trace["eos_logprob"])])
            numbers = numbers[:-2]
        span = range(start, start + n) if start >= 0 else []
        rows = np.array([of_token(trace, t) for t in span])
        expected = np.ravel(reduce(rows)) if len(rows) else np.nan
        np.testing.assert_allclose(numbers, expected, rtol=1e-4, atol=1e-6)


def test_without_a_prompt(pack, traces, set_answer):
    """Nothing predicted token 0, so it has no log-probability; nothing is looked back at."""
    set_answer(traces[0], 0, 5)
    batch = pack(traces)
    mean_logprob = METHODS["mean_logprob"].features(batch)[0, 0, 0]
    torch.testing.assert_close(mean_logprob, traces[0]["logprob"][1:].mean())
    assert METHODS["lookback_lens"].features(batch)[0].isnan().all()


@pytest.mark.parametrize("name", ["lookback_context", *(n for n in CASES if "aggtruth" in n)])
def test_a_trace_without_a_context_has_no_numbers(name, pack, traces):
    """Others that it is batched with do."""
    for column in ("attn_cmass", "attn_centropy", "attn_ccosine", "attn_cjs"):
        traces[0][column] *= torch.nan
    traces[0]["context_len"] *= 0
    found = METHODS[name].features(pack(traces[::2]))
    assert found[0].isnan().all()
    assert found[1:].isfinite().all()


def test_mass_rounded_above_one_stays_a_ratio(pack, traces):
    """Half precision may make the prompt's share a little more than all there is."""
    traces[0]["attn_pmass"] += 0.001
    found = METHODS["lookback_lens"].features(pack(traces[:1]))
    assert ((found >= 0) & (found <= 1)).all()


@pytest.mark.parametrize(
    "name, lacking, kept",
    [("uncertainty", "eos_logprob", slice(21)), ("trilens", "lens_entropy_mlp", slice(3))],
)
def test_columns_that_may_be_missing(name, lacking, kept, pack, traces):
    """What can be had without them is as with them; the end of an answer is NaN."""
    batch = pack(traces)
    expected = METHODS[name].features(batch)[..., kept]
    del batch.columns[lacking]
    found = METHODS[name].features(batch)
    torch.testing.assert_close(found[..., kept], expected, equal_nan=True)
    assert found[..., kept.stop :].isnan().all()


def test_the_reductions_have_names():
    """One for each alternative, so that results can say which was chosen."""
    features = torch.from_numpy(np.random.default_rng(0).random((60, 3, 4)))
    labels = (features[:, 2, 1] > 0.5).long().numpy()
    probe = METHODS["trilens"]
    fitted = probe.fit(features, labels, features, labels)
    assert probe.alternatives[fitted.alternative] == "all tokens"
    assert len(probe.alternatives) == 3


def test_majority_is_the_share_of_hallucinations_in_train():
    """A constant gets the base rate of the training labels as its probability."""
    labels = np.array([1, 1, 1, 0])
    fitted = METHODS["majority"].fit(
        torch.zeros(4, 1, 1), labels, torch.zeros(2, 1, 1), np.array([0, 1])
    )
    found = fitted.predict(torch.zeros(101, 1, 1))
    np.testing.assert_allclose(found, 0.75, atol=1e-4)
    assert len(set(found)) == 1  # bit for bit, so that it ranks nothing
