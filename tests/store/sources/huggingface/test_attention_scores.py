"""The ICR score against a loop over tokens, and what a pass holds of a deep model."""

import numpy as np
import pytest
import torch
from building import build_model
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax
from torch.profiler import ProfilerActivity, profile

from store.sources.huggingface.attention_scores import icr_scores, most_attended
from store.sources.huggingface.forward import run_forward

IDS = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0}


def loop_over_tokens(before, after, maps):
    """The score of each token (T,), of states (T, d) and maps (H, T, T), as the paper's steps."""
    scores = []
    for t, row in enumerate(maps.mean(0)):
        chosen = np.argsort(-row[: t + 1], kind="stable")[:20]
        chosen = chosen[row[chosen] > 0]
        change = after[t] - before[t]
        projected = [change @ before[j] / np.linalg.norm(before[j]) for j in chosen]
        shares = [
            softmax((one - np.mean(one)) / (np.std(one, ddof=1) if t else 1))
            for one in (np.array(projected), row[chosen])
        ]
        scores.append(jensenshannon(*shares) ** 2)
    return np.array(scores)


def collected(model, trace):
    """States and maps of all layers, as transformers gives them."""
    with torch.no_grad():
        out = model(torch.tensor([trace]), output_hidden_states=True, output_attentions=True)
    return (
        [one[0].double().numpy() for one in of_all]
        for of_all in (out.hidden_states, out.attentions)
    )


def causal_maps(rng, n_traces, n_heads, n_tokens):
    maps = np.exp(2 * rng.normal(size=(n_traces, n_heads, n_tokens, n_tokens)))
    maps *= np.tri(n_tokens)
    return maps / maps.sum(-1, keepdims=True)


def test_the_formula():
    """With fewer tokens than the 20 that count, and with more."""
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(2, 2, 30, 8))
    maps = causal_maps(rng, 2, 3, 30)
    states, following, attention = map(torch.Tensor, (before, after, maps))
    found = icr_scores(states, following, most_attended(attention))
    expected = [loop_over_tokens(*one) for one in zip(before, after, maps, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (found[:, 0] == 0).all()


def test_a_layer_that_adds_what_it_attends_to_has_a_score_of_0():
    """Projections in the order and the spread of the attention; of the opposite it is large."""
    n_tokens = 6
    before = torch.eye(n_tokens)[None]
    maps = torch.from_numpy(causal_maps(np.random.default_rng(1), 1, 1, n_tokens)).float()
    with_it, against_it = (
        icr_scores(before, before + sign * maps[:, 0], most_attended(maps)) for sign in (1, -1)
    )
    torch.testing.assert_close(with_it, torch.zeros(1, n_tokens), atol=1e-5, rtol=0)
    assert (against_it[:, 1:] > 0.1).all()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_column_is_that_of_the_states_and_maps_of_transformers(kind):
    """Of each kept layer, whatever the padding, prompt and answer alike; NaN at the embedding."""
    model = build_model(kind, **IDS)
    traces = [[1, 5, 9, 3, 20, 7, 8], [1, 6, 2]]
    rows = run_forward(model, traces, [4, 1], [0, 1, 3], 5, ["icr"])
    for row, trace in zip(rows, traces, strict=True):
        states, maps = collected(model, trace)
        assert row["icr"].shape == (len(trace), 3)
        assert row["icr"].dtype == np.float32
        assert np.isnan(row["icr"][:, 0]).all()
        for number, layer in ((1, 1), (2, 3)):
            expected = loop_over_tokens(states[layer - 1], states[layer], maps[layer - 1])
            np.testing.assert_allclose(row["icr"][:, number], expected, atol=1e-4)


def test_tokens_outside_a_sliding_window_do_not_count():
    """Alone or padded in a batch, a trace has the score of the tokens in its window."""
    model = build_model("mistral", sliding_window=8, **IDS)
    traces = [[1, *range(4, 34)], [1, *range(4, 39), *range(4, 14)]]
    together = run_forward(model, traces, [4, 4], [1, 2], 5, ["icr"])
    for row, trace in zip(together, traces, strict=True):
        (alone,) = run_forward(model, [trace], [4], [1, 2], 5, ["icr"])
        np.testing.assert_allclose(row["icr"], alone["icr"], atol=1e-4)
        states, maps = collected(model, trace)
        for layer in (1, 2):
            expected = loop_over_tokens(states[layer - 1], states[layer], maps[layer - 1])
            np.testing.assert_allclose(row["icr"][:, layer - 1], expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_the_layers_that_are_not_kept_take_no_memory(kind):
    """The largest number of bytes in tensors is that of a shallow model, to the byte."""
    columns = ["hidden_states", "icr", "attn_mean", "attn_cmass"]
    peaks = [peak_of_pass(build_model(kind, num_hidden_layers=n, **IDS), columns) for n in (4, 12)]
    assert peaks[0] == peaks[1]


def peak_of_pass(model, columns):
    """Bytes that a pass that keeps the third layer allocates, less what it has freed, at most."""
    traces = [[1, 5, 9, 3] * 8] * 4
    asked = (model, traces, [4] * 4, [3], 5, columns, [(0, 2)] * 4)
    run_forward(*asked)  # a model's modules are looked up once
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        run_forward(*asked)
    events = seen.profiler.kineto_results.events()
    held = np.cumsum([event.nbytes() for event in events if event.name() == "[memory]"])
    return int(held.max())
