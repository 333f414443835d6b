"""The probe on single tokens: its logits, its loss over labelled tokens, and what it refuses."""

import math

import numpy as np
import pytest
import torch

from models.losses import ClassificationLoss, Mixup
from models.token_probe import TokenProbe
from store import Batch, Ragged

LABELS = torch.tensor([1, 0, 1, 0, 0])


def test_a_linear_map_of_one_layer_and_the_largest_of_an_answer(build, pack, traces, set_answer):
    """Token by token, the log-odds are w x + b; a trace has the largest of its answer's tokens."""
    set_answer(traces[0], 2, 2)
    probe = build("token_probe", token_layer=1)
    torch.nn.init.normal_(probe.probe.weight)
    outputs = probe(pack(traces))
    weight = probe.probe.weight[0].detach().numpy()
    bias = probe.probe.bias.item()
    expected, largest = [], []
    for trace in traces:
        states = trace["hidden_states"].float().numpy()
        logits = [float(weight @ state[1]) + bias for state in states]
        start, n = int(trace["prompt_len"]), int(trace["answer_len"])
        expected += logits
        largest.append(max(logits[start : start + n] or logits))
    np.testing.assert_allclose(outputs.token_logits.detach(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs.logits.detach(), largest, rtol=1e-4, atol=1e-5)


def test_an_unknown_prompt_is_all_tokens(build, pack, traces, set_answer):
    """Without a known beginning, or with an empty answer, all tokens count; none gives 0."""
    set_answer(traces[0], -1, 3)
    set_answer(traces[4], 7, 0)
    probe = build("token_probe")
    torch.nn.init.normal_(probe.probe.weight)
    outputs = probe(pack(traces))
    by_trace = outputs.token_logits.split([5, 1, 9, 2, 7])
    assert outputs.logits[0] == by_trace[0].max()
    assert outputs.logits[4] == by_trace[4].max()
    empty = Batch(
        torch.arange(1),
        {
            "hidden_states": Ragged(torch.zeros(0, 3, 8), torch.tensor([0, 0])),
            "prompt_len": torch.tensor([0]),
            "answer_len": torch.tensor([0]),
        },
    )
    assert probe(empty).logits.tolist() == [0.0]


def test_the_default_layer_is_that_of_the_paper(build):
    """The one at 95% of the depth: the 31st of 32, of which the first is number 0 here."""
    assert TokenProbe(8, 32).layer_read == 30
    assert TokenProbe(8, 1).layer_read == 0
    assert build("token_probe", token_layer=0).layer_read == 0


def test_states_are_scaled_over_labelled_tokens(build, pack, traces):
    """The sample's labelled tokens have mean 0 and variance 1, however it is cut into batches; the
    logits begin at the log-odds of their labels. A number that never varies stays as it is."""
    for trace in traces:
        trace["hidden_states"][:, :, 3] = 2.0
    probe = build("token_probe", token_layer=1)
    probe.prepare(iter([pack(traces[:2]), pack(traces[2:])]))
    labels = torch.cat([trace["token_label"] for trace in traces])
    states = torch.cat([trace["hidden_states"][:, 1] for trace in traces])[labels >= 0].double()
    torch.testing.assert_close(probe.scale.mean, states.mean(dim=0).float())
    torch.testing.assert_close(
        probe.scale.var, states.var(dim=0, correction=0).float(), rtol=1e-5, atol=1e-6
    )
    assert probe.scale(torch.full((1, 8), 3.0))[0, 3] == 1.0
    rate = (labels == 1).sum() / (labels >= 0).sum()
    torch.testing.assert_close(probe(pack(traces)).logits, rate.logit().repeat(5))


def test_equal_classes_begin_at_even_odds(build, pack, traces):
    """With weights that make both classes equal the odds are even; no labels set nothing."""
    probe = build("token_probe")
    probe.criterion = ClassificationLoss(class_weights=(0.5, 3.0))
    probe.prepare([pack(traces)])
    assert probe.probe.bias.item() == 0
    for trace in traces:
        trace["token_label"] = torch.full_like(trace["token_label"], -1)
    unseen = build("token_probe")
    unseen.prepare([pack(traces)])
    assert torch.equal(unseen.scale.var, torch.ones(8))


@pytest.mark.parametrize("weights", [None, (0.5, 3.0)])
def test_the_loss_is_a_mean_over_labelled_tokens(weights, build, pack, traces):
    """Each token with a label counts the same, however long its trace is; the sum over the traces
    of a batch, divided by the labels that a trace has on average."""
    probe = build("token_probe")
    torch.nn.init.normal_(probe.probe.weight)
    probe.criterion = ClassificationLoss(class_weights=weights)
    probe.labels_per_trace = 2.5
    outputs = probe(pack(traces))
    total = 0.0
    labels = [int(label) for trace in traces for label in trace["token_label"]]
    for logit, label in zip(outputs.token_logits.tolist(), labels, strict=True):
        if label >= 0:
            p = 1 / (1 + math.exp(-logit))
            loss = -math.log(p if label else 1 - p)
            total += loss * (weights[label] if weights else 1)
    assert probe.loss(outputs, LABELS).item() == pytest.approx(total / 2.5 / 5, rel=1e-5)


def test_shares_of_a_batch_add_up(build, pack, traces):
    """The loss of a batch is the mean over its traces, so processes can share it."""
    probe = build("token_probe")
    torch.nn.init.normal_(probe.probe.weight)
    probe.labels_per_trace = 3.8
    shares = [(pack(traces[:2]), LABELS[:2]), (pack(traces[2:]), LABELS[2:])]
    parts = [probe.loss(probe(batch), labels) * len(labels) for batch, labels in shares]
    whole = probe.loss(probe(pack(traces)), LABELS)
    torch.testing.assert_close(sum(parts) / 5, whole)


def test_traces_without_labels_of_tokens_count_nothing(build, pack, traces):
    """Their loss is 0 and so is their gradient."""
    for trace in traces:
        trace["token_label"] = torch.full_like(trace["token_label"], -1)
    probe = build("token_probe")
    loss = probe.loss(probe(pack(traces)), LABELS)
    loss.backward()
    assert loss.item() == 0
    assert all((parameter.grad == 0).all() for parameter in probe.parameters())


def test_what_it_cannot_do_is_an_error(build, pack, traces):
    """Mixtures of traces, and a loss without labels."""
    probe = build("token_probe")
    batch = pack(traces)
    with pytest.raises(ValueError, match="tokens of two traces do not correspond"):
        probe(batch, Mixup.draw(5, 1.0))
    del batch.columns["token_label"]
    with pytest.raises(ValueError, match="expected column 'token_label'"):
        probe.loss(probe(batch), LABELS)
