"""One search for every trained detector: the layer, the scale of states, the learning rate.

What a detector can be given follows from its options, whatever it is. Each setting in turn is tried
with the best of those before it, by short trainings on few traces: the same budget for each. Only
validation decides, and nothing that the user gave is searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from models import DETECTORS
from models.standardise import SCALES
from train.config import Config
from train.data.batches import TrainingData
from train.evaluate.results import Choice, Choices
from train.run.detectors import build_detector, layer_settings, number_of_layer, numbers_of_layers

__all__ = ["describe_settings", "for_trials", "search", "values_of"]

N_TRACES = 1024  # of a trial, in train and in validation at most
EPOCHS = 3
N_LAYERS = 8  # evenly spread; then those halfway to the neighbours of the best
FACTORS = (1 / 3, 1, 3)  # of the learning rate

Try = Callable[[dict[str, Any]], float]  # settings -> loss on validation


def searched_settings(name: str) -> list[str]:
    """The settings of a detector that are searched, in this order."""
    options = DETECTORS[name].options
    found = [setting for setting in (*layer_settings(), "input_scale") if setting in options]
    return [*found, "lr"]


def search(name: str, data: TrainingData, try_out: Try) -> Choices:
    """Choose the settings that are not given, each by the loss of short trainings with it.

    The layer is chosen on standardised states, on which any layer can be learned from at once.
    """
    open_ones = open_settings(name, data.config)
    settings: dict[str, Any] = {"input_scale": "standard"} if "input_scale" in open_ones else {}
    losses: dict[tuple[Any, ...], float] = {}  # of all trials; some belong to two settings
    chosen = {}
    for setting in open_ones:
        found: dict[Any, float] = {}
        for values in candidates(name, setting, data, found):
            for value in values:
                tried = {"lr": data.config.rate, **settings, setting: value}
                key = tuple(sorted(tried.items()))
                if key not in losses:
                    losses[key] = try_out(tried)
                found[value] = losses[key]
        settings[setting] = min(found, key=lambda value: found[value])
        if len(found) > 1:
            known = [loss if math.isfinite(loss) else None for loss in found.values()]
            chosen[setting] = Choice(settings[setting], "validation", list(found), known)
    return chosen


def open_settings(name: str, config: Config) -> list[str]:
    return [one for one in searched_settings(name) if getattr(config, one) is None]


def candidates(
    name: str, setting: str, data: TrainingData, found: dict[Any, float]
) -> Iterator[list[Any]]:
    """Values to try, some at a time; `found` has the losses of those before."""
    if setting == "input_scale":
        yield list(SCALES)
    elif setting == "lr":
        yield [factor * data.config.rate for factor in FACTORS]
    else:
        numbers = numbers_of_layers(DETECTORS[name], data)
        spread = np.linspace(0, len(numbers) - 1, min(len(numbers), N_LAYERS)).astype(int)
        yield [numbers[i] for i in spread]
        best = int(np.argmin([found[numbers[i]] for i in spread]))
        between = {int(spread[best] + i) // 2 for i in spread[max(0, best - 1) : best + 2]}
        yield [numbers[i] for i in sorted(between)]


def for_trials(data: TrainingData) -> TrainingData:
    """The same data with few traces, drawn by the seed, and few epochs."""
    rng = np.random.default_rng([data.config.seed, N_TRACES])
    splits = data.splits
    few = {
        split: np.sort(rng.permutation(splits.rows(split))[:N_TRACES]) for split in ("train", "val")
    }
    epochs = min(EPOCHS, data.config.epochs)
    return replace(data, splits=replace(splits, **few)).with_settings(epochs=epochs)


def describe_settings(name: str, data: TrainingData, chosen: Choices) -> Choices:
    """The settings of a training by name: chosen, given by the user, or as they always are.

    `data` has the settings of the user.
    """
    layer = number_of_layer(build_detector(name, data), data)
    fixed = {"input_scale": DETECTORS[name].default_scale, "lr": data.config.rate}
    described = {} if layer is None else {"layer": Choice(layer, "default")}
    for setting in searched_settings(name):
        kind = "layer" if setting in layer_settings() else setting
        given = getattr(data.config, setting)
        default = described.pop(kind, None) or Choice(fixed[kind], "default")
        described[setting] = default if given is None else Choice(given, "user")
    return described | chosen


def values_of(settings: Choices) -> dict[str, Any]:
    """The settings that validation chose, by name."""
    return {name: one.value for name, one in settings.items() if one.by == "validation"}
