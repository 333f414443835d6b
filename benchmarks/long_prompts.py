"""Do graph detectors find the answer in a graph that is mostly prompt?

Traces of the embedded example get tokens in front that have nothing to do with them: states of
other traces' tokens, to which every token gives half of its attention. Labels and the states of the
question and the answer stay as they are. `lstm_solo`, which reads the last token's states alone, is
the reference: a graph detector that falls behind it does not find the answer in its graph. Each
seed is another split, other weights and another order. 15% of 1,000 traces are 150: the AUROC of a
single split has a standard error of some hundredths, so `vs_lstm_solo` is of the same split.
"""

from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness import Parser, finish, needs_extra, parser, run, show
from store import Schema, StoreWriter, TraceStore

with needs_extra("train"):
    from train.config import Config
    from train.data.requirements import open_data
    from train.evaluate.metrics import auroc
    from train.fit.cpu import cpu_arithmetic
    from train.fit.device import build_fabric
    from train.fit.loop import Hooks, fit, predict
    from train.run.detectors import build_detector

with needs_extra("extract"):
    from store.sources.example import ExampleSource, example_questions
    from store.write.build import build_store

REFERENCE = "lstm_solo"
N_POOL = 100  # traces whose tokens stand before others
OLDER: dict[str, Any] = {"readout": "mean", "aggregation": "sum"}
COLUMNS = (
    "question_id",
    "question",
    "label",
    "hs_last",
    "hidden_states",
    "attn_mean",
    "prompt_len",
    "answer_len",
)


def write_long(path: Path, example: TraceStore, n_traces: int, n_tokens: int) -> None:
    """The first traces of the example, about `n_tokens` long by tokens in front."""
    rng = np.random.default_rng([0, n_tokens])
    states = np.concatenate([example[row]["hidden_states"] for row in range(N_POOL)])
    columns = {name: example.schema.columns[name] for name in COLUMNS}
    with StoreWriter.create(path, Schema(columns), example.provenance) as writer:
        for row in range(n_traces):
            trace = {name: example[row][name] for name in COLUMNS}
            n_before = n_tokens + rng.integers(-n_tokens // 10, n_tokens // 10 + 1)
            n_filler = max(0, int(n_before) - len(trace["hidden_states"]))
            filler = states[rng.integers(len(states), size=n_filler)]
            writer.append(example.ids[row], lengthen(trace, filler))


def lengthen(trace: dict[str, Any], filler: NDArray) -> dict[str, Any]:
    """A trace behind the states of other tokens (n, L, d), which get half of all attention."""
    n_own, n_layers = trace["hidden_states"].shape[:2]
    n_filler = len(filler)
    n_all = n_filler + n_own
    maps = np.zeros((n_all, n_all, n_layers), np.float32)
    own = maps[n_filler:, n_filler:]
    own[np.tril_indices(n_own)] = trace["attn_mean"]
    if n_filler:
        maps[n_filler:] *= 0.5
        maps[n_filler:, :n_filler] = 0.5 / n_filler
        maps[:n_filler, :n_filler] = causal_mean(n_filler)[:, :, None]
    return trace | {
        "hidden_states": np.concatenate([filler, trace["hidden_states"]]),
        "attn_mean": maps[np.tril_indices(n_all)].astype(np.float16),
        "prompt_len": int(trace["prompt_len"]) + n_filler,
    }


def causal_mean(n: int) -> NDArray[np.float32]:
    """Attention of n tokens that is equal to all tokens up to each, (n, n)."""
    return np.tril(np.ones((n, n), np.float32)) / np.arange(1, n + 1, dtype=np.float32)[:, None]


@dataclass(frozen=True)
class Contender:
    """A detector and settings that are not the defaults."""

    detector: str
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        return " ".join([self.detector, *(f"{k}={v}" for k, v in self.settings.items())])


def main(args: Namespace) -> None:
    """All contenders on the same splits, length by length."""
    rows: list[dict] = []
    n_traces = max(args.traces, N_POOL)
    example = build_store(args.dir / "plain.zarr", ExampleSource(example_questions(n_traces)))
    for n_tokens in args.tokens:
        path = args.dir / f"long-{n_tokens}-{args.traces}.zarr"
        write_long(path, example, args.traces, n_tokens)
        for seed in range(args.seeds):
            reference = 0.0
            for one in contenders(args.only, args.older):
                row = measure(one, path, seed, args.epochs)
                reference = reference or row["test_auroc"]
                row["vs_lstm_solo"] = round(row["test_auroc"] - reference, 3)
                show(f"{n_tokens} tokens: {row}\n")
                rows.append({"tokens": n_tokens, **row})
    named_by = ("tokens", "detector", "seed")
    finish("long_prompts", args.results, rows, "test_auroc", "test_auroc", named_by)


def contenders(only: str | None, older: bool) -> list[Contender]:
    names = only.split(",") if only else ["gnn_det_lstm", "gvae_lstm"]
    found = [Contender(REFERENCE, {}), *(Contender(name, {}) for name in names)]
    return found + [Contender(name, OLDER) for name in names if older]


def measure(one: Contender, path: Path, seed: int, epochs: int) -> dict[str, Any]:
    """Train with one seed, as `python -m train` does; AUROC of the best epoch."""
    config = replace(Config(models=one.detector, seed=seed, epochs=epochs), **one.settings)
    data = open_data(config, path)
    with cpu_arithmetic(1):
        fabric = build_fabric(config)
        fabric.seed_everything(seed, verbose=False)
        detector = build_detector(one.detector, data, config)
        training = fit(fabric, detector, data, config, Hooks())
        detector.load_state_dict(training.best.weights)
        with torch.inference_mode():
            scores = predict(fabric, detector, data, "test", config)
    return {
        "detector": one.name,
        "seed": seed,
        "test_auroc": round(auroc(data.splits.labels_of("test"), scores), 3),
        "val_auroc": round(training.best.epoch.val_auroc, 3),
        "train_loss": round(training.history[-1].loss, 3),
        "seconds": round(training.elapsed(), 1),
    }


def options() -> Parser:
    """The command line."""
    made = parser(__doc__, size_mb=0, epochs=10)
    made.add_argument(
        "--tokens", type=int, nargs="+", default=[100, 500], help="of a trace (default 100 500)"
    )
    made.add_argument("--traces", type=int, default=1000, help="(default %(default)s)")
    made.add_argument("--seeds", type=int, default=3, help="(default %(default)s)")
    made.add_argument("--only", help="graph detectors, separated by commas (default: both)")
    made.add_argument(
        "--older", action="store_true", help="with the settings of older versions too"
    )
    return made


if __name__ == "__main__":
    run(main, options())
