"""CHARM: against the equations of the paper, an edge at a time."""

import numpy as np
import pytest
import torch
from plain import linear, mlp

import models.charm
from models.charm import read_edges, read_maps

ANSWERS = [(2, 3), (1, 0), (-1, 0), (2, 0), (4, 2)]  # of traces of 5, 1, 9, 2 and 7 tokens


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


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.0, 1.1])
def test_the_formula(threshold, build, pack, traces, set_answer):
    """Answers of several places and lengths, of unknown place and empty ones among them; from all
    edges to none."""
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


@pytest.fixture
def graphs(traces, pack):
    """The function that reads the graphs of the traces, by a reader and with a threshold."""

    def read(reader, threshold=0.05):
        batch = pack(traces)
        return reader(batch, batch.ragged("hidden_states").offsets, threshold)

    return read


def test_half_precision_does_not_move_the_threshold(graphs, traces):
    """.05 in float16 is below .05, so such an edge is not there."""
    for trace in traces:
        trace["attentions"] = torch.full_like(trace["attentions"], 0.05).half()
    assert len(graphs(read_maps).edges) == 0
    assert len(graphs(read_maps, 0.0499).edges) > 0


@pytest.mark.parametrize("threshold", [0.05, 0.2])
def test_kept_edges_are_as_good_as_the_maps(threshold, graphs, build, pack, traces, set_answer):
    """Graphs and logits are equal bit for bit, also of an answer behind where the edges begin."""
    for trace, lengths in zip(traces, ANSWERS, strict=True):
        set_answer(trace, *lengths)
    traces[4]["prompt_len"], traces[4]["answer_len"] = torch.tensor(5), torch.tensor(1)
    assert all(map(torch.equal, graphs(read_maps, threshold), graphs(read_edges, threshold)))
    detectors = [build(n, charm_threshold=threshold).eval() for n in ("charm", "charm_edges")]
    assert torch.equal(*(detector(pack(traces)).logits for detector in detectors))


@pytest.mark.parametrize("ends", [(9, 1), (3, 3), (3, 5), (3, -1)])
def test_edges_that_end_nowhere(ends, graphs, traces):
    """Positions of another trace, of a later token, or of none."""
    traces[2]["attn_edge_ends"][1] = torch.tensor(ends, dtype=torch.int32)
    message = f"attn_edge_ends: expected a token .* of 9, found {ends[0]} and {ends[1]};"
    with pytest.raises(ValueError, match=message):
        graphs(read_edges)


def test_maps_that_are_no_squares(graphs, traces):
    traces[2]["attentions"] = traces[2]["attentions"][1:]
    with pytest.raises(ValueError, match=r"trace 2 .*: expected T \* T = 81 .* 9 tokens, found 80"):
        graphs(read_maps)
