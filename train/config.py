"""The settings of a run: one flat dataclass, its command line, and its JSON file.

Each field states its default, its help, its range or choices, and whether results depend on it, in
one place; flag, type and check follow from them.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

from models import DETECTORS, PROBES, REFERENCES
from models.options import Option
from store.cli import arguments
from store.cli.arguments import Version, expand, program
from store.errors import SchemaError, closest
from store.format.layers import attach_layers, parse_layers
from train.errors import ConfigError
from train.files import Json, read_json
from train.outside.methods import ALL, LOADED, load_methods
from train.outside.records import recorded_options

__all__ = [
    "COLUMNS",
    "Arguments",
    "Config",
    "Parser",
    "build_parser",
    "check_config",
    "check_names",
    "flag_of",
    "off_flag",
    "own_options",
    "parse_arguments",
    "settings_of",
]

EXAMPLES = """examples:
  python -m train
      the embedded example: four detectors and the baselines
  python -m train --store traces.zarr --seeds 3
      three seeds on one split: mean and spread
  python -m train --store traces.zarr --models all
      every detector and probe whose columns the store has
  python -m train --store traces.zarr --models lapeigvals,saplma,lstm_solo --layers 8-24
      two detectors and a probe on some layers
  python -m train --store traces.zarr --resume
      continue after a crash, with the same results as without it
  python -m train --config runs/traces/run.json --lr 3e-4 --output-dir runs/slower
      the settings of an earlier run, except for two
  torchrun --nproc-per-node 2 --no-python trace-train --store traces.zarr
      two processes share each batch
other commands, each with a --help:
  python -m train compare DIR...
      runs side by side, with paired tests
  python -m train evaluate --run DIR --store STORE...
      metrics on other stores, at the thresholds of the run
  python -m train predict --run DIR --store STORE
      scores of new traces
"""

# detector -> its field
SWITCHES = {"lstm_solo": "run_lstm", "gnn_det_lstm": "run_gnn_det", "gvae_lstm": "run_gvae"}
# cheap, and often above the three; command lines with switches mean these alone, as they always did
DEFAULT_MODELS = (*SWITCHES, "saplma")
SECTIONS = {  # first field -> heading in --help
    "store": "data and methods",
    "epochs": "training",
    "precision": "hardware, reading, saving",
    "run_lstm": "switches of single detectors",
    "attn_threshold": "options of the detectors",
}
COLUMNS = (  # that detectors, probes and baselines read
    "hs_last",
    "hs_prompt",
    "hs_mean",
    "hidden_states",
    "attn_mean",
    "attn_diag",
    "attn_colsum",
    "attn_pmass",
    "attn_prev",
    "attentions",
    "attn_edges",
    "attn_edge_ends",
    "tokens",
    "logprob",
    "entropy",
    "topk_logprob",
    "topk_id",
    "eos_logprob",
    "lens_entropy",
    "lens_entropy_attention",
    "lens_entropy_mlp",
    "eigenscore",
    "lexical_similarity",
    "semantic_entropy",
    "semantic_entropy_discrete",
    "selfcheck_nli",
    "prompt_len",
    "answer_len",
    "question",
    "token_label",
)
# columns of scores.csv; --models all; the tokens' scores of `probe` would be those of token_probe
RESERVED = ("trace_id", "side", "split", "label", "question_id", "all", "probe")
PATHS = ("store", "output_dir")
OUTSIDE = "outside"  # a field without a flag
MAX_CONFIG_BYTES = 1_000_000
MAX_INT32 = 2**31 - 1
STEPS = r"[1-9]\d{0,8}"
MINUTES = r"\d{1,6}(\.\d{1,6})?min"
FORMS = {  # setting -> pattern of its text, example
    "columns": (r"\w+=\w+(,\w+=\w+)*", "hs_last=MY_STATES"),
    "save_every": (f"{STEPS}|{MINUTES}|{STEPS},{MINUTES}", "500, 10min or 500,10min"),
}


def option(
    text: str,
    default: Any = None,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    low_open: bool = False,
    choices: tuple[str, ...] = (),
    free: bool = False,
    layer: bool = False,
    before: Any = None,
) -> Any:
    """Describe a setting: its help, its default, and its range or choices.

    The range is [low, high], or (low, high] if `low_open`. A `free` setting changes how a run gets
    to its results, never the results. A `layer` is a layer's number in its model.
    A run that does not record the setting is older than it, and did as `before` says, if that is
    not None.
    """
    metadata = {
        "help": text,
        "range": (low, high, low_open),
        "choices": choices,
        "free": free,
        "layer": layer,
        "before": before,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Config:
    """All settings of a run, in the order of `--help`."""

    store: str | None = option(
        "trace store to train on (default: the embedded example, built once under data/)",
        free=True,
    )
    output_dir: str | None = option(
        "directory of the results (default: runs/NAME_OF_STORE)", free=True
    )
    models: str | None = option(
        "detectors and probes to train, separated by commas, of "
        f"{', '.join([*DETECTORS, *PROBES])}; or all: those whose columns the store has; or "
        "FILE.py:CLASS, one of your own: the file is run (default: "
        f"{', '.join(DEFAULT_MODELS)}; with a --run- or --no-run- flag without the last)",
    )
    on_top_of: str | None = option(
        "baseline whose log-odds are the base margin of the detectors: they learn what to add to "
        f"it; one of {', '.join(REFERENCES)} (default: none)",
    )
    seed: int = option("seed of the split, the weights and the order of rows", 0, 0, MAX_INT32)
    seeds: int = option(
        "number of trainings of each detector, with seeds from --seed on and one split", 1, 1, 100
    )
    splits: int = option(
        "number of splits, drawn with the seeds from --seed on; detectors are trained on each, and "
        "tables have means over the splits",
        1,
        1,
        100,
    )
    split: str | None = option(
        "column of text with train, val and test, or a CSV file with the columns trace_id or "
        "question_id, and split; with --hold-out a column of text or integers (default: by "
        "question and --seed)"
    )
    hold_out: str | None = option(
        "value of the column of --split whose traces are test; the others are train and val by "
        "question (default: none)"
    )
    strata: str | None = option(
        "column of text or integers: AUROC among the test traces of one value (default: among "
        "those of similar score of question_only)"
    )
    max_traces: int | None = option(
        "number of labelled traces to use, drawn by --seed (default: all)", None, 1, MAX_INT32
    )
    score_threshold: float | None = option(
        "label a trace 1 if its score is below this (default: use the labels as stored)"
    )
    columns: str | None = option(
        f"columns that replace others, as hs_last=MY_STATES,...; methods read {', '.join(COLUMNS)} "
        "(default: none)",
    )
    layers: str | None = option(
        "layers to read, numbered as in the model: 8,16,24 or 8-16, -1 for the last (default: all)",
    )

    epochs: int = option("maximum number of passes over the training rows", 10, 1, 1_000_000)
    patience: int = option(
        "stop after this many epochs without a better validation AUROC", 10, 1, 1_000_000
    )
    batch_size: int = option("traces per batch, of all processes together", 32, 1, 1_000_000)
    grad_accum: int = option(
        "batches whose gradients are added up for one optimizer step", 1, 1, 1_000_000
    )
    lr: float = option("learning rate; with one-cycle, its maximum", 1e-3, 0, 10, low_open=True)
    tune_lr: bool = option(
        "train each detector with a third of --lr, with --lr and with three times it, and keep the "
        "best on validation: three times the time",
        False,
    )
    schedule: str = option(
        "schedule of the learning rate", "one-cycle", choices=("one-cycle", "constant")
    )
    focal_loss: bool = option("weigh easy rows less in the loss (focal loss, gamma 2)", False)
    label_smoothing: float = option(
        "train towards s/2 and 1 - s/2 instead of 0 and 1, with this s", 0.0, 0, 0.99
    )
    class_weights: bool = option(
        "weigh both classes equally in the loss, however many rows they have", False
    )
    mixup: float = option(
        "A: train on mixtures of two traces, lambda drawn from Beta(A, A); 0: do not", 0.0, 0, 100
    )

    precision: str = option(
        "floating-point precision of the training; auto: bf16-mixed on GPUs that have it, else 32",
        "auto",
        choices=("auto", "32", "bf16-mixed", "16-mixed"),
    )
    amp: bool = option("mixed precision as --precision says; --no-amp is --precision 32", True)
    compile: bool = option(
        "run detectors through torch.compile, which gains nothing on a CPU", False
    )
    use_gradient_checkpointing: bool = option(
        "compute large activations again in the backward pass instead of keeping them: less "
        "memory, more time",
        False,
    )
    force_cpu: bool = option("use the CPU even if there is a GPU", False)
    threads: int | None = option(
        "CPU threads of arithmetic (default: 1, or all cores for a hidden size from 1024 on)",
        None,
        1,
        1024,
    )
    num_workers: int = option("threads that read batches ahead", 0, 0, 1024, free=True)
    cache_size: int | None = option(
        "size in bytes of the cache of decoded chunks of compressed columns (default: 64 MiB)",
        None,
        0,
        2**60,
        free=True,
    )
    image_cache: int = option(
        "size in bytes, of all processes together, of the cache in memory of the pooled images of "
        "act_conv and act_vit, which later epochs read instead of the store; 0: none",
        4 * 2**30,
        0,
        2**60,
        free=True,
    )
    save_every: str = option(
        "how often to save the state for --resume: after so many batches, minutes, or either, as "
        "500, 10min or 500,10min",
        "5min",
        free=True,
    )

    figures: str | None = option(
        "also write the figures of the report as files of this kind, for a paper (default: PNG "
        "only)",
        choices=("pdf", "svg"),
        free=True,
    )

    run_lstm: bool | None = option("train lstm_solo, or do not (default: as --models says)")
    run_gnn_det: bool | None = option("train gnn_det_lstm, or do not (default: as --models says)")
    run_gvae: bool | None = option("train gvae_lstm, or do not (default: as --models says)")

    attn_threshold: float = option(
        "keep the edges of an attention graph whose attention is at least this", 0.0, 0, 1
    )
    top_k: int | None = option(
        "strongest edges of each token to keep in an attention graph, 0 for all (default: 8 with "
        "--aggregation attention, all with sum)",
        None,
        0,
        MAX_INT32,
    )
    readout: str = option(
        "tokens that gnn_det_lstm and gvae_lstm read from a graph: the last one, with its state as "
        "it is or without, the mean of the answer's (of all, where the prompt's length is not "
        "known), or the mean of all (older versions)",
        "last+skip",
        choices=("last+skip", "last", "answer", "mean"),
        before="mean",
    )
    aggregation: str = option(
        "how the graph encoder adds messages: means weighted by attention, of normalised states, "
        "or sums, of states as stored (older versions)",
        "attention",
        choices=("attention", "sum"),
        before="sum",
    )
    gnn_hidden: int = option(
        "width of the graph encoder of gnn_det_lstm and gvae_lstm", 128, 1, 65_536
    )
    latent_dim: int = option("width of the latent of gvae_lstm", 128, 1, 65_536)
    lstm_hidden: int = option("width of each direction of the LSTM", 128, 1, 65_536)
    num_lstm_layers: int = option("number of layers of the LSTM", 2, 1, 64)
    dropout: float = option("dropout probability (LSTM, classifier)", 0.3, 0, 0.99)
    kl_weight: float = option("weight of the KL term of gvae_lstm", 0.01, 0)
    saplma_layer: int | None = option(
        "layer that saplma reads, numbered as in the model (default: that of the regression on one "
        "layer that is best on validation)",
        None,
        -65_535,
        65_535,
        layer=True,
    )
    token_layer: int | None = option(
        "layer that token_probe reads, numbered as in the model (default: that of the regression "
        "on tokens of one layer that is best on validation)",
        None,
        -65_535,
        65_535,
        layer=True,
    )
    token_hidden: int = option(
        "width of the hidden layer of token_probe; 0: a linear probe", 0, 0, 65_536
    )
    drift_tokens: str = option(
        "tokens of the prompt whose states drift reads: the last one, or the mean over all",
        "last",
        choices=("last", "mean"),
    )
    halunet_layer: int | None = option(
        "layer that halunet reads, numbered as in the model (default: the last)",
        None,
        -65_535,
        65_535,
        layer=True,
    )
    halunet_dropout: float = option("dropout probability of halunet", 0.5, 0, 0.99)
    charm_threshold: float = option(
        "keep the edges of charm and charm_edges where a head attends with at least this",
        0.05,
        0,
        1,
    )
    charm_dropout: float = option("dropout probability of charm and charm_edges", 0.25, 0, 0.99)
    image_layers: int = option(
        "layers of the image that act_conv and act_vit pool a trace to", 8, 1, 1024
    )
    image_tokens: int = option("tokens of that image", 32, 1, 65_536)
    image_width: int = option("channels of each of its cells after the projection", 64, 1, 65_536)
    channels_last: str = option(
        "memory format of the images: channels last or not; auto: on GPUs",
        "auto",
        choices=("auto", "on", "off"),
    )
    augment: str = option(
        "change images at random in training: show a part of them (crop), leave out layers and "
        "tokens (drop), add noise, or one of these for each trace (rand)",
        "none",
        choices=("none", "crop", "drop", "noise", "rand"),
    )
    augment_strength: float = option(
        "of --augment: the share of each side that a crop may lack, the probability of a drop, the "
        "standard deviation of the noise",
        0.1,
        0,
        1,
    )

    # of each method from outside: where it came from, and the values of its own options
    outside: dict | None = option("has no flag", free=True)  # noqa: RUF009 - as all fields

    @property
    def detectors(self) -> list[str]:
        """Names of what to train: `models`, changed by the --run- flags; or ["all", ...]."""
        names = [name for name in self._named if name]
        for name, switch in SWITCHES.items():
            if getattr(self, switch) and name not in names:
                names.append(name)
        return [name for name in names if name not in self.left_out]

    @property
    def _named(self) -> Sequence[str]:
        """Names in `models`, or those that are trained without it."""
        if self.models is not None:
            return self.models.split(",")
        is_switched = any(getattr(self, switch) is not None for switch in SWITCHES.values())
        return tuple(SWITCHES) if is_switched else DEFAULT_MODELS

    @property
    def left_out(self) -> list[str]:
        """Names that a --no-run- flag removes."""
        return [name for name, switch in SWITCHES.items() if getattr(self, switch) is False]

    @property
    def replaced(self) -> dict[str, str]:
        """Column that detectors read -> column of the store that replaces it."""
        return dict(re.findall(r"(\w+)=(\w+)", self.columns or ""))

    @property
    def save_steps(self) -> float:
        """Save after this many batches; infinity: never for their number."""
        first = self.save_every.split(",")[0]
        return math.inf if first.endswith("min") else float(first)

    @property
    def save_seconds(self) -> float:
        """Save after this many seconds; infinity: never for the time."""
        last = self.save_every.split(",")[-1]
        return 60 * float(last.removesuffix("min")) if last.endswith("min") else math.inf


@dataclass(frozen=True)
class Arguments:
    """A command line.

    Attributes
    ----------
    config : Config
        The settings.
    resume : bool
        Continue the unfinished run in the output directory, if there is one.
    overwrite : bool
        Start over and replace the run in the output directory, finished or not.
    """

    config: Config
    resume: bool = False
    overwrite: bool = False


class Parser(arguments.Parser):
    """Arguments of a command, with examples as its epilog; a mistake is a ConfigError."""

    def error(self, message: str) -> NoReturn:
        """One line, as a ConfigError, instead of argparse's usage and message."""
        raise ConfigError(f"{message}; see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """Build the command line: a flag per field of `Config`; booleans also take --no-FLAG.

    Options of the methods from outside that are loaded have flags, too.
    """
    parser = Parser(
        prog=program("train"),
        description=(
            "Train hallucination detectors on a trace store and compare them with simple baselines."
        ),
        epilog=EXAMPLES,
        allow_abbrev=False,
        # what is not given is taken from --config, else from `Config`
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--version", action=Version, nargs=0, help="print the version, and that of the format"
    )
    parser.add_argument(
        "--config",
        type=expand,
        metavar="FILE",
        help="JSON file of settings, e.g. the run.json of a run; flags take precedence",
    )
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume",
        action="store_true",
        help="continue the unfinished run in the output directory, if there is one",
    )
    existing.add_argument(
        "--overwrite",
        action="store_true",
        help="start over and replace the run in the output directory, finished or not",
    )
    group: argparse._ActionsContainer = parser
    for setting in fields(Config):
        if setting.name in SECTIONS:
            group = parser.add_argument_group(SECTIONS[setting.name])
        if setting.name != OUTSIDE:
            _add_flag(group, setting)
    for name, method in LOADED.items():
        if method.options:
            group = parser.add_argument_group(f"options of {name}")
        for one in method.options:
            _add_own_flag(group, own_setting(name, one))
    return parser


def _add_own_flag(group: argparse._ActionsContainer, setting: Field) -> None:
    try:
        _add_flag(group, setting)
    except argparse.ArgumentError as error:
        raise ConfigError(
            f"{flag_of(setting.name)}: two options would have this flag; rename one of them"
        ) from error


def _add_flag(parser: argparse._ActionsContainer, setting: Field) -> None:
    flag = flag_of(setting.name)
    text = setting.metadata["help"]
    kind = setting.type.removesuffix(" | None")
    choices = setting.metadata["choices"]
    if "(default" not in text:
        switch = "on" if setting.default else "off"
        text += f" (default: {switch if kind == 'bool' else setting.default})"
    if kind == "bool":
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
    elif choices:
        parser.add_argument(flag, choices=choices, help=text)
    elif setting.name in PATHS:
        parser.add_argument(flag, type=expand, metavar="PATH", help=text)
    else:
        convert = {"int": int, "float": float, "str": str}[kind]
        parser.add_argument(flag, type=convert, metavar=kind.upper(), help=text)


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Read the command line; raises ConfigError, and SystemExit for --help."""
    argv = attach_layers(argv)
    in_file = _read_settings(argv)
    models = _load_models(argv, in_file)
    given = vars(build_parser().parse_args(argv))
    given |= models
    resume = given.pop("resume", False)
    overwrite = given.pop("overwrite", False)
    given.pop("config", None)
    outside = _take_own_options(given, in_file.get(OUTSIDE))
    config = Config(**(in_file | given | {OUTSIDE: outside}))
    check_config(config)
    check_names(config)
    return Arguments(config, resume, overwrite)


def _read_settings(argv: Sequence[str]) -> dict[str, Any]:
    """The settings of --config; {} without it."""
    file = _find_value(argv, "config")
    if not file:
        return {}
    try:
        content = read_json(Path(expand(file)), MAX_CONFIG_BYTES)
    except ValueError as error:
        raise ConfigError(f"--config: {error}") from error
    return settings_of(content, f"--config: {expand(file)}")


def _load_models(argv: Sequence[str], in_file: dict[str, Any]) -> dict[str, str]:
    """Load what --models names from outside; the setting `models`, if the command line has it."""
    text = _find_value(argv, "models")
    if text is not None:
        return {"models": load_methods(text)}
    load_methods(in_file.get("models") or "", files=False)
    return {}


def _find_value(argv: Sequence[str], name: str) -> str | None:
    """The value of a flag, before the flags of the methods that it loads are known."""
    parser = Parser(prog=program("train"), add_help=False, allow_abbrev=False)
    parser.add_argument(flag_of(name))
    known, _ = parser.parse_known_args(argv)
    return getattr(known, name)


def _take_own_options(given: dict[str, Any], recorded: Any) -> Json | None:
    """Remove the own options of methods from the flags; what a run records of these methods.

    An option without a flag has its value in --config, else its default.
    """
    records = {}
    for name, method in LOADED.items():
        values = recorded_options(recorded, name)
        for one in method.options:
            flag = own_setting(name, one).name
            if flag in given:
                values[str(one)] = given.pop(flag)
        chosen = {name: {"options": values}}
        records[name] = method.record(own_options(name, method.options, chosen))
    return records or None


def own_setting(name: str, one: Option) -> Field:
    """An option that a method has for itself, as a setting: the flag --NAME-OPTION."""
    default = one.default if one.kind is not bool else "on" if one.default else "off"
    text = f"{one.help} (default: {default})".replace("%", "%%")  # argparse formats it
    setting = option(text, one.default, one.low, one.high, choices=one.choices)
    setting.name = f"{name}_{one}"
    setting.type = one.kind.__name__ + (" | None" if one.default is None else "")
    if setting.name in Config.__dataclass_fields__:
        raise ConfigError(
            f"{name}: its option {str(one)!r} would have the flag of another setting, "
            f"{flag_of(setting.name)}; rename one"
        )
    return setting


def own_options(name: str, options: Iterable[str], recorded: Any) -> dict[str, Any]:
    """Values of the `Option`s of a method: as a run records them, else their defaults.

    Raises
    ------
    ConfigError
        A value of another type, out of its range, or of an option that the method does not have.
    """
    own = {str(one): one for one in options if isinstance(one, Option)}
    given = recorded_options(recorded, name)
    for key in given:
        if key not in own:
            raise ConfigError(
                f"{name}: expected options of {', '.join(own) or 'none'}, found {key!r:.80}"
            )
    values = {}
    for key, one in own.items():
        setting = own_setting(name, one)
        value = given.get(key, one.default)
        kinds = str(setting.type)
        expected = _violated_rule(setting, value) if _is_of_type(value, kinds) else kinds
        if expected is not None:
            raise ConfigError(f"{flag_of(setting.name)}: expected {expected}, found {value!r:.80}")
        values[key] = value
    return values


def _is_of_type(value: Any, kinds: str) -> bool:
    """Whether a value of JSON, where a float may be written as an int, is "float | None", say."""
    names = kinds.replace("float", "float | int").replace("None", "NoneType")
    return type(value).__name__ in names.split(" | ")


def settings_of(content: Any, where: str) -> dict[str, Any]:
    """Check names and types of settings from JSON: an object of them, or with them as "config"."""
    settings = content.get("config", content) if isinstance(content, dict) else content
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{where}: expected an object of settings, found {type(settings).__name__}"
        )
    types = Config.__annotations__  # texts, such as "float | None"
    for name, value in settings.items():
        if name not in types:
            raise ConfigError(
                f"{where}: expected settings of {program('train')} --help, found {name!r:.80}"
            )
        if not _is_of_type(value, types[name]):
            raise ConfigError(f"{where}: {name}: expected {types[name]}, found {value!r:.80}")
    if settings is content:
        return settings
    if "layers" not in content:
        _check_numbering(settings, where)
    return _settings_before() | settings  # of a run


def _settings_before() -> dict[str, Any]:
    """What runs did before there was a setting for it."""
    before = {setting.name: setting.metadata["before"] for setting in fields(Config)}
    return {name: value for name, value in before.items() if value is not None}


def _check_numbering(settings: dict[str, Any], where: str) -> None:
    """Refuse layers of a run of an older version, which counted them from 0."""
    named = [name for name in ("layers", "saplma_layer") if settings.get(name) is not None]
    if named:
        raise ConfigError(
            f"{where}: {' and '.join(map(flag_of, named))} of an older version, which counted "
            "layers from 0; now they are numbered as the model numbers them: train again with "
            "those numbers"
        )


def check_config(config: Config) -> None:
    """Raise ConfigError for a value out of range or form, or a run with nothing to train."""
    for setting in fields(config):
        value = getattr(config, setting.name)
        expected = _violated_rule(setting, value)
        if expected is not None:
            raise ConfigError(
                f"{flag_of(setting.name)}: expected {expected}, found {value!r:.80}; "
                f"see {program('train')} --help"
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
    check_split(config)
    if not config.detectors:
        raise ConfigError(
            "expected a detector to train, found all of them switched off; name one with --models, "
            "or leave out a --no-run- flag"
        )


def check_split(config: Config) -> None:
    """Raise ConfigError for settings of the split that contradict each other."""
    if config.hold_out is not None and config.split is None:
        raise ConfigError("--hold-out: expected --split COLUMN with it, found none")
    if config.hold_out is not None and (config.split or "").lower().endswith(".csv"):
        raise ConfigError(f"--hold-out: expected a column as --split, found {config.split!r:.80}")
    if config.split is not None and config.splits > 1:
        raise ConfigError(
            f"--splits: expected 1 with --split, which gives a single split, found {config.splits}"
        )


def _violated_rule(setting: Field, value: Any) -> str | None:
    """What is expected of a value and is not so; None if it may be used."""
    if value is None or setting.name == OUTSIDE:  # each method checks its own
        return None
    if not isinstance(value, str):
        return _violated_range(value, *setting.metadata["range"])
    if not value.isprintable():
        return "printable characters"
    pattern, example = FORMS.get(setting.name, (".*", ""))
    if not re.fullmatch(pattern, value, re.ASCII):
        return f"a form like {example}"
    choices = setting.metadata["choices"]
    return f"one of {', '.join(choices)}" if choices and value not in choices else None


def _violated_range(value: float, low: float, high: float, low_open: bool) -> str | None:
    """The range, if a number is not in it."""
    is_above = low < value if low_open else low <= value
    if is_above and value <= high and math.isfinite(value):
        return None
    expected = "a finite number"
    if low > -math.inf:
        expected = f"{'above' if low_open else 'at least'} {low:g}"
    if high < math.inf:
        expected += f" and at most {high:.10g}"
    return expected


def check_names(config: Config) -> None:
    """Raise ConfigError for an unknown detector, probe or baseline."""
    methods = [*DETECTORS, *PROBES]
    check_registered([*methods, *REFERENCES])
    others = [name for name in config.detectors if name not in LOADED]
    if others != [ALL]:
        for name in config.detectors:
            _check_name("--models: there is no", name, methods, ", or all")
    if config.on_top_of is not None:
        known = list(REFERENCES)
        _check_name("--on-top-of: there is no baseline", config.on_top_of, known)


def _check_name(problem: str, name: str, known: Iterable[str], more: str = "") -> None:
    if name not in known:
        raise ConfigError(
            f"{problem} {name!r:.80}{closest(name, known)}; choose from {', '.join(known)}{more}"
        )


def check_registered(names: Sequence[str]) -> None:
    """Raise ConfigError for ambiguous names of methods: of results, files and columns."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"two methods are called {name!r:.80}: register yours under a name of its own"
            )
        if name in RESERVED or not re.fullmatch(r"[A-Za-z]\w{0,50}", name, re.ASCII):
            raise ConfigError(
                f"a method is called {name!r:.80}: register it under a name of letters, digits and "
                f"'_' that is none of {', '.join(RESERVED)}"
            )


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def off_flag(detector: str) -> str:
    """The flag that leaves a detector out."""
    return flag_of(f"no_{SWITCHES[detector]}") if detector in SWITCHES else "--models"
