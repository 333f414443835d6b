"""The probe on single tokens: its logits, its loss over labelled tokens, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from plain import array, linear, span_of

from models.losses import ClassificationLoss, Mixup
from store import Batch, Ragged

LABELS = torch.tensor([1, 0, 1, 0, 0])


@pytest.fixture
def probe(build):
    """One of the second layer, with random weights."""
    found = build("token_probe", token_layer=1)
    torch.nn.init.normal_(found.probe.weight)
    return found


def test_a_linear_map_of_one_layer_and_the_largest_of_an_answer(probe, pack, traces, set_answer):
    """Token by token, the log-odds are w x + b; a trace has the largest of its answer's tokens.
    Where the answer's place is unknown, or it is empty, all tokens count; none gives 0."""
    for trace, answer in zip(traces, [(2, 2), (1, 0), (-1, 3), (1, 1), (7, 0)], strict=True):
        set_answer(trace, *answer)
    outputs = probe(pack(traces))
    expected, largest = [], []
    for trace in traces:
        logits = [linear(probe.probe, state[1])[0] for state in array(trace["hidden_states"])]
        expected += logits
        largest.append(max([logits[i] for i in span_of(trace)] or logits))
    np.testing.assert_allclose(outputs.token_logits.detach(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs.logits.detach(), largest, rtol=1e-4, atol=1e-5)
    columns = dict.fromkeys(("prompt_len", "answer_len"), torch.tensor([0]))
    columns["hidden_states"] = Ragged(torch.zeros(0, 3, 8), torch.tensor([0, 0]))
    assert probe(Batch(torch.arange(1), columns)).logits.tolist() == [0.0]


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
    drop_labels(traces)
    unseen = build("token_probe")
    unseen.prepare([pack(traces)])
    assert torch.equal(unseen.scale.var, torch.ones(8))


def drop_labels(traces):
    for trace in traces:
        trace["token_label"] = torch.full_like(trace["token_label"], -1)


@pytest.mark.parametrize("weights", [None, (0.5, 3.0)])
def test_the_loss_is_a_mean_over_labelled_tokens(weights, probe, pack, traces):
    """Each token with a label counts the same, however long its trace is; the sum over the traces
    of a batch, divided by the labels that a trace has on average. So processes can share it."""
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
    whole = probe.loss(outputs, LABELS)
    assert whole.item() == pytest.approx(total / 2.5 / 5, rel=1e-5)
    shares = [(pack(traces[:2]), LABELS[:2]), (pack(traces[2:]), LABELS[2:])]
    parts = [probe.loss(probe(batch), labels) * len(labels) for batch, labels in shares]
    torch.testing.assert_close(sum(parts) / 5, whole)


def test_traces_without_labels_of_tokens_count_nothing(probe, pack, traces):
    """Their loss is 0 and so is their gradient."""
    drop_labels(traces)
    loss = probe.loss(probe(pack(traces)), LABELS)
    loss.backward()
    assert loss.item() == 0
    assert all((parameter.grad == 0).all() for parameter in probe.parameters())


def test_what_it_cannot_do_is_an_error(probe, pack, traces):
    """Mixtures of traces, and a loss without labels."""
    batch = pack(traces)
    with pytest.raises(ValueError, match="tokens of two traces do not correspond"):
        probe(batch, Mixup.draw(5, 1.0))
    del batch.columns["token_label"]
    with pytest.raises(ValueError, match="expected column 'token_label'"):
        probe.loss(probe(batch), LABELS)
