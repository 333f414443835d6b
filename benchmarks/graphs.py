"""How fast does a graph detector train on all layers in one batch, against layer by layer?

A step of gnn_det_lstm (forward, loss, backward, clipping, AdamW) with sums over complete graphs and
the mean over tokens, three ways that give the same loss and gradients, which is checked first:
layer by layer, as the code that this project replaces did, where Python makes a `Data` of each
graph and `Batch.from_data_list` a batch of each layer; PyG's `GINEConv` on all layers at once,
whose messages fill the memory; and ours. Beside them `ours, defaults`, another detector: the last
token, and the strongest edges that it depends on. Then the graph batch alone, of float32 states.
`x_layer_by_layer` and `x_from_data_list` are medians of the ratios of the turns; `peak_MB` is what
a step adds to the memory of a process of its own.

The floor of ours, one thread: 16 traces of 50 tokens and 32 layers have 650,000 edges, so the two
convolutions (d = 256, 128) have 250 million messages. Each is made, rectified and summed, then made
again, masked and multiplied: six passes through the cache, alone about 10 thousand million numbers
a second each, so 0.15 s; it takes 0.25 s. The matrix products of the two MLPs are 12.6 GFLOP and
take 0.13 s, dropout and LSTM 0.05 s.

Tried and left out, each as the ratio to layer by layer, where slices of complete graphs had 3.6:
- every block through gather and `index_add_`: 2.6 to 3.0
- square tiles of sources and targets, summed by `bmm` with a mask: 3.1 to 3.3; a tile on the
  diagonal is half waste
- blocks of 1 MB and of 2 MB, instead of 512 KB: 3.5, 3.2
- for the sum, `segment_reduce` is 5 times slower than `index_add_`; `vector_norm(ord=1)`, ReLU and
  sum in one, 9 times and more
"""

import copy
import resource
import statistics
from argparse import Namespace
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch as PygBatch
from torch_geometric.data import Data
from torch_geometric.nn import GINEConv

from benchmarks.harness import Epoch, Parser, alternate, alternate_long, in_new_process, parser, run
from benchmarks.tables import finish, median_ratio
from models.gnn import GnnDetLstm, two_linear
from models.graphs import build_graphs
from store import Batch, Ragged
from train.fit.device import cpu_arithmetic, default_threads

STEPS = ("layer by layer", "PyG's GINEConv, one batch", "ours", "ours, defaults")


def main(args: Namespace) -> None:
    """Steps, their memory, then building alone, for each number of threads."""
    results = []
    for n_threads in args.threads or [default_threads(args.hidden_size)]:
        peak_mb = {name: in_new_process(peak_of_a_step, args, n_threads, name) for name in STEPS}
        with cpu_arithmetic(n_threads):
            batch, steps = make_steps(args)
            check_equal({name: steps[name] for name in STEPS[:3]})
            contenders = {name: step.train for name, step in steps.items()}
            timed = alternate_long(contenders, args.epochs)
            results += rows("training step", n_threads, timed, "x_layer_by_layer", peak_mb)
            timed = alternate(builders(batch), 10 * args.epochs)
            results += rows("graph batch", n_threads, timed, "x_from_data_list", {})
    main_figures = ("x_layer_by_layer", "x_from_data_list")
    named_by = ("what", "contender", "threads")
    finish("graphs", args.results, results, "median_ms", main_figures, named_by)


def rows(
    what: str,
    n_threads: int,
    seconds: dict[str, list[float]],
    ratio: str,
    peak_mb: dict[str, float],
) -> list:
    """A row for each contender; ratios are to the first one."""
    anchor = next(iter(seconds.values()))
    return [
        {
            "what": what,
            "contender": name,
            "threads": n_threads,
            "ms": round(1000 * min(times), 2),
            "median_ms": round(1000 * statistics.median(times), 2),
            ratio: round(median_ratio(anchor, times), 2),
        }
        | ({"peak_MB": peak_mb[name]} if name in peak_mb else {})
        for name, times in seconds.items()
    ]


class Step:
    """A detector, its optimizer and its way to the features of a batch."""

    def __init__(self, detector: GnnDetLstm, encode: Callable[[], Tensor], n_traces: int) -> None:
        self.detector, self.encode = detector, encode
        self.labels = torch.arange(n_traces) % 2
        self.optimizer = torch.optim.AdamW(detector.parameters(), 1e-3, fused=True)

    def loss(self) -> Tensor:
        """Loss, with its gradients made."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.detector.loss(self.detector.classify(self.encode()), self.labels)
        loss.backward()
        return loss

    def train(self, number: int) -> None:
        """One step, whatever its number."""
        self.loss()
        nn.utils.clip_grad_norm_(self.detector.parameters(), 1.0)
        self.optimizer.step()


def make_steps(args: Namespace) -> tuple[Batch, dict[str, Step]]:
    """The batch, the three ways with the same weights, and the defaults."""
    torch.manual_seed(0)
    batch = random_batch(args.traces, args.tokens, args.layers, args.hidden_size)
    ours = GnnDetLstm(args.hidden_size, readout="mean", aggregation="sum")
    defaults = GnnDetLstm(args.hidden_size)
    plain = with_plain_convolutions(ours, args.hidden_size)
    layered = copy.deepcopy(plain)
    encoders = {
        STEPS[0]: (layered, lambda: layer_by_layer(layered.encoder, batch)),
        STEPS[1]: (plain, lambda: plain.encode(batch)),
        STEPS[2]: (ours, lambda: ours.encode(batch)),
        STEPS[3]: (defaults, lambda: defaults.encode(batch)),
    }
    return batch, {name: Step(*encoder, args.traces) for name, encoder in encoders.items()}


def random_batch(n_traces: int, n_tokens: int, n_layers: int, hidden_size: int) -> Batch:
    """Packed traces in float32."""
    lengths = torch.randint(n_tokens - n_tokens // 5, n_tokens + n_tokens // 5 + 1, (n_traces,))
    n_pairs = lengths * (lengths + 1) // 2
    hidden = torch.randn(int(lengths.sum()), n_layers, hidden_size)
    attn = torch.rand(int(n_pairs.sum()), n_layers) * 2 / n_tokens
    columns = {
        "hidden_states": Ragged(hidden, starts(lengths)),
        "attn_mean": Ragged(attn, starts(n_pairs)),
    }
    return Batch(torch.arange(n_traces), columns)


def starts(lengths: Tensor) -> Tensor:
    """Where each begins, and the end of the last."""
    return nn.functional.pad(lengths.cumsum(0), (1, 0))


class PlainGINEConv(GINEConv):
    """PyG's own, deaf to the offsets."""

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, offsets: Tensor | None = None
    ) -> Tensor:
        return super().forward(x, edge_index, edge_attr)


def with_plain_convolutions(detector: GnnDetLstm, hidden_size: int) -> GnnDetLstm:
    """A copy that sums messages as PyG does."""
    plain = copy.deepcopy(detector)
    plain.encoder.first = PlainGINEConv(two_linear(hidden_size, 128), edge_dim=1)
    plain.encoder.second = PlainGINEConv(two_linear(128, 128), edge_dim=1)
    plain.load_state_dict(detector.state_dict())
    return plain


def layer_by_layer(encoder: nn.Module, batch: Batch) -> Tensor:
    """(B, L, g): a list of Data, a batch and a pass through the encoder for each layer."""
    vectors = []
    for layer in range(batch["hidden_states"].values.shape[1]):
        graphs = PygBatch.from_data_list(data_of_layer(batch, layer))
        graphs.n_graphs = graphs.num_graphs
        vectors.append(encoder(graphs))
    return torch.stack(vectors, 1)


def data_of_layer(batch: Batch, layer: int) -> list[Data]:
    """A Data for each trace."""
    hidden, attn = batch["hidden_states"], batch["attn_mean"]
    found = []
    for token, pair in zip(
        pairwise(hidden.offsets.tolist()), pairwise(attn.offsets.tolist()), strict=True
    ):
        n_tokens = token[1] - token[0]
        target_source = torch.tril_indices(n_tokens, n_tokens)
        weights = attn.values[slice(*pair), layer, None]
        found.append(
            Data(
                x=hidden.values[slice(*token), layer],
                edge_index=target_source.flip(0),
                edge_attr=weights,
            )
        )
    return found


def check_equal(steps: dict[str, Step]) -> None:
    """Raise unless all give the same loss and gradients, but for the rounding of float32; without
    dropout."""
    losses, gradients = [], []
    for step in steps.values():
        step.detector.eval()
        losses.append(step.loss())
        gradients.append([parameter.grad for parameter in step.detector.parameters()])
        step.detector.train()
    for other in range(1, len(losses)):
        torch.testing.assert_close(losses[other], losses[0])
        for found, expected in zip(gradients[other], gradients[0], strict=True):
            torch.testing.assert_close(
                found, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item()
            )


def peak_of_a_step(args: Namespace, n_threads: int, name: str) -> int:
    """Megabytes that the first step adds, in a process that has just started."""
    with cpu_arithmetic(n_threads):
        step = make_steps(args)[1][name]
        before = peak_bytes()
        step.train(0)
    return round((peak_bytes() - before) / 1e6)


def peak_bytes() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def builders(batch: Batch) -> dict[str, Epoch]:
    """Ways to the graph batch of all layers."""
    hidden, attn = batch["hidden_states"], batch["attn_mean"]

    def all_data() -> list[Data]:
        return [
            data for layer in range(hidden.values.shape[1]) for data in data_of_layer(batch, layer)
        ]

    made = all_data()
    return {
        "Batch.from_data_list": lambda _: PygBatch.from_data_list(made),
        "Data objects, Batch.from_data_list": lambda _: PygBatch.from_data_list(all_data()),
        "ours: build_graphs": lambda _: build_graphs(hidden.values, attn.values, hidden.offsets),
    }


def options() -> Parser:
    """The command line."""
    own = {
        "--traces": (16, "batch size"),
        "--tokens": (50, "of a trace, 20%% more or less"),
        "--layers": (32, "of the language model"),
        "--hidden-size": (256, "of the language model"),
    }
    made = parser(__doc__, size_mb=0, epochs=5, makes_data=False, options=own)
    made.add_argument(
        "--threads", type=int, nargs="+", help="default: as many as training would use"
    )
    return made


if __name__ == "__main__":
    run(main, options())
