"""What holds for every detector of the registry, and what only some promise."""

from dataclasses import asdict

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.nn import global_mean_pool

from models import DETECTORS
from models.graphs import build_graphs
from models.readout import READOUTS, signed_log
from models.standardise import Standardise
from train.config import Config

LABELS = torch.tensor([1, 0, 1, 0, 0])

every_detector = pytest.mark.parametrize("name", DETECTORS)


def check_gradients(detector, outputs):
    """Of the loss they reach every weight."""
    detector.loss(outputs, LABELS).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in detector.parameters())


@every_detector
def test_one_finite_logit_per_trace_and_a_scalar_loss(name, build, pack, traces):
    """A batch of B traces gives B float32 logits, and a loss whose gradient reaches every weight;
    no column is read that is not declared."""
    detector, batch = build(name), pack(traces)
    read = (*detector.columns, *detector.targets)
    batch.columns = {column: batch.columns[column] for column in read}
    outputs = detector(batch)
    assert outputs.logits.shape == (5,)
    assert outputs.logits.dtype == torch.float32
    check_gradients(detector, outputs)


@every_detector
def test_a_batch_gives_the_logits_of_its_traces(name, build, pack, traces):
    """The logits of a trace do not depend on what it is batched with."""
    detector = build(name).eval()
    alone = torch.cat([detector(pack([trace])).logits for trace in traces])
    torch.testing.assert_close(detector(pack(traces)).logits, alone, rtol=1e-5, atol=1e-6)


@every_detector
def test_nothing_to_read(name, build, pack, traces, set_answer):
    """Empty answers, one of unknown place, and numbers that are all missing have finite logits and
    gradients."""
    set_answer(traces[0], 5, 0)
    set_answer(traces[2], -1, 0)
    traces[3]["logprob"][:] = traces[3]["entropy"][:] = float("nan")
    traces[4]["topk_logprob"][:] = float("nan")
    detector = build(name)
    outputs = detector(pack(traces))
    assert outputs.logits.isfinite().all()
    check_gradients(detector, outputs)


@every_detector
def test_the_state_is_all_there_is(name, build, pack, traces):
    """A detector with the state of a trained one gives its logits."""
    trained, other = build(name), build(name)
    trained.loss(trained(pack(traces)), LABELS).backward()
    for parameter in trained.parameters():
        parameter.data.sub_(0.1 * parameter.grad.clamp(-1, 1))
    other.load_state_dict(trained.state_dict())
    logits = [detector.eval()(pack(traces)).logits for detector in (trained, other)]
    assert torch.equal(*logits)
    assert not torch.allclose(logits[0], build(name).eval()(pack(traces)).logits)


@pytest.mark.parametrize("layer", [-1, 3])
@pytest.mark.parametrize(
    ("name", "setting"),
    [
        (name, setting)
        for name in DETECTORS
        for setting in DETECTORS[name].options
        if setting.endswith("_layer")
    ],
)
def test_a_layer_that_is_not_there(name, setting, layer, build):
    """The message names the range."""
    with pytest.raises(ValueError, match=f"{setting}: expected 0 to 2, found {layer}"):
        build(name, **{setting: layer})


@every_detector
def test_recomputing_keeps_less_and_changes_no_bit(name, build, pack, traces):
    """Loss and gradients are equal bit for bit, dropout included, and the backward pass keeps fewer
    numbers."""
    gradients, kept = {}, {}
    for recompute in (False, True):
        detector = build(name)
        detector.recompute = recompute
        numbers = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, n=numbers: n.append(t.numel()) or t, lambda t: t
        ):
            loss = detector.loss(detector(pack(traces)), LABELS)
        loss.backward()
        gradients[recompute], kept[recompute] = (
            [loss, *(p.grad for p in detector.parameters())],
            sum(numbers),
        )
    assert all(torch.equal(a, b) for a, b in zip(*gradients.values(), strict=True))
    assert kept[True] < 0.8 * kept[False]


def test_parameter_counts_at_the_field_s_sizes():
    """At d = 4096 and the usual widths they differ as published: 4.8, 1.3, 1.4 and 1.1 million of
    the first four; the others as their layers add up to."""
    shapes = {"hs_last": (32, 4096), "hidden_states": (32, 4096), "attn_mean": (32,)}
    shapes |= {"topk_logprob": (1000,), "topk_id": (1000,), "attentions": (32, 32)}
    shapes |= {"attn_edges": (32, 32), "icr": (32,)}
    settings = asdict(Config(readout="mean", aggregation="sum"))  # as the published ones
    counts = {
        name: detector.build(shapes, settings).n_parameters()
        for name, detector in DETECTORS.items()
    }
    expected = {"lstm_solo": 4.8e6, "gnn_det_lstm": 1.3e6, "gvae_lstm": 1.4e6, "saplma": 1.1e6}
    expected |= {"token_probe": 4097}
    expected |= {"drift": 12.6e6, "halunet": 1.67e6, "clap": 0.86e6, "token_sequence": 1.6e6}
    expected |= {"los_net": 0.418e6, "charm": 0.501e6, "charm_edges": 0.501e6}
    expected |= {"act_conv": 0.37e6, "act_vit": 0.36e6, "state_sequence": 0.853e6}
    expected |= {"layer_transitions": 16.8e6, "mind": 2.14e6, "icr_probe": 15_041}
    assert counts == pytest.approx(expected, rel=0.04)


def test_gvae_loss_is_the_formula(build, pack, traces):
    """BCE + 0.1 (mean squared error + kl_weight * KL), each a mean over traces and layers. Nothing
    is won by shrinking the encoder: what is rebuilt gets no gradient."""
    detector = build("gvae_lstm")
    outputs = detector(pack(traces))
    outputs = outputs._replace(pooled=outputs.pooled.detach().requires_grad_())
    bce = F.binary_cross_entropy_with_logits(outputs.logits, LABELS.float())
    mse = ((outputs.rebuilt - outputs.pooled) ** 2).mean(dim=2)  # (B, L)
    posterior = torch.distributions.Normal(outputs.mu, (0.5 * outputs.logvar).exp())
    kl = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0)).sum(
        dim=2
    )  # (B, L)
    loss = detector.loss(outputs, LABELS)
    torch.testing.assert_close(loss, bce + 0.1 * (mse + 0.01 * kl).mean())
    loss.backward()
    assert outputs.pooled.grad is None


def test_gvae_clamps_the_variance(build, pack, traces):
    """An exploding logvar stays within +-10, so neither sampling nor KL overflows."""
    detector = build("gvae_lstm")
    torch.nn.init.constant_(detector.to_logvar.bias, 1e6)
    outputs = detector(pack(traces))
    assert outputs.logvar.max() == 10
    assert detector.loss(outputs, LABELS).isfinite()


def test_evaluation_uses_the_mean_of_the_latent(build, pack, traces):
    """The variational detector samples z in training only; at evaluation z = mu."""
    detector, batch = build("gvae_lstm", dropout=0.0), pack(traces)
    detector.encoder.dropout.p = 0.0
    sampled = [detector(batch).logits for _ in range(2)]
    assert not torch.equal(*sampled)
    outputs = detector.eval()(batch)
    assert torch.equal(outputs.logits, detector.layers(outputs.mu))


graph_detectors = pytest.mark.parametrize("name", ["gnn_det_lstm", "gvae_lstm"])
every_reading = pytest.mark.parametrize("readout", READOUTS)


@graph_detectors
@every_reading
@pytest.mark.parametrize("aggregation", ["attention", "sum"])
def test_each_reading_trains_and_batches(name, readout, aggregation, build, pack, traces):
    """Gradients reach every weight, also of a single token; a batch gives its traces' logits. Only
    the answer needs to know where it is: no other column is read."""
    detector = build(name, readout=readout, aggregation=aggregation)
    extra = ("prompt_len", "answer_len") if readout == "answer" else ()
    assert detector.columns == ("hidden_states", "attn_mean", *extra)
    assert type(detector).columns_for({"readout": readout}) == detector.columns
    batch = pack(traces)
    batch.columns = {column: batch.columns[column] for column in detector.columns}
    check_gradients(detector, detector(batch))
    detector.eval()
    alone = torch.cat([detector(pack([trace])).logits for trace in traces])
    torch.testing.assert_close(detector(batch).logits, alone, rtol=1e-5, atol=1e-6)


@graph_detectors
@pytest.mark.parametrize("top_k, threshold", [(3, 0.0), (2, 0.2), (0, 0.15)])
def test_the_encoder_is_its_formula(name, top_k, threshold, build, pack, traces):
    """Edge by edge: LayerNorm(x + MLP(x + sum of share * relu(x_j + a w + b))), twice, then the
    last token's vector beside its projected state."""
    detector = build(name, top_k=top_k, attn_threshold=threshold).eval()
    trace = traces[2]
    hidden = trace["hidden_states"].float()  # (T, L, d)
    n_tokens, n_layers = hidden.shape[:2]
    scaled = hidden / hidden.abs().mean(2, keepdim=True)
    scaled = scaled.sign() * (1 + scaled.abs()).log()
    expected = []
    for layer in range(n_layers):
        x = list(detector.encoder.project(scaled[:, layer]))
        for convolve, norm in zip(
            detector.encoder.convolutions, detector.encoder.norms, strict=True
        ):
            w, b = convolve.lin.weight[:, 0], convolve.lin.bias
            y = []
            for i in range(n_tokens):
                row = trace["attn_mean"].float()[i * (i + 1) // 2 :, layer][: i + 1].tolist()
                kept = sorted(range(i + 1), key=lambda j, row=row: (-row[j], j))[: top_k or None]
                kept = [j for j in kept if row[j] >= threshold]
                total = sum(row[j] for j in kept)
                received = sum(row[j] / total * (x[j] + row[j] * w + b).relu() for j in kept)
                y.append(norm(x[i] + convolve.nn(x[i] + received)))
            x = y
        expected.append(torch.cat([x[-1], detector.skip(scaled[-1, layer])]))
    torch.testing.assert_close(
        detector.encode(pack([trace]))[0], torch.stack(expected), rtol=1e-5, atol=1e-5
    )


@graph_detectors
def test_graphs_are_standardised_by_what_is_read_of_them(name, build, pack, traces):
    """The state beside the graph by the last tokens' of its layer, those in the graph by all of a
    sample; not with sums."""
    detector = build(name, top_k=0)
    detector.prepare([pack(traces[:2]), pack(traces[2:])])
    states = [signed_log(trace["hidden_states"].float()) for trace in traces]  # (T, L, d)
    last = torch.stack([one[-1] for one in states])
    torch.testing.assert_close(detector.standardise.mean, last.mean(0))
    torch.testing.assert_close(detector.standardise.var, last.var(0, correction=0))
    nodes = torch.cat(states).flatten(0, 1)
    torch.testing.assert_close(detector.encoder.standardise.mean, nodes.mean(0))
    torch.testing.assert_close(detector.encoder.standardise.var, nodes.var(0, correction=0))
    summing = build(name, readout="mean", aggregation="sum")
    assert not any(isinstance(part, Standardise) for part in summing.modules())


@graph_detectors
def test_sums_and_means_are_the_plain_encoder(name, build, pack, traces):
    """With sums and the mean, the names and shapes of the weights, and bit for bit the vectors."""
    detector = build(name, readout="mean", aggregation="sum").eval()
    names = [key for key in detector.state_dict() if key.startswith("encoder")]
    parts = ("nn.0.weight", "nn.0.bias", "nn.2.weight", "nn.2.bias", "lin.weight", "lin.bias")
    expected = {f"encoder.{one}.{part}" for one in ("first", "second") for part in parts}
    assert set(names) - {"encoder.first.eps", "encoder.second.eps"} == expected
    assert detector.skip is None
    batch = pack(traces)
    hidden, offsets = batch.ragged("hidden_states")
    graphs = build_graphs(hidden, batch.ragged("attn_mean").values, offsets)
    edges = graphs.edge_index, graphs.edge_attr, graphs.offsets
    x = detector.encoder.second(detector.encoder.first(graphs.x, *edges).relu(), *edges)
    older = global_mean_pool(x, graphs.batch, size=graphs.n_graphs)
    assert torch.equal(detector.encode(batch), older.unflatten(0, (-1, hidden.shape[1])))


@pytest.mark.parametrize("setting", [{"readout": "first"}, {"aggregation": "max"}], ids=str)
def test_an_unknown_reading_is_refused(setting, build):
    (key,) = setting
    with pytest.raises(ValueError, match=f"{key}: expected one of .*, found"):
        build("gnn_det_lstm", **setting)
