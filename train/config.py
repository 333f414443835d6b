"""The settings of a run: one flat dataclass, and the command line made from it.

Each field states its default, its help and its range in one place; flag, type and check follow from them.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, NoReturn

from train.errors import ConfigError

__all__ = ["Config", "build_parser", "check_config", "off_flag", "parse_config"]

EXAMPLES = """examples:
  python -m train                                        the embedded example: all detectors and baselines
  python -m train --store traces.zarr --seeds 3          three seeds on one split: mean and spread
  python -m train --store traces.zarr --no-run-lstm --attn-threshold 0.01 --output-dir runs/sparse
  python -m train --store traces.zarr --score-threshold 0.4        label again from the stored scores
"""

SWITCHES = {"lstm_solo": "run_lstm", "gnn_det_lstm": "run_gnn_det", "gvae_lstm": "run_gvae"}  # detector -> its field


def option(default: Any, text: str, low: float = -math.inf, high: float = math.inf, low_open: bool = False) -> Any:
    """Describe a setting: default, help, and the range [low, high], or (low, high] if `low_open`."""
    return field(default=default, metadata={"help": text, "low": low, "high": high, "low_open": low_open})


@dataclass(frozen=True)
class Config:
    """All settings of a run, in the order of `--help`."""

    store: str | None = option(None, "store to train on (default: the embedded example, built once under data/)")
    output_dir: str | None = option(None, "where results go (default: runs/NAME_OF_STORE)")
    seed: int = option(0, "of the split, the weights and the order of the rows", 0, 2**31 - 1)
    seeds: int = option(1, "train each detector this many times, from --seed on, all on one split", 1, 100)
    max_traces: int | None = option(None, "use this many labelled traces, drawn by --seed (default: all)", 1, 2**31 - 1)
    score_threshold: float | None = option(None, "label = 1 iff score < this (default: the labels as stored)")

    epochs: int = option(10, "at most this many passes over the training rows", 1, 10**6)
    patience: int = option(10, "stop after this many epochs without a better validation AUROC", 1, 10**6)
    batch_size: int = option(32, "traces per step", 1, 10**6)
    lr: float = option(1e-3, "peak learning rate of the one-cycle schedule", 0, 10, low_open=True)
    grad_accum: int = option(1, "steps whose gradients are added up before the weights move", 1, 10**6)
    focal_loss: bool = option(False, "let rows that are easy count less (focal loss, gamma 2)")
    label_smoothing: float = option(0.0, "train towards s/2 and 1 - s/2 in place of 0 and 1", 0, 0.99)
    num_workers: int = option(0, "threads that read ahead", 0, 1024)
    cache_size: int | None = option(
        None, "bytes of decoded chunks to keep, for compressed columns (default: 64 MiB)", 0, 2**60
    )
    force_cpu: bool = option(False, "use the CPU even where an accelerator is at hand")
    threads: int | None = option(
        None, "CPU threads for arithmetic (default: 1, but all cores from d = 1024 on)", 1, 1024
    )

    run_lstm: bool = option(True, "train lstm_solo")
    run_gnn_det: bool = option(True, "train gnn_det_lstm")
    run_gvae: bool = option(True, "train gvae_lstm")

    attn_threshold: float = option(0.0, "keep an edge iff its attention is at least this", 0, 1)
    top_k: int | None = option(None, "keep the k strongest sources of each token (default: all)", 1, 2**31 - 1)
    gnn_hidden: int = option(128, "width of the graph encoder", 1, 65_536)
    latent_dim: int = option(128, "width of gvae_lstm's latent", 1, 65_536)
    lstm_hidden: int = option(128, "width of each direction of the LSTM", 1, 65_536)
    num_lstm_layers: int = option(2, "depth of the LSTM", 1, 64)
    dropout: float = option(0.3, "in the LSTM and the classifier", 0, 0.99)
    kl_weight: float = option(0.01, "of the KL term of gvae_lstm", 0)

    @property
    def detectors(self) -> list[str]:
        """Names of the detectors to train."""
        return [name for name, switch in SWITCHES.items() if getattr(self, switch)]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of argparse's usage and message."""
        raise ConfigError(f"{message}; see python -m train --help")


def build_parser() -> argparse.ArgumentParser:
    """Build the command line: a flag per field of `Config`; booleans also take --no-FLAG."""
    parser = _Parser(
        prog="python -m train",
        description="Train hallucination detectors on a trace store and compare them with simple baselines.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for setting in fields(Config):
        _add_flag(parser, setting)
    return parser


def parse_config(argv: list[str] | None = None) -> Config:
    """Read the command line; raises ConfigError, and SystemExit for --help."""
    config = Config(**vars(build_parser().parse_args(argv)))
    check_config(config)
    return config


def check_config(config: Config) -> None:
    """Raise ConfigError for a value out of range or a run with nothing to train."""
    for setting in fields(config):
        value = getattr(config, setting.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            _check_range(setting, value)
    if not config.detectors:
        raise ConfigError(
            "expected a detector to train, found all of them switched off; leave out one --no-run-... flag"
        )


def _add_flag(parser: argparse.ArgumentParser, setting: Field) -> None:
    flag, text, default = _flag(setting), setting.metadata["help"], setting.default
    if isinstance(default, bool):
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
        return
    kind = {"int": int, "float": float, "str": str}[setting.type.removesuffix(" | None")]
    shown = text if default in (None, MISSING) else f"{text} (default: {default})"
    parser.add_argument(flag, type=kind, default=default, metavar=kind.__name__.upper(), help=shown)


def _check_range(setting: Field, value: float) -> None:
    low, high, low_open = (setting.metadata[key] for key in ("low", "high", "low_open"))
    if (low < value if low_open else low <= value) and value <= high and abs(value) < math.inf:  # NaN fails too
        return
    start = f"{'above' if low_open else 'at least'} {low:g}" if low > -math.inf else "a finite number"
    stop = f" and at most {high:.10g}" if high < math.inf else ""
    raise ConfigError(f"{_flag(setting)}: expected {start}{stop}, found {value!r:.40}; see python -m train --help")


def _flag(setting: Field) -> str:
    return "--" + setting.name.replace("_", "-")


def off_flag(detector: str) -> str:
    """The flag that leaves a detector out."""
    return "--no-" + SWITCHES[detector].replace("_", "-")
