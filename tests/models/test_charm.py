"""CHARM: against the equations of the paper, an edge at a time."""

import numpy as np
import pytest
import torch
from plain import linear

import models.charm
from models.charm import read_edges, read_maps

NAN = float("nan")
LABELS = torch.tensor([1, 0, 1, 0, 1])
ANSWERS = [(2, 3), (1, 0), (-1, 0), (2, 0), (4, 2)]  # of traces of 5, 1, 9, 2 and 7 tokens


def mlp(part, x):
    return linear(part[2], np.maximum(linear(part[0], x), 0))


def answer_of(trace):
    """The nodes of the answer: from the last token of the prompt on."""
    start, length = int(trace["prompt_len"]), int(trace["answer_len"])
    if start < 0:
        return range(len(trace["logprob"]))
    return range(max(0, start - 1), start + length)


def plain_edges(trace, threshold):
    """(j, i) -> the attention of each head that is at least the threshold, and the marks."""
    n_tokens = len(trace["logprob"])
    maps = trace["attentions"].double().numpy().reshape(n_tokens, n_tokens, -1)
    answer = answer_of(trace)
    edges = {}
    for i in answer:
        for j in range(i):
            strong = [float(a) if a >= threshold else 0.0 for a in maps[i, j]]
            if any(a >= threshold for a in maps[i, j]):
                edges[j, i] = np.array([*strong, float(j >= answer[0]), float(j < answer[0])])
    return edges


def plain_logit(detector, trace, mean, spread):
    encoder = detector.encoder
    n_tokens = len(trace["logprob"])
    maps = trace["attentions"].double().numpy().reshape(n_tokens, n_tokens, -1)
    states = trace["hidden_states"][:, detector.layer_read].double().numpy()
    x = []
    for i in range(n_tokens):
        state = (states[i] - mean) / np.sqrt(spread + 1e-6)
        parts = [linear(encoder.node, maps[i, i]), linear(encoder.state, state)]
        x.append(linear(encoder.both, np.concatenate(parts)))
    edges = plain_edges(trace, detector.threshold)
    edges = {pair: linear(encoder.edge, values) for pair, values in edges.items()}
    for part in encoder.rounds:
        received = {i: [] for i in range(n_tokens)}
        for (j, i), edge in edges.items():
            received[i].append(mlp(part.message, np.concatenate([x[j], edge])))
        means = [np.mean(m, axis=0) if m else np.zeros(len(x[0])) for m in received.values()]
        x = [a + mlp(part.update, np.concatenate([a, b])) for a, b in zip(x, means, strict=True)]
    return linear(detector.classifier, np.mean([x[i] for i in answer_of(trace)], axis=0))[0]


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.0])
def test_the_formula(threshold, build, pack, traces, set_answer):
    """Answers of several places and lengths, one of unknown place and empty ones among them."""
    for trace, lengths in zip(traces, ANSWERS, strict=True):
        set_answer(trace, *lengths)
    detector = build("charm", charm_threshold=threshold)
    detector.prepare([pack(traces)])
    found = detector.eval()(pack(traces)).logits.detach()
    states = np.concatenate([t["hidden_states"][:, 1].double().numpy() for t in traces])
    moments = states.mean(axis=0), states.var(axis=0)
    expected = [plain_logit(detector, trace, *moments) for trace in traces]
    assert detector.layer_read == 1  # three quarters of three layers
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("block", [1, 40, 2**24])
def test_the_edges_are_those_of_loops(block, pack, traces, set_answer, monkeypatch):
    """Whatever is compared at once, in the order of the targets; the threshold is one itself."""
    monkeypatch.setattr(models.charm, "BLOCK", block)
    for trace, lengths in zip(traces, ANSWERS, strict=True):
        set_answer(trace, *lengths)
        trace["attentions"] = trace["attentions"].half()
    batch = pack(traces)
    threshold = float(traces[2]["attentions"][8 * 9 + 3, 1, 1])
    graph = read_maps(batch, batch.ragged("hidden_states").offsets, threshold)
    start, expected = 0, {}
    for trace in traces:
        edges = plain_edges(trace, threshold)
        expected |= {(start + j, start + i): one for (j, i), one in edges.items()}
        start += len(trace["logprob"])
    assert list(zip(graph.source.tolist(), graph.target.tolist(), strict=True)) == list(expected)
    torch.testing.assert_close(graph.edges.double().numpy(), np.array(list(expected.values())))
    assert (graph.edges == threshold).any()


def test_a_threshold_above_all_leaves_the_nodes(build, pack, traces):
    """No edge at all is no error."""
    batch = pack(traces)
    graph = read_maps(batch, batch.ragged("hidden_states").offsets, 1.1)
    assert len(graph.edges) == len(graph.source) == 0
    assert build("charm", charm_threshold=1.1)(batch).logits.isfinite().all()


def test_half_precision_does_not_move_the_threshold(pack, traces):
    """.05 in float16 is below .05, so such an edge is not there."""
    for trace in traces:
        trace["attentions"] = torch.full_like(trace["attentions"], 0.05).half()
    batch = pack(traces)
    offsets = batch.ragged("hidden_states").offsets
    assert len(read_maps(batch, offsets, 0.05).edges) == 0
    assert len(read_maps(batch, offsets, 0.0499).edges) > 0


def test_what_is_read(build, pack, traces, set_answer):
    """Rows of the answer, and of the prompt what a token attends to itself."""
    set_answer(traces[2], 5, 2)
    detector = build("charm").eval()
    before = detector(pack(traces)).logits
    maps = traces[2]["attentions"].view(9, 9, 3, 2)
    maps[3, :3] = 0.4  # of the prompt
    maps[8, :8] = 0.4  # behind the answer
    maps[6, 7:] = 0.4  # above the diagonal
    torch.testing.assert_close(detector(pack(traces)).logits, before)
    maps[6, 2] = 0.4
    changed = ~torch.isclose(detector(pack(traces)).logits, before)
    assert changed.tolist() == [False, False, True, False, False]


def test_nothing_to_read(build, pack, traces, set_answer):
    """Missing numbers, and an answer that is said to be where no token is, have finite logits and
    gradients."""
    set_answer(traces[0], 9, 2)
    traces[2]["attentions"][:] = NAN
    traces[4]["hidden_states"][:] = NAN
    detector = build("charm")
    outputs = detector(pack(traces))
    detector.loss(outputs, LABELS).backward()
    assert outputs.logits.isfinite().all()
    assert all(part.grad.isfinite().all() for part in detector.parameters())


def test_maps_that_are_no_squares(pack, traces):
    """The message has the numbers."""
    traces[2]["attentions"] = traces[2]["attentions"][1:]
    batch = pack(traces)
    with pytest.raises(ValueError, match=r"trace 2 .*: expected T \* T = 81 .* 9 tokens, found 80"):
        read_maps(batch, batch.ragged("hidden_states").offsets, 0.05)


@pytest.mark.parametrize("threshold", [0.05, 0.2])
def test_kept_edges_are_as_good_as_the_maps(threshold, build, pack, traces, set_answer):
    """Graphs and logits are equal bit for bit."""
    for trace, lengths in zip(traces, ANSWERS, strict=True):
        set_answer(trace, *lengths)
    batch = pack(traces)
    offsets = batch.ragged("hidden_states").offsets
    graphs = [read(batch, offsets, threshold) for read in (read_maps, read_edges)]
    assert all(map(torch.equal, *graphs))
    detectors = [build(n, charm_threshold=threshold).eval() for n in ("charm", "charm_edges")]
    assert torch.equal(*(detector(batch).logits for detector in detectors))


def test_edges_outside_the_answer_are_not_read(pack, traces, set_answer):
    """The prompt of a store may be longer than where its edges begin."""
    traces[2]["answer_len"] = torch.tensor(3)
    traces[2]["prompt_len"] = torch.tensor(4)
    batch = pack(traces)
    offsets = batch.ragged("hidden_states").offsets
    assert all(map(torch.equal, *(read(batch, offsets, 0.05) for read in (read_maps, read_edges))))


@pytest.mark.parametrize("ends", [(9, 1), (3, 3), (3, 5), (3, -1)])
def test_edges_that_end_nowhere(ends, pack, traces):
    """Positions of another trace, of a later token, or of none."""
    traces[2]["attn_edge_ends"][1] = torch.tensor(ends, dtype=torch.int32)
    batch = pack(traces)
    message = f"attn_edge_ends: expected a token .* of 9, found {ends[0]} and {ends[1]};"
    with pytest.raises(ValueError, match=message):
        read_edges(batch, batch.ragged("hidden_states").offsets, 0.05)
