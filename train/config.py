"""The settings of a run: one flat dataclass, the command line made from it, and the file that a run
writes of them.

Each field states its default, its help, its range or choices, and whether results depend on it, in
one place; flag, type and check follow from them.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

from models import BASELINES, DETECTORS, PROBES
from store.cli.arguments import Version, expand
from store.errors import SchemaError, closest
from store.format.layers import attach_layers, parse_layers
from train.errors import ConfigError
from train.files import read_json

__all__ = [
    "Arguments",
    "Config",
    "Parser",
    "build_parser",
    "check_config",
    "check_names",
    "flag_of",
    "off_flag",
    "parse_arguments",
    "settings_of",
]

EXAMPLES = """examples:
  python -m train                                        the embedded example: three detectors and the baselines
  python -m train --store traces.zarr --seeds 3          three seeds on one split: mean and spread
  python -m train --store traces.zarr --models all       every detector whose columns the store has
  python -m train --store traces.zarr --models lapeigvals,saplma,lstm_solo --layers 8-24
  python -m train --store traces.zarr --resume           go on after a crash, as if there had been none
  python -m train --config runs/traces/run.json --lr 3e-4 --output-dir runs/slower     as that run, but for two settings
  torchrun --nproc-per-node 2 -m train --store traces.zarr                      two processes share each batch
commands of their own, each with a --help:
  python -m train compare DIR...                         runs side by side, with paired tests
  python -m train predict --run DIR --store STORE        scores of new traces
"""

# detector -> its field
SWITCHES = {"lstm_solo": "run_lstm", "gnn_det_lstm": "run_gnn_det", "gvae_lstm": "run_gvae"}
SECTIONS = {  # first field -> heading in --help
    "store": "what is trained on what",
    "epochs": "training",
    "precision": "arithmetic, reading, saving",
    "run_lstm": "switches for single detectors",
    "attn_threshold": "detectors",
}
ALL = "all"
# columns of scores.csv, and --models all
RESERVED = ("trace_id", "side", "split", "label", "question_id", "all")
PLACES = ("store", "output_dir")  # settings that are paths
MAX_CONFIG_BYTES = 1_000_000
STEPS, MINUTES = r"[1-9]\d{0,8}", r"\d{1,6}(\.\d{1,6})?min"
FORMS = {  # of settings that are texts: pattern, example
    "columns": (r"\w+=\w+(,\w+=\w+)*", "hs_last=MY_STATES"),
    "save_every": (f"{STEPS}|{MINUTES}|{STEPS},{MINUTES}", "500, 10min or 500,10min"),
}


def option(
    default: Any,
    text: str,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    low_open: bool = False,
    choices: tuple[str, ...] = (),
    free: bool = False,
    layer: bool = False,
) -> Any:
    """Describe a setting.

    It has a default, a help text, and a range [low, high], or (low, high] if `low_open`, or
    `choices`; `free` ones change how a run gets to its results, never the results. A `layer` is a
    layer's number in its model.
    """
    metadata = {
        "help": text,
        "low": low,
        "high": high,
        "low_open": low_open,
        "choices": choices,
        "free": free,
        "layer": layer,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Config:
    """All settings of a run, in the order of `--help`."""

    store: str | None = option(
        None, "store to train on (default: the embedded example, built once under data/)", free=True
    )
    output_dir: str | None = option(
        None, "where results go (default: runs/NAME_OF_STORE)", free=True
    )
    models: str = option(
        ",".join(SWITCHES),
        f"detectors to train, separated by commas, or all: {', '.join([*DETECTORS, *PROBES])}",
    )
    on_top_of: str | None = option(
        None,
        "baseline to start from: detectors learn what to add to its log-odds (default: none); one of "
        f"{', '.join(BASELINES)}",
    )
    seed: int = option(0, "of the split, the weights and the order of the rows", 0, 2**31 - 1)
    seeds: int = option(
        1, "train each detector this many times, from --seed on, all on one split", 1, 100
    )
    max_traces: int | None = option(
        None, "use this many labelled traces, drawn by --seed (default: all)", 1, 2**31 - 1
    )
    score_threshold: float | None = option(
        None, "label = 1 iff score < this (default: the labels as stored)"
    )
    columns: str | None = option(
        None, "columns to read in place of others, as hs_last=MY_STATES,..."
    )
    layers: str | None = option(
        None,
        "layers to read, as the model numbers them: 8,16,24 or 8-16, -1 the last (default: all)",
    )

    epochs: int = option(10, "at most this many passes over the training rows", 1, 10**6)
    patience: int = option(
        10, "stop after this many epochs without a better validation AUROC", 1, 10**6
    )
    batch_size: int = option(32, "traces per step, of all processes together", 1, 10**6)
    grad_accum: int = option(
        1, "steps whose gradients are added up before the weights move", 1, 10**6
    )
    lr: float = option(
        1e-3, "learning rate; the peak of the one-cycle schedule", 0, 10, low_open=True
    )
    schedule: str = option(
        "one-cycle", "how the learning rate moves", choices=("one-cycle", "constant")
    )
    focal_loss: bool = option(False, "let rows that are easy count less (focal loss, gamma 2)")
    label_smoothing: float = option(
        0.0, "train towards s/2 and 1 - s/2 in place of 0 and 1", 0, 0.99
    )
    class_weights: bool = option(False, "let both classes count the same, whatever their numbers")
    mixup: float = option(
        0.0,
        "train on mixtures of two traces, with shares from Beta(A, A) (default: 0, do not)",
        0,
        100,
    )

    precision: str = option(
        "auto",
        "of the arithmetic in training (auto: bf16-mixed on GPUs that have it, else 32)",
        choices=("auto", "32", "bf16-mixed", "16-mixed"),
    )
    amp: bool = option(True, "--no-amp is --precision 32")
    compile: bool = option(
        False, "run detectors through torch.compile, which gains nothing on a CPU"
    )
    use_gradient_checkpointing: bool = option(
        False, "compute large parts twice in place of keeping them: less memory, more time"
    )
    force_cpu: bool = option(False, "use the CPU even where an accelerator is at hand")
    threads: int | None = option(
        None, "CPU threads for arithmetic (default: 1, but all cores from d = 1024 on)", 1, 1024
    )
    num_workers: int = option(0, "threads that read ahead", 0, 1024, free=True)
    cache_size: int | None = option(
        None,
        "bytes of decoded chunks to keep, for compressed columns (default: 64 MiB)",
        0,
        2**60,
        free=True,
    )
    save_every: str = option(
        "5min",
        "how often to save what --resume needs: steps, minutes, or both, as 500, 10min or 500,10min",
        free=True,
    )

    run_lstm: bool | None = option(None, "train lstm_solo, or not, whatever --models says")
    run_gnn_det: bool | None = option(None, "train gnn_det_lstm, or not, whatever --models says")
    run_gvae: bool | None = option(None, "train gvae_lstm, or not, whatever --models says")

    attn_threshold: float = option(0.0, "keep an edge iff its attention is at least this", 0, 1)
    top_k: int | None = option(
        None, "keep the k strongest sources of each token (default: all)", 1, 2**31 - 1
    )
    gnn_hidden: int = option(128, "width of the graph encoder", 1, 65_536)
    latent_dim: int = option(128, "width of gvae_lstm's latent", 1, 65_536)
    lstm_hidden: int = option(128, "width of each direction of the LSTM", 1, 65_536)
    num_lstm_layers: int = option(2, "depth of the LSTM", 1, 64)
    dropout: float = option(0.3, "in the LSTM and the classifier", 0, 0.99)
    kl_weight: float = option(0.01, "of the KL term of gvae_lstm", 0)
    saplma_layer: int | None = option(
        None,
        "layer that saplma reads, as the model numbers it (default: at 0.6 of the depth of those that are read)",
        -65_535,
        65_535,
        layer=True,
    )

    @property
    def detectors(self) -> list[str]:
        """Names of what to train: those of `models`, and what the --run- flags add and take away;
        or ["all", ...]."""
        named = [name for name in self.models.split(",") if name]
        added = [
            name for name, switch in SWITCHES.items() if getattr(self, switch) and name not in named
        ]
        return [
            name
            for name in named + added
            if getattr(self, SWITCHES.get(name, ""), None) is not False
        ]

    @property
    def left_out(self) -> list[str]:
        """Names that a --no-run- flag takes away."""
        return [name for name, switch in SWITCHES.items() if getattr(self, switch) is False]

    @property
    def replaced(self) -> dict[str, str]:
        """Column that detectors read -> column of the store that stands in for it."""
        return dict(pair.split("=") for pair in self.columns.split(",")) if self.columns else {}

    @property
    def save_steps(self) -> float:
        """Save after this many steps; infinity: whatever their number."""
        return self._save_every()[0]

    @property
    def save_seconds(self) -> float:
        """Save after this many seconds; infinity: however long."""
        return self._save_every()[1]

    def _save_every(self) -> tuple[float, float]:
        steps = seconds = math.inf
        for part in self.save_every.split(","):
            number = float(part.removesuffix("min"))
            steps, seconds = (steps, 60 * number) if part.endswith("min") else (number, seconds)
        return steps, seconds


@dataclass(frozen=True)
class Arguments:
    """A command line: the settings, and how to begin with them.

    Attributes
    ----------
    config : Config
        The settings.
    resume : bool
        Go on with the unfinished run in the output directory, if there is one.
    overwrite : bool
        Begin anew even where that loses an unfinished run.
    """

    config: Config
    resume: bool = False
    overwrite: bool = False


class Parser(argparse.ArgumentParser):
    """Arguments of a command, with examples as its epilog; a mistake is a ConfigError."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options
        )

    def error(self, message: str) -> NoReturn:
        """One line, as a ConfigError, instead of argparse's usage and message."""
        raise ConfigError(f"{message}; see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """Build the command line: a flag per field of `Config`; booleans also take --no-FLAG."""
    parser = Parser(
        prog="python -m train",
        description="Train hallucination detectors on a trace store and compare them with simple baselines.",
        epilog=EXAMPLES,
        # what is not given is taken from --config, else from `Config`
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--version", action=Version, nargs=0, help="print the version, and that of the format"
    )
    parser.add_argument("--config", metavar="FILE", help="settings to begin with: a run's run.json")
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "--resume",
        action="store_true",
        help="go on with the unfinished run in the output directory, if there is one",
    )
    begin.add_argument(
        "--overwrite",
        action="store_true",
        help="begin anew even where that loses an unfinished run",
    )
    group: argparse._ActionsContainer = parser
    for setting in fields(Config):
        if setting.name in SECTIONS:
            group = parser.add_argument_group(SECTIONS[setting.name])
        _add_flag(group, setting)
    return parser


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Read the command line; raises ConfigError, and SystemExit for --help."""
    given = vars(build_parser().parse_args(attach_layers(argv)))
    given |= {name: expand(given[name]) for name in PLACES if name in given}
    begin = {name: given.pop(name) for name in ("resume", "overwrite") if name in given}
    file = given.pop("config", None)
    settings = read_settings(Path(expand(file))) if file else {}
    config = Config(**(settings | given))
    check_config(config)
    check_names(config)
    return Arguments(config, **begin)


def read_settings(path: Path) -> dict[str, Any]:
    """Settings from a JSON file: an object of them, or one that has them under "config", as a run's
    run.json."""
    try:
        content = read_json(path, MAX_CONFIG_BYTES)
    except ValueError as error:
        raise ConfigError(f"--config: {error}") from error
    return settings_of(content, f"--config: {path}")


def settings_of(content: Any, where: str) -> dict[str, Any]:
    """Checked names and types of settings from JSON: an object of them, or one that has them under
    "config"."""
    settings = content.get("config", content) if isinstance(content, dict) else content
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{where}: expected an object of settings, found {type(settings).__name__}"
        )
    known = {setting.name: setting for setting in fields(Config)}
    for name, value in settings.items():
        if name not in known:
            raise ConfigError(
                f"{where}: expected settings of python -m train --help, found {name!r:.80}"
            )
        kinds = known[name].type.split(" | ")
        if type(value).__name__.replace("NoneType", "None") not in kinds + ["int"] * (
            "float" in kinds
        ):
            raise ConfigError(f"{where}: {name}: expected {known[name].type}, found {value!r:.80}")
    if settings is not content:
        _check_numbering(content, settings, where)
    return settings


def _check_numbering(record: dict[str, Any], settings: dict[str, Any], where: str) -> None:
    """Refuse the layers of a run that was made when they were counted from 0: they mean others
    now."""
    named = [name for name in ("layers", "saplma_layer") if settings.get(name) is not None]
    if named and "layers" not in record:
        flags = " and ".join(flag_of(name) for name in named)
        raise ConfigError(
            f"{where}: {flags} of an older version, which counted layers from 0; now they are numbered as the model "
            "numbers them: train again, with the numbers of today"
        )


def check_config(config: Config) -> None:
    """Raise ConfigError for a value out of range, one that cannot be read, or a run with nothing to
    train."""
    for setting in fields(config):
        value, choices = getattr(config, setting.name), setting.metadata["choices"]
        if isinstance(value, int | float) and not isinstance(value, bool):
            _check_range(setting, value)
        if isinstance(value, str) and ("\0" in value or not value.isprintable()):
            raise ConfigError(
                f"{flag_of(setting.name)}: expected printable characters, found {value!r:.80}"
            )
        if choices and value not in choices:
            raise ConfigError(
                f"{flag_of(setting.name)}: expected one of {', '.join(choices)}, found {value!r:.80}"
            )
    for name, (pattern, example) in FORMS.items():
        value = getattr(config, name)
        if value is not None and not re.fullmatch(pattern, value, re.ASCII):
            raise ConfigError(
                f"{flag_of(name)}: expected a form like {example}, found {value!r:.80}"
            )
    if config.layers is not None:
        try:
            parse_layers(config.layers)
        except SchemaError as error:
            raise ConfigError(f"--{error}") from error
    if not config.amp and config.precision not in ("auto", "32"):
        raise ConfigError(
            f"--no-amp: expected --precision 32 or none with it, found {config.precision!r}"
        )
    if not config.detectors:
        raise ConfigError(
            "expected a detector to train, found all of them switched off; name one with --models, or leave out a "
            "--no-run- flag"
        )


def check_registered(names: Sequence[str]) -> None:
    """Raise ConfigError for names of methods that results, files and columns could not tell
    apart."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"two methods are called {name!r:.80}: register yours under a name of its own"
            )
        if name in RESERVED or not re.fullmatch(r"[A-Za-z]\w{0,50}", name, re.ASCII):
            raise ConfigError(
                f"a method is called {name!r:.80}: register it under a name of letters, digits and '_' that is none of "
                f"{', '.join(RESERVED)}"
            )


def check_names(config: Config) -> None:
    """Raise ConfigError for a detector, probe or baseline that there is not."""
    known = [*DETECTORS, *PROBES]
    check_registered([*known, *BASELINES])
    for name in config.detectors:
        if name not in known and config.detectors != [ALL]:
            raise ConfigError(
                f"--models: there is no {name!r:.80}{closest(name, known)}; choose from {', '.join(known)}, or all"
            )
    start = config.on_top_of
    if start is not None and start not in BASELINES:
        raise ConfigError(
            f"--on-top-of: there is no baseline {start!r:.80}{closest(start, BASELINES)}; choose from "
            f"{', '.join(BASELINES)}"
        )


def _add_flag(parser: argparse._ActionsContainer, setting: Field) -> None:
    flag, text, default = flag_of(setting.name), setting.metadata["help"], setting.default
    if setting.type.startswith("bool"):
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
        return
    kind = {"int": int, "float": float, "str": str}[setting.type.removesuffix(" | None")]
    choices = setting.metadata["choices"] or None
    parser.add_argument(
        flag,
        type=kind,
        choices=choices,
        metavar=None if choices else kind.__name__.upper(),
        help=text if default is None or "(default" in text else f"{text} (default: {default})",
    )


def _check_range(setting: Field, value: float) -> None:
    low, high, low_open = (setting.metadata[key] for key in ("low", "high", "low_open"))
    # NaN fails too
    if (low < value if low_open else low <= value) and value <= high and abs(value) < math.inf:
        return
    start = (
        f"{'above' if low_open else 'at least'} {low:g}" if low > -math.inf else "a finite number"
    )
    stop = f" and at most {high:.10g}" if high < math.inf else ""
    raise ConfigError(
        f"{flag_of(setting.name)}: expected {start}{stop}, found {value!r:.40}; see python -m train --help"
    )


def flag_of(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def off_flag(detector: str) -> str:
    """How to leave a detector out."""
    return "--no-" + SWITCHES[detector].replace("_", "-") if detector in SWITCHES else "--models"
