"""The results of a run: the records that results.json holds.

They are made once, by `train.evaluate`; written, read back, compared and shown as they are here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import numpy as np

from store.read.joined.joined_store import JOINED
from train.files import Json
from train.records import Range

__all__ = [
    "Choice",
    "Choices",
    "Contrast",
    "Costs",
    "Counts",
    "Cut",
    "Entries",
    "Entry",
    "Epoch",
    "Explained",
    "Facts",
    "Findings",
    "Interval",
    "LabelNoise",
    "LeftOut",
    "Metrics",
    "NoisyArea",
    "PairedTest",
    "Results",
    "SplitCounts",
    "SplitsSummary",
    "StoreRecord",
    "StrataRecord",
    "TokenCounts",
    "TokenMetrics",
    "TrainingFacts",
    "Transfer",
    "Verdict",
    "best_on_validation",
    "mean_record",
]

Record = TypeVar("Record")
Key = TypeVar("Key")
Interval = list[float]  # low and high end, of 95%
Share = Annotated[float, Range(0, 1, "a number from 0 to 1")]
Seed = Annotated[int, Range(low=0, expected="an integer of at least 0")]


@dataclass
class Metrics:
    """Metrics of one method on one split, means over its trainings.

    Thresholds and temperature are those of the mean score; the mean over splits has none.
    Of several trainings with the AUROC of each; of several splits with that of each split. The
    intervals of F1, MCC and accuracy, and the AUROC on the run's own test split, are of a run that
    is tested on another store. Recall is at 1, 5 and 10% false positives. A temperature
    and isotonic regression are fitted on validation, with ECE and Brier score after them; the
    threshold below which answers are let through, with its risk, on test.
    """

    auroc: Share
    auprc: float | None = None
    base_rate: float | None = None
    ece: float | None = None
    confidence_ece: float | None = None
    brier: float | None = None
    prr: float | None = None
    prr_half: float | None = None  # with at most half of the answers left out
    recall_at_1: float | None = None
    recall_at_5: float | None = None
    recall_at_10: float | None = None
    fpr_at_95: float | None = None
    f1: float | None = None
    mcc: float | None = None
    accuracy: float | None = None
    aurc: float | None = None
    threshold: float | None = None
    auroc_runs: list[float] | None = None
    auroc_splits: list[float] | None = None
    auroc_sd: float | None = None
    auroc_ci: Interval | None = None
    auroc_within: float | None = None
    f1_ci: Interval | None = None
    mcc_ci: Interval | None = None
    accuracy_ci: Interval | None = None
    auprc_ci: Interval | None = None
    ece_ci: Interval | None = None
    brier_ci: Interval | None = None
    recall_at_1_ci: Interval | None = None
    recall_at_5_ci: Interval | None = None
    recall_at_10_ci: Interval | None = None
    fpr_at_95_ci: Interval | None = None
    temperature: float | None = None
    temperature_ece: float | None = None
    temperature_brier: float | None = None
    isotonic_ece: float | None = None
    isotonic_brier: float | None = None
    risk: float | None = None
    risk_threshold: float | None = None
    answered: float | None = None
    wrong_answered: float | None = None
    own_test_auroc: float | None = None

    @property
    def ranks(self) -> bool:
        """Whether the scores rank rows at all; constant ones do not, like those of `majority`."""
        return self.auroc_ci != [0.5, 0.5]

    @property
    def beats_chance(self) -> bool:
        """Whether the interval of the AUROC lies above .5."""
        return self.auroc_ci is None or (self.auroc_ci[0] or 0) > 0.5


@dataclass
class TokenMetrics:
    """Metrics of the scores of tokens on test, or why there are none."""

    val_auroc: float | None = None
    auroc: float | None = None
    auprc: float | None = None
    base_rate: float | None = None
    f1: float | None = None
    span_f1: float | None = None
    iou: float | None = None
    threshold: float | None = None
    trace_auroc: float | None = None
    auroc_ci: Interval | None = None
    auprc_ci: Interval | None = None
    tokens_without_score: int | None = None
    left_out: str | None = None


@dataclass(frozen=True)
class Epoch:
    """One pass over the training rows: its number from 0, mean loss, and what validation says.

    `val_loss` is the mean of `refined_losses`, in nats.
    """

    epoch: int
    loss: float
    val_auroc: float
    val_loss: float = np.inf


@dataclass
class Choice:
    """A setting of a training: its value, and whether validation, the user or nobody chose it.

    Of validation with the values that were tried, and the loss of each.
    """

    value: Any  # a number or a text
    by: str  # "validation", "user" or "default"
    tried: list[Any] = field(default_factory=list)
    val_loss: list[float | None] = field(default_factory=list)  # None: not a finite number


Choices = dict[str, Choice]  # by setting


@dataclass
class TrainingFacts:
    """One training of a detector."""

    seed: int
    checkpoint: str  # the name of its file
    history: list[Epoch]
    seconds: float  # those of the search before it, if any, included
    wait_seconds: float  # of waiting for batches
    processes: int
    ms_per_trace: float
    best_epoch: int = 0  # whose weights were kept; -1: those before the first
    # on top of a baseline: the AUROC on validation before the first epoch
    start_val_auroc: float | None = None
    settings: dict[str, Choice] = field(default_factory=dict)
    layer: int | None = None
    warning: str | None = None
    last_rows: int | None = None  # training traces of the last epoch, of a store that is followed

    @property
    def least(self) -> Epoch:
        """The epoch of the least loss on validation."""
        return min(self.history, key=lambda epoch: epoch.val_loss)

    @property
    def kept_start(self) -> bool:
        """Whether it ended with the weights that it began with."""
        return self.best_epoch < 0


@dataclass(kw_only=True)
class Costs:
    """What a method costs; of several trainings or splits the means."""

    parameters: float  # number of trained ones
    seconds: float
    ms_per_trace: float | None = None  # milliseconds to score a trace, reading included
    bytes_per_trace: float | None = None  # that are read to score a trace
    also_needs: str | None = None  # further generations that its columns were made from


@dataclass(kw_only=True)
class Facts(Costs):
    """What is known of a method besides its scores."""

    runs: list[TrainingFacts] | None = None
    # what validation chose for a probe, and the AUROC of each layer
    C: float | None = None
    traces_with_missing_numbers: int | None = None  # traces that lack a number, which is imputed
    alternative: str | None = None
    layer: int | None = None
    layers: list[int] | None = None
    layer_val_auroc: list[float | None] | None = None
    control: bool = False
    # of the control of fields: field -> AUROC of it alone on validation, best first
    fields: dict[str, float] | None = None

    @property
    def costs(self) -> Costs:
        return Costs(**{one.name: getattr(self, one.name) for one in fields(Costs)})


@dataclass(kw_only=True)
class Entry(Facts):
    """A method in the results."""

    val: Metrics
    test: Metrics
    tokens: TokenMetrics | None = None


Entries = dict[str, Entry]  # by name


def best_on_validation(entries: Entries) -> str:
    """The name of the best AUROC on validation, of equal ones the first."""
    return max(entries, key=lambda name: entries[name].val.auroc)


@dataclass(kw_only=True)
class PairedTest(Generic[Key]):
    """AUROC of `a` less that of `b`, of one split or the mean over several, and its tests.

    `p_bootstrap`, which is never below `p_bootstrap_least`, and `p_delong` are of one split; `p` is
    of several, with the `differences` in each. `p_holm` is corrected for the number of pairs.
    """

    a: Key
    b: Key
    difference: float
    ci: Interval
    p_bootstrap: float | None = None
    p_bootstrap_least: float | None = None
    p_delong: float | None = None
    p: float | None = None
    p_holm: float | None = None
    differences: list[float] | None = None
    control: bool = False  # whether b is one
    what: str | None = None
    # of the difference, were questions drawn and methods trained anew; None where it is unknown
    error: float | None = None
    df: float | None = None  # degrees of freedom of its t distribution


@dataclass
class Contrast:
    """AUROC of a detector less that of a rival, and what is found of it.

    The finding is "better" or "worse" by more than the margin, "equal" for a difference that is
    less, or "undecided".
    """

    rival: str
    difference: float
    ci: Interval
    p: float  # that a finding of no effect would have; Holm's for baselines
    finding: str
    # the least true difference whose interval is without 0 with probability .8
    detectable: float | None = None


@dataclass
class Verdict:
    """The detector that is best on validation against the baseline that is, and a control.

    The control is the one that is hardest to beat on test; None without controls.
    """

    detector: str
    margin: float  # the smallest difference of AUROC that is of interest
    baseline: Contrast
    control: Contrast | None


@dataclass
class Counts:
    """Of a split."""

    rows: int
    questions: int
    hallucinations: int

    @property
    def fewest(self) -> int:
        """The least of its questions, hallucinations and right answers."""
        return min(self.hallucinations, self.rows - self.hallucinations, self.questions)


@dataclass
class SplitCounts:
    """The splits: what they follow from, and their counts; `outside` are in none of them.

    `joined` are the question ids that ask what an earlier one does, `without_text` the traces of
    test whose question has no text.
    """

    seed: Seed
    by: str
    outside: int
    train: Counts
    val: Counts
    test: Counts
    unlabelled: int
    joined: int = 0
    without_text: int = 0

    @property
    def parts(self) -> dict[str, Counts]:
        return {"train": self.train, "val": self.val, "test": self.test}

    @property
    def n_rows(self) -> int:
        return sum(counts.rows for counts in self.parts.values())


@dataclass
class StoreRecord:
    """What identifies a state of a store, and the models that its traces are of.

    `uuids` has that of each of `paths`; several that are read as one have another `uuid`.
    Of several stores with ids in common `id_prefixes` has what the ids of each begin with, in the
    order of `paths`, and its uuid.
    """

    path: str
    uuid: str
    generation: int
    rows: int
    origins: list[Json]
    layers_recorded: bool
    id_prefixes: dict[str, str] = field(default_factory=dict)
    uuids: list[str] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """Those of the stores that were read as one."""
        return self.path.split(JOINED)

    @property
    def name(self) -> str:
        """What the stores are called, without where they are."""
        return JOINED.join(Path(one).name for one in self.paths)

    def find(self, trace_id: str) -> tuple[str, str] | None:
        """The path of the store that has a trace, and its id there; None: one of several has it."""
        prefixes = list(self.id_prefixes) if len(self.paths) > 1 else [""]
        for prefix, path in zip(prefixes, self.paths, strict=False):
            if trace_id.startswith(prefix):
                return path, trace_id.removeprefix(prefix)
        return None


@dataclass
class StrataRecord:
    """What the strata of test are of, and the pairs of unlike labels within them."""

    by: str
    control: str | None
    strata: float
    strata_with_both_classes: float
    pairs: float
    share_of_pairs: float


@dataclass
class Explained:
    """Rank correlation of each detector with the control that is hardest to beat."""

    control: str | None
    rank_correlation: dict[str, float | None]


@dataclass
class Cut:
    """AUROC on test of each method where a score below `threshold` is a hallucination."""

    threshold: float
    rows: int
    hallucinations: int
    auroc: dict[str, float | None]


@dataclass
class NoisyArea:
    """AUROC on test if some labels are wrong.

    `corrected` is that for true labels if errors do not depend on the score; `low` and `high` are
    the least and the largest, whichever labels are wrong, of several trainings the means of those;
    `second` is that for the second grader's.
    """

    corrected: float | None
    low: float | None
    high: float | None
    second: float | None = None


@dataclass
class LabelNoise:
    """The share of wrong labels; of two graders, on the rows of test that both labelled."""

    error: float
    auroc: dict[str, NoisyArea]
    rows: int | None = None
    agreement: float | None = None
    kappa: float | None = None


@dataclass
class TokenCounts:
    """Labelled tokens of a split."""

    traces: int
    tokens: int
    hallucinated: int
    spans: int


@dataclass
class Transfer:
    """AUROC of a method that never saw a value; in domain, and the difference on the same traces,
    which are None where these have one class.
    """

    auroc: float
    auroc_ci: Interval | None
    in_domain_auroc: float | None = None
    in_domain_auroc_ci: Interval | None = None
    difference: float | None = None
    difference_ci: Interval | None = None


@dataclass
class LeftOut:
    """A value that training left out: its traces whose questions training has not seen, and how
    many of them are tested in domain.
    """

    value: str
    test: Counts
    rows_in_domain: int
    methods: dict[str, Transfer]  # by name


@dataclass
class Findings:
    """What was found on one split, or over several.

    `strata` and `explained` are None where there is no control.
    """

    models: Entries
    baselines: Entries
    comparisons: list[PairedTest[str]]
    verdict: Verdict | None
    strata: StrataRecord | None
    explained: Explained | None
    remarks: list[str]

    def __getitem__(self, name: str) -> Entry:
        """A detector, probe, baseline or control by its name."""
        return self.entries[name]

    @property
    def entries(self) -> Entries:
        return self.models | self.baselines

    @property
    def best(self) -> str:
        return self.best_among(self.entries)

    def best_among(self, names: Collection[str]) -> str:
        """The best on validation: a detector or probe; without them a baseline; a control last."""
        entries = {name: entry for name, entry in self.entries.items() if name in names}
        models = {name: entry for name, entry in entries.items() if name in self.models}
        proper = {name: entry for name, entry in entries.items() if not entry.control}
        return best_on_validation(models or proper or entries)


@dataclass
class SplitsSummary(Findings):
    """Means over several splits, and their results."""

    seeds: list[int]
    test_over_train: float
    runs: list[Results]


@dataclass
class Results(Findings):
    """A split, or the first of several with the summary of all of them."""

    run: str  # the id that run.json and the checkpoints have
    split: SplitCounts
    store: StoreRecord
    layers: dict[str, list[int]]  # column -> the layers that were read, as the model numbers them
    config: Json
    machine: Json = field(default_factory=dict)
    label_sensitivity: list[Cut] | None = None
    label_noise: LabelNoise | None = None
    tokens: dict[str, TokenCounts] | None = None
    left_out: dict[str, str] | None = None  # baseline or control -> why it could not be fitted
    splits: SplitsSummary | None = None
    transfer: list[LeftOut] | None = None  # of each value of --hold-out each

    @property
    def shown(self) -> Results:
        """The results; of several splits with their means in place of what the first one has."""
        if self.splits is None:
            return self
        means = {one.name: getattr(self.splits, one.name) for one in fields(Findings)}
        return replace(self, **means)

    @property
    def split_seeds(self) -> list[int]:
        """The seeds of the splits, if there are several."""
        return [] if self.splits is None else self.splits.seeds

    @property
    def of_each_split(self) -> list[Results]:
        return [self] if self.splits is None else self.splits.runs

    @property
    def smallest_split(self) -> SplitCounts:
        """Of several splits the one whose test is the smallest; verdicts rest on all of them."""
        return min((one.split for one in self.of_each_split), key=lambda one: one.test.fewest)


def mean_record(records: Sequence[Record]) -> Record:
    """The mean of each number that all records have; what is a text is the first's.

    A field that one of them lacks, or that is a list, is None.
    """
    changed: dict[str, float | None] = {}
    for one in fields(records[0]):  # type: ignore[arg-type]  # it is a dataclass
        values = [getattr(record, one.name) for record in records]
        if all(type(value) in (int, float) for value in values):
            changed[one.name] = float(np.mean(values))
        elif not isinstance(values[0], str):
            changed[one.name] = None
    return replace(records[0], **changed)  # type: ignore[type-var]
