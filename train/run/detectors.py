"""Untrained detectors and their losses, built from settings and a store; what methods read."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields

import numpy as np

from models import DETECTORS, Detector
from models.losses import ClassificationLoss
from store import StoreError
from store.traces.layers import choose_layers
from store.transform.samples.names import NEEDS, NLI, STATES
from train.config import Config, flag_of, settings_of
from train.data.batches import TrainingData
from train.data.requirements import (
    columns_of,
    optional_to_score,
    present_columns,
    reader_of,
    settings_for,
)
from train.data.token_labels import read_token_labels
from train.errors import ConfigError
from train.evaluate.metrics import Labels

__all__ = [
    "also_needed",
    "build_criterion",
    "build_detector",
    "bytes_of_answers",
    "hidden_size",
    "layer_settings",
    "number_of_layer",
    "numbers_of_layers",
    "read_layers",
    "roles_read",
    "set_loss",
    "settings_of_training",
]

LOSS_SETTINGS = ("focal_loss", "label_smoothing", "class_weights")


def build_detector(name: str, data: TrainingData) -> Detector:
    """Build an untrained detector; raises ConfigError for settings that it cannot take."""
    kind = DETECTORS[name]
    settings = settings_for(name, data.config)
    unknown = [option for option in kind.options if option not in settings]
    if unknown:
        raise ConfigError(
            f"{name}: there is no setting {unknown[0]!r:.80} for its option of that name; add a "
            "field to Config in train/config/settings.py, or declare it in `options` as a "
            "models.Option, with a default"
        )
    settings |= layer_positions(name, data)
    columns = columns_of(name, data)
    try:
        detector = kind.build(data.item_shapes(columns), settings)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    detector.columns = columns
    asked = [flag_of(setting) for setting in LOSS_SETTINGS if getattr(data.config, setting)]
    if asked and not detector.has_plain_loss:
        raise ConfigError(
            f"{name}: expected no {' or '.join(asked)} with a loss of its own, "
            f"{type(detector.criterion).__name__}; leave out the flag, or train the others "
            "without this detector"
        )
    detector.recompute = data.config.use_gradient_checkpointing
    return detector


def layer_positions(name: str, data: TrainingData) -> dict[str, int]:
    """Setting that names a layer -> position of that layer among those that a detector reads."""
    kind = DETECTORS[name]
    positions = {}
    for setting in layer_settings():
        number = getattr(data.config, setting)
        if number is None or setting not in kind.options:
            continue
        numbers = numbers_of_layers(kind, data)
        try:
            (positions[setting],) = choose_layers(str(number), numbers, flag_of(setting))
        except StoreError as error:
            raise ConfigError(f"{name}: {error}") from error
    return positions


def settings_of_training(config: Mapping[str, object]) -> dict[str, object]:
    """What a finished training was built with, by setting, from the settings in its checkpoint."""
    names = ("input_scale", *layer_settings())
    return settings_of({name: config.get(name) for name in names}, "checkpoint")


def layer_settings() -> list[str]:
    """Names of the settings that are the number of a layer."""
    return [setting.name for setting in fields(Config) if setting.name.endswith("_layer")]


def numbers_of_layers(kind: type[Detector], data: TrainingData) -> list[int]:
    """The layers that a detector is given, in the order of its first column."""
    role = kind.columns[0]
    return data.layers_or_count(role, (*data.item_shape(role), 1)[0])


def number_of_layer(detector: Detector, data: TrainingData) -> int | None:
    """The layer that a detector reads, as the model numbers it; None unless it reads just one."""
    if detector.layer_read is None:
        return None
    return numbers_of_layers(type(detector), data)[detector.layer_read]


def read_layers(names: Iterable[str], data: TrainingData) -> dict[str, list[int]]:
    """Column, as detectors call it -> its layers that are read, as the model numbers them."""
    roles = dict.fromkeys(role for name in names for role in roles_read(name, data))
    numbers = {role: data.layer_numbers(role) for role in roles}
    return {role: layers for role, layers in numbers.items() if layers}


def roles_read(name: str, data: TrainingData) -> list[str]:
    """The columns that a method scores from, those among them that may be missing."""
    optional = optional_to_score(reader_of(name, data))
    return [*columns_of(name, data), *present_columns(data, optional)]


def hidden_size(name: str, data: TrainingData) -> int:
    """Width d of the states that a detector reads; 1 where it reads single numbers."""
    return (1, *data.item_shape(DETECTORS[name].columns[0]))[-1]


def set_loss(detector: Detector, data: TrainingData) -> None:
    """Give a detector the loss that the settings ask for, unless it has one of its own.

    Class weights make the labels of each class in train add up to half of them. Labels are those of
    traces, or of tokens if the detector learns from those.
    """
    labels = data.splits.labels_of("train")
    if detector.targets:
        n_traces = len(labels)
        tokens = read_token_labels(data, "train")
        labels = tokens.labels[tokens.is_labelled].astype(np.int64)
        detector.labels_per_trace = len(labels) / n_traces
    if detector.has_plain_loss:
        detector.criterion = build_criterion(data.config, labels)


def build_criterion(config: Config, labels: Labels) -> ClassificationLoss:
    """The loss that the settings ask for, for training labels (n,) of 1 and 0."""
    weights = None
    if config.class_weights:
        base_rate = float(labels.mean())
        weights = (0.5 / (1 - base_rate), 0.5 / base_rate)
    return ClassificationLoss(config.focal_loss, config.label_smoothing, weights)


def bytes_of_answers(name: str, data: TrainingData) -> float:
    """Mean bytes, decoded, of what the scores of samples that a method reads were made from.

    They are of a trace of test: of all answers to its question, offsets not counted.
    """
    needed = [one for role in scores_of_samples(name, data) for one in NEEDS[role]]
    made_from = present_columns(data, needed)
    return answers_per_question(data) * sum(column_bytes(role, data) for role in made_from)


def also_needed(name: str, data: TrainingData) -> str | None:
    """What else the columns that a method reads were made from; None where nothing is."""
    scores = scores_of_samples(name, data)
    if not scores:
        return None
    nli = ", a classifier (NLI)" if any(role in NLI for role in scores) else ""
    return f"{answers_per_question(data):.3g} answers a question{nli}"


def scores_of_samples(name: str, data: TrainingData) -> list[str]:
    """The columns of this kind that a method reads to score, optional ones among them."""
    return [role for role in roles_read(name, data) if role in NEEDS]


def column_bytes(role: str, data: TrainingData) -> float:
    """Mean bytes of a column that scores of samples are made from, in a trace of test; of states
    those of one layer."""
    name = data.column(role)
    column = data.store.schema.columns[name]
    shape = data.item_shape(role)
    if role == STATES:
        shape = (1, *shape[1:])
    n_items = float(data.store.lengths(name)[data.splits.test].mean())
    return n_items * column.storage_dtype.itemsize * math.prod(shape)


def answers_per_question(data: TrainingData) -> float:
    """Mean number of answers in the store to the question of a trace of test."""
    return float(np.bincount(data.splits.questions)[data.splits.questions[data.splits.test]].mean())
