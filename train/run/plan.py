"""What a run trains, and on what: checked against the stores before the first file is written."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from numpy.typing import NDArray

from models import DETECTORS, PROBES, REFERENCES, find
from store import TraceStore
from store.errors import closest
from train.config import EACH, Config, flag_of, off_flag
from train.data.batches import TrainingData, open_stores
from train.data.metadata import check_fields
from train.data.questions import read_questions
from train.data.requirements import (
    check_columns,
    check_reader,
    check_threshold,
    columns_of,
    missing_columns,
    roles_of,
    trained_on,
)
from train.data.splits import (
    all_as_test,
    check_batch,
    filtered_rows,
    is_missing,
    label_column,
    read_second_labels,
    read_splits,
    read_values,
)
from train.data.token_labels import find_unusable
from train.errors import ConfigError, DataError, OneClassError
from train.outside import ALL

__all__ = ["Work", "open_data"]

# settings of labels of traces, which a method that learns from those of tokens cannot have
WITHOUT_TOKENS = ("mixup", "on_top_of")
MAX_LEFT_OUT = 50  # values, each of which is a training


@dataclass(frozen=True)
class Work:
    """What a run trains, and on what."""

    config: Config  # of the whole run
    names: list[str]  # detectors and probes
    splits: list[TrainingData]  # of each split, with the settings of a run of that split alone
    remarks: list[str] = field(default_factory=list)  # on values that are not held out

    @property
    def detectors(self) -> list[str]:
        return [name for name in self.names if name in DETECTORS]

    @property
    def probes(self) -> list[str]:
        return [name for name in self.names if name not in DETECTORS]


def open_data(config: Config, paths: Sequence[Path]) -> Work:
    """Open the store, or several as one, and split it, once for each seed of a split.

    Raises StoreError, ConfigError or DataError if the store or the settings do not allow the run;
    nothing has been written then.
    """
    store = open_stores(paths, config)
    unsplit = TrainingData(store, all_as_test(store), config)
    names = names_to_train(unsplit)
    for name in names:
        check_to_train(name, unsplit)
    if config.on_top_of is not None:
        if DETECTORS.keys().isdisjoint(names):
            raise ConfigError(
                "--on-top-of: expected a detector among --models, such as saplma, found "
                f"{', '.join(names)}"
            )
        check_reader(config.on_top_of, unsplit, "or leave out --on-top-of")
    check_replaced(names, unsplit)
    check_fields(store, config)
    needed = ("question_id", label_column(config))
    check_columns(unsplit, "the split", needed, "or add it to the store")
    parts, remarks = read_parts(store, config, names)
    data = parts[0]
    for part in parts if config.weights is not None else ():
        try:
            part.loader("train", [label_column(config)], shuffle=True)
        except ValueError as error:  # they do not fit the stores, or their training rows
            raise ConfigError(f"--{error}") from error
    if config.strata is not None:
        read_values(store, config.strata, "--strata", data.splits.test)
    read_second_labels(store, config.second_label, data.splits.test)
    return Work(config, names_that_learn(names, data), parts, remarks)


def names_to_train(data: TrainingData) -> list[str]:
    """Names of the detectors and probes to train; of `all` those whose columns the store has.

    Methods that are named beside `all` are among them whether the store has their columns or not.
    """
    named = list(dict.fromkeys(data.config.detectors))
    names = [name for name in named if name != ALL]
    if ALL in named:
        names += [
            name
            for name in [*DETECTORS, *PROBES]
            if name not in {*names, *data.config.left_out}
            and not missing_columns(data, [*columns_of(name, data), *trained_on(name)])
        ]
    return check_any(names, data)


def check_to_train(name: str, data: TrainingData) -> None:
    """Raise an error unless the store has what a method is trained on."""
    way_out = f"or leave it out with {off_flag(name)}"
    check_reader(name, data, way_out)
    check_columns(data, name, trained_on(name), way_out)
    if "attn_mean" in columns_of(name, data):
        check_threshold(data)


def check_replaced(names: Iterable[str], data: TrainingData) -> None:
    roles: set[str] = set()
    for name in [*names, *REFERENCES]:
        roles.update(roles_of(find(name)), columns_of(name, data))
    choices = sorted(roles - {"question_id"})
    for role in data.config.replaced:
        if role not in choices:
            raise ConfigError(
                "--columns: expected names that these detectors and baselines read, "
                f"{', '.join(choices)}, found {role!r:.80}{closest(role, choices)}"
            )


def read_parts(
    store: TraceStore, config: Config, names: Iterable[str]
) -> tuple[list[TrainingData], list[str]]:
    """The data of each split, and remarks on values without one."""
    asked, kept = read_questions(store, config), filtered_rows(store, config.where)
    if config.hold_out == EACH:  # the run on all values learns from the same traces as the others
        kept = kept[~is_missing(read_values(store, str(config.split), "--split", kept))]
    parts: list[TrainingData] = []
    remarks: list[str] = []
    for one in settings_of_splits(store, config, kept):
        try:
            splits = read_splits(store, one, asked, kept)
        except OneClassError as error:
            if config.hold_out != EACH or one.hold_out is None:
                raise
            value = f"{config.split} {one.hold_out!r:.80}"
            remarks.append(f"there is no run without {value}: {error.found}")
            continue
        if not DETECTORS.keys().isdisjoint(names):  # probes learn without batches
            check_batch(splits, store, config.batch_size)
        parts.append(TrainingData(store, splits, one))
    if config.hold_out == EACH and len(parts) == 1:
        raise DataError(
            f"{store.location}: --hold-out {EACH}: expected a value of column {config.split!r} "
            f"with traces of both classes, found none ({remarks[0]}); choose another column as "
            "--split"
        )
    return parts, remarks


def settings_of_splits(store: TraceStore, config: Config, kept: NDArray) -> list[Config]:
    """The settings of each split: one a seed; or one of all values, and one without each."""
    if config.hold_out != EACH:
        seeds = range(config.seed, config.seed + config.splits)
        return [replace(config, seed=seed, splits=1) for seed in seeds]
    values = read_values(store, str(config.split), "--split", kept)
    distinct = sorted({str(value) for value in values} - {""})
    if not 2 <= len(distinct) <= MAX_LEFT_OUT:
        raise DataError(
            f"{store.location}: --hold-out {EACH}: expected 2 to {MAX_LEFT_OUT} values of column "
            f"{config.split!r}, found {len(distinct)}; choose another column as --split"
        )
    every = replace(config, split=None, hold_out=None)
    return [every, *(replace(config, hold_out=value) for value in distinct)]


def names_that_learn(names: Sequence[str], data: TrainingData) -> list[str]:
    """The names without those that `all` took in and that cannot learn from labels of tokens here.

    Raises an error if one that was named cannot.
    """
    flags = [flag_of(setting) for setting in WITHOUT_TOKENS if getattr(data.config, setting)]
    of_tokens = any(find(name).targets for name in names)
    problem = find_unusable(data) if of_tokens else None
    found = []
    for name in names:
        if not find(name).targets or not (flags or problem):
            found.append(name)
        elif name in data.config.detectors:
            way_out = f"or leave it out with {off_flag(name)}"
            for flag in flags:
                raise ConfigError(
                    f"{flag}: {name} learns from labels of tokens, not of traces, and cannot have "
                    f"it; leave out {flag}, {way_out}"
                )
            raise DataError(f"{data.store.location}: {name}: {problem}, {way_out}")
    return check_any(found, data)


def check_any(names: list[str], data: TrainingData) -> list[str]:
    if not names:
        raise ConfigError(f"--models all: no detector fits the columns of {data.store.location}")
    return names
