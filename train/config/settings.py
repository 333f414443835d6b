"""The settings of a run: one flat dataclass.

Each field states its default, its help, its range or choices, and whether results depend on it, in
one place; flag, type and check follow from them. Options that a method has for itself are made in
the same way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import Field, dataclass, field
from pathlib import Path
from typing import Any, cast

from models import DETECTORS, PROBES, REFERENCES
from train.outside import Record

__all__ = [
    "EACH",
    "OUTSIDE",
    "PATHS",
    "SWITCHES",
    "Config",
    "flag_of",
    "off_flag",
    "option",
    "violated_rule",
]

OUTSIDE = "outside"  # a field without a flag
EACH = "each"  # value of the column, of --hold-out
STEPS = r"[1-9]\d{0,8}"
MINUTES = r"\d{1,6}(\.\d{1,6})?min"
WEIGHT = r"(\d{1,9}(\.\d{0,9})?|\.\d{1,9})"
NAMED = f"[^,=]+={WEIGHT}"
FORMS = {  # setting -> pattern of its text, example
    "columns": (r"\w+=\w+(,\w+=\w+)*", "hs_last=MY_STATES"),
    "weights": (f"{WEIGHT}(,{WEIGHT})*|{NAMED}(,{NAMED})*", "squad=0.7,nq=0.3"),
    "save_every": (f"{STEPS}|{MINUTES}|{STEPS},{MINUTES}", "500, 10min or 500,10min"),
}


def option(
    text: str,
    default: object = None,
    within: tuple[float, float] = (-math.inf, math.inf),
    *,
    low_open: bool = False,
    choices: tuple[str, ...] = (),
    free: bool = False,
) -> Any:
    """Describe a setting: its help, its default, and its range or choices.

    The range `within` has both ends, or the high one only if `low_open`. A `free` setting changes
    how a run gets to its results, never the results.
    """
    metadata = {"help": text, "range": (*within, low_open), "choices": choices, "free": free}
    return field(default=default, metadata=metadata)


def violated_rule(setting: Field, value: object) -> str | None:
    """What is expected of a value and is not so; None if it may be used."""
    if value is None or setting.name == OUTSIDE:  # each method checks its own
        return None
    if isinstance(value, list):  # of stores
        broken = [violated_rule(setting, one) for one in value]
        return next(filter(None, broken), None if value else "one or more")
    if not isinstance(value, str):
        return _violated_range(cast(float, value), *setting.metadata["range"])
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


# detector -> its field
SWITCHES = {"lstm_solo": "run_lstm", "gnn_det_lstm": "run_gnn_det", "gvae_lstm": "run_gvae"}


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def off_flag(detector: str) -> str:
    """The flag that leaves a detector out."""
    return flag_of(f"no_{SWITCHES[detector]}") if detector in SWITCHES else "--models"


# cheap, and often above the three; command lines with switches mean these alone, as they always did
DEFAULT_MODELS = (*SWITCHES, "saplma")
PATHS = ("store", "output_dir")
MAX_INT32 = 2**31 - 1
DEFAULT_RATE = 1e-3


def layer_of(reader: str, default: str = "chosen on validation") -> Any:
    """The number of the layer that some detectors read."""
    text = f"layer that {reader}, numbered as in the model (default: {default})"
    return option(text, None, (-65_535, 65_535))


@dataclass(frozen=True)
class Config:
    """All settings of a run, in the order of `--help`."""

    store: str | list[str] | None = option(  # noqa: RUF009 - as all fields
        "trace store to train on, or several, which are read as one; or their addresses (default: "
        "the embedded example, built once under data/)",
        free=True,
    )
    weights: str | None = option(
        "shares of several stores in each epoch of the detectors, in their order or by name, as "
        "squad=0.7,nq=0.3; an epoch ends when one store has had all of its training rows (default: "
        "every row of all stores once an epoch)"
    )
    replacement: bool = option(
        "with --weights: rows of a store come several times in an epoch rather than the epoch ends",
        False,
    )
    follow: bool = option(
        "each epoch of the detectors begins with what is committed then, also of a store that is "
        "still being built; val and test stay as they were at first",
        False,
    )
    output_dir: str | None = option(
        "directory of the results (default: runs/NAME_OF_STORE)", free=True
    )
    models: str | None = option(
        "detectors and probes to train, separated by commas, of "
        f"{', '.join([*DETECTORS, *PROBES])}; or all: those whose columns the store has; or "
        "FILE.py:CLASS, one of your own: the file is run (default: "
        f"{', '.join(DEFAULT_MODELS)}; with a --run- or --no-run- flag without the last)"
    )
    baselines: bool = option("fit the baselines and controls beside what is trained", True)
    only: str | None = option(
        "fit these detectors, probes, baselines and controls alone, separated by commas (default: "
        "what --models says, and all baselines and controls)"
    )
    on_top_of: str | None = option(
        "baseline whose log-odds are the base margin of the detectors: they learn what to add to "
        f"it; one of {', '.join(REFERENCES)} (default: none)"
    )
    seed: int = option("seed of the split, the weights and the order of rows", 0, (0, MAX_INT32))
    seeds: int = option(
        "number of trainings of each detector, with seeds from --seed on and one split", 3, (1, 100)
    )
    splits: int = option(
        "number of splits, drawn with the seeds from --seed on; detectors are trained on each, and "
        "tables have means over the splits",
        1,
        (1, 100),
    )
    split: str | None = option(
        "column of text with train, val and test (without val, it is drawn from train), or a CSV "
        "file with the columns trace_id or question_id, and split; with --hold-out a column of "
        "text or integers (default: by question and --seed)"
    )
    hold_out: str | None = option(
        "value of the column of --split whose traces are test; the others are train and val by "
        f"question; {EACH}: every value in turn, beside a run on all of them (default: none)"
    )
    where: str | None = option(
        "filter of the traces to train and test on, such as \"dataset == 'squad' and n_tokens < "
        '300"; see docs/filters.md (default: all)'
    )
    join_questions: bool = option(
        "take question ids of the same text and context, but for case, white space and "
        "punctuation, for one question",
        True,
    )
    near_duplicates: float | None = option(
        "also join those of similar texts: the Jaccard index of their pieces of 5 characters is at "
        "least this, such as 0.8; needs the extra duplicates (default: none)",
        None,
        (0.5, 1),
    )
    strata: str | None = option(
        "column of text or integers: AUROC among the test traces of one value (default: among "
        "those of similar score of the control that is hardest to beat)"
    )
    margin: float = option(
        "smallest difference of AUROC that is of interest: the verdict says if the best differ by "
        "more",
        0.01,
        (0, 1),
    )
    risk: float | None = option(
        "find a threshold that lets through at most this share of a question's hallucinations, on "
        "the average of new questions (default: none)",
        None,
        (0, 1),
        low_open=True,
    )
    label_noise: float | None = option(
        "share of the labels that are wrong, as those of a judge: how far AUROCs can move "
        "(default: none, or what --second-label says)",
        None,
        (0, 0.5),
    )
    second_label: str | None = option(
        "column of the labels of a second grader, 1, 0 or -1, or yes and no: how often "
        "both agree, and how far AUROCs can move (default: none)"
    )
    max_traces: int | None = option(
        "number of labelled traces to use, drawn by --seed (default: all)", None, (1, MAX_INT32)
    )
    score_threshold: float | None = option(
        "label a trace 1 if its score is below this (default: use the labels as stored)"
    )
    columns: str | None = option(
        "columns that replace others, as hs_last=MY_STATES,...; docs/columns.md says which columns "
        "a method reads (default: none)"
    )
    fields: str | None = option(
        "fields that the control metadata reads: all, none, or names, separated by commas; -NAME "
        "leaves one out, e.g. all,-task. One that is named is read, whatever it is called or says "
        "(default: all but what judges an answer or is of it)"
    )
    layers: str | None = option(
        "layers to read, numbered as in the model: 8,16,24 or 8-16, -1 for the last (default: all)"
    )

    epochs: int | None = option(
        "maximum number of passes over the training rows (default: 10, of more than 2,500 rows as "
        "many as make 25,000, at least 5)",
        None,
        (1, 1_000_000),
    )
    patience: int = option(
        "stop after this many epochs whose loss on validation was clearly worse than the best",
        10,
        (1, 1_000_000),
    )
    batch_size: int = option("traces per batch, of all processes together", 32, (1, 1_000_000))
    grad_accum: int = option(
        "batches whose gradients are added up for one optimizer step", 1, (1, 1_000_000)
    )
    lr: float | None = option(
        "learning rate; with one-cycle, its maximum (default: chosen on validation)",
        None,
        (0, 10),
        low_open=True,
    )
    tune: str = option(
        "search of each detector's scale of states, layer and learning rate, of those that are not "
        "given, by short trainings at the first seed, chosen on validation: small, or none",
        "small",
        choices=("none", "small"),
    )
    input_scale: str | None = option(
        "scale of the states that a detector reads: as stored (raw), each dimension by its spread "
        "over training traces (standard), each state by its own (norm) (default: chosen on "
        "validation)",
        choices=("raw", "standard", "norm"),
    )
    schedule: str = option(
        "schedule of the learning rate", "one-cycle", choices=("one-cycle", "constant")
    )
    focal_loss: bool = option("weigh easy rows less in the loss (focal loss, gamma 2)", False)
    label_smoothing: float = option(
        "train towards s/2 and 1 - s/2 instead of 0 and 1, with this s", 0.0, (0, 0.99)
    )
    class_weights: bool = option(
        "weigh both classes equally in the loss, however many rows they have", False
    )
    mixup: float = option(
        "A: train on mixtures of two traces, lambda drawn from Beta(A, A); 0: do not", 0.0, (0, 100)
    )

    precision: str = option(
        "floating-point precision of the training; auto: bf16-mixed on GPUs that have it, else 32",
        "auto",
        choices=("auto", "32", "bf16-mixed", "16-mixed"),
    )
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
        (1, 1024),
    )
    jobs: int | None = option(
        "trainings at once, each in a process of its own; 1 on a GPU, with several --threads, and "
        "under torchrun (default: 1 there, else as many as cores, at most 4)",
        None,
        (1, 1024),
        free=True,
    )
    num_workers: int = option("threads that read batches ahead", 0, (0, 1024), free=True)
    cache_size: int | None = option(
        "size in bytes of the cache of decoded chunks of compressed columns (default: 64 MiB)",
        None,
        (0, 2**60),
        free=True,
    )
    image_cache: int = option(
        "size in bytes, of all processes together, of the cache in memory of the pooled images of "
        "act_conv and act_vit, which later epochs read instead of the store; 0: none",
        4 * 2**30,
        (0, 2**60),
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
        "keep the edges of an attention graph whose attention is at least this", 0.0, (0, 1)
    )
    top_k: int | None = option(
        "strongest edges of each token to keep in an attention graph, 0 for all (default: 8 with "
        "--aggregation attention, all with sum)",
        None,
        (0, MAX_INT32),
    )
    readout: str = option(
        "tokens that gnn_det_lstm and gvae_lstm read from a graph: the last one, with its state as "
        "it is or without, the mean of the answer's (of all, where the prompt's length is not "
        "known), or the mean of all",
        "last+skip",
        choices=("last+skip", "last", "answer", "mean"),
    )
    aggregation: str = option(
        "how the graph encoder adds messages: means weighted by attention, of normalised states, "
        "or sums, of states as stored",
        "attention",
        choices=("attention", "sum"),
    )
    gnn_hidden: int = option(
        "width of the graph encoder of gnn_det_lstm and gvae_lstm", 128, (1, 65_536)
    )
    latent_dim: int = option("width of the latent of gvae_lstm", 128, (1, 65_536))
    lstm_hidden: int = option("width of each direction of the LSTM", 128, (1, 65_536))
    num_lstm_layers: int = option("number of layers of the LSTM", 2, (1, 64))
    dropout: float = option("dropout probability (LSTM, classifier)", 0.3, (0, 0.99))
    kl_weight: float = option("weight of the KL term of gvae_lstm", 0.01, (0, math.inf))
    saplma_layer: int | None = layer_of("saplma reads")
    token_layer: int | None = layer_of("token_probe reads")
    halunet_layer: int | None = layer_of("halunet reads")
    sequence_layer: int | None = layer_of(
        "state_sequence reads with the two beside it", "three layers in the middle of the depth"
    )
    charm_layer: int | None = layer_of("charm and charm_edges read")
    charm_threshold: float = option(
        "keep the edges of charm and charm_edges where a head attends with at least this",
        0.05,
        (0, 1),
    )
    image_layers: int = option(
        "layers of the image that act_conv and act_vit pool a trace to", 8, (1, 1024)
    )
    image_tokens: int = option("tokens of that image", 32, (1, 65_536))
    image_width: int = option("channels of each of its cells after the projection", 64, (1, 65_536))
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
        (0, 1),
    )

    # of each method from outside: where it came from, and the values of its own options
    outside: dict[str, Record] = field(default_factory=dict, metadata={"free": True})

    @property
    def stores(self) -> list[Path]:
        """Paths or addresses of what to train on; none for the embedded example."""
        given = self.store if isinstance(self.store, list) else [self.store]
        return [Path(one) for one in given if one is not None]

    @property
    def shares(self) -> dict[str, float] | list[float] | None:
        """The weights of the stores, by name or in their order."""
        if self.weights is None:
            return None
        pairs = [one.rpartition("=")[::2] for one in self.weights.split(",")]
        by_name = {name: float(weight) for name, weight in pairs}
        return by_name if all(by_name) else [float(weight) for _, weight in pairs]

    @property
    def detectors(self) -> list[str]:
        """Names of what to train: `models`, changed by the --run- flags; or ["all", ...]."""
        if self.only is not None:
            return [name for name in self.only.split(",") if name and name not in REFERENCES]
        is_switched = any(getattr(self, switch) is not None for switch in SWITCHES.values())
        named: Sequence[str] = tuple(SWITCHES) if is_switched else DEFAULT_MODELS
        if self.models is not None:
            named = self.models.split(",")
        names = [name for name in named if name]
        for name, switch in SWITCHES.items():
            if getattr(self, switch) and name not in names:
                names.append(name)
        return [name for name in names if name not in self.left_out]

    @property
    def references(self) -> list[str]:
        """Names of the baselines and controls to fit; what detectors stand on is among them."""
        chosen = list(REFERENCES) if self.baselines else []
        if self.only is not None:
            chosen = self.only.split(",")
        return [name for name in REFERENCES if name in (*chosen, self.on_top_of)]

    @property
    def left_out(self) -> list[str]:
        """Names that a --no-run- flag removes."""
        return [name for name, switch in SWITCHES.items() if getattr(self, switch) is False]

    @property
    def rate(self) -> float:
        """The learning rate, given or by default."""
        return DEFAULT_RATE if self.lr is None else self.lr

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
