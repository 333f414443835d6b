"""One search for every trained detector: the layer, the scale of states, the learning rate.

What a detector can be given follows from its options, whatever it is. First each layer is tried on
standardised states, on which any layer can be learned from at once; then each scale with each
rate. Trials are short trainings on few traces, longer ones only where the short ones learn nothing:
the same budget for each detector. Only validation decides, and nothing that the user gave is
searched.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from models import DETECTORS
from models.standardise import SCALES
from train.data.batches import TrainingData
from train.evaluate.results import Choice, Choices, Epoch
from train.run.detectors import build_detector, layer_settings, number_of_layer, numbers_of_layers

__all__ = ["Settings", "describe_settings", "for_trials", "search", "values_of"]

N_TRACES = 1024  # of a trial, in train and in validation at most
EPOCHS = (3, 10)  # of a trial; the second where no trial with the first reaches
LEARNED = 0.65  # the AUROC on validation of a detector that has begun to learn
N_LAYERS = 8  # evenly spread; then those halfway to the neighbours of the best
FACTORS = (1 / 3, 1, 3)  # of the learning rate

Settings = dict[str, object]
Try = Callable[[Settings, int], Epoch]  # settings, epochs -> the best epoch


class Trials:
    """Trials of so many epochs, each made once, and their losses."""

    def __init__(self, try_out: Try, epochs: int) -> None:
        self.try_out = try_out
        self.epochs = epochs
        self.made: list[tuple[Settings, Epoch]] = []

    def make(self, settings: Settings) -> None:
        if settings not in [made for made, _ in self.made]:
            self.made.append((settings, self.try_out(settings, self.epochs)))

    def choose(self, setting: str, values: Sequence[object]) -> Choice:
        """The value whose best trial has the least loss, of equal ones the first."""
        losses = [
            min(epoch.val_loss for tried, epoch in self.made if tried[setting] == value)
            for value in values
        ]
        known = [loss if math.isfinite(loss) else None for loss in losses]
        return Choice(values[int(np.argmin(losses))], "validation", list(values), known)


def search(name: str, data: TrainingData, try_out: Try) -> Choices:
    """Choose the settings that are not given by trials; none of a setting without alternatives."""
    is_open = [one for one in searched_settings(name) if getattr(data.config, one) is None]
    chosen: Choices = {}
    lengths = sorted({min(epochs, data.config.epochs or epochs) for epochs in EPOCHS})
    for epochs in lengths if is_open else ():
        trials = Trials(try_out, epochs)
        chosen = choose_by(trials, is_open, name, data)
        if max(epoch.val_auroc for _, epoch in trials.made) >= LEARNED:
            break
    return {setting: one for setting, one in chosen.items() if len(one.tried) > 1}


def choose_by(trials: Trials, is_open: list[str], name: str, data: TrainingData) -> Choices:
    """Make the trials of each open setting, and choose by them."""
    rate = data.config.rate
    first: Settings = {"input_scale": "standard"} if "input_scale" in is_open else {}
    first["lr"] = rate
    chosen: Choices = {}
    for setting in layer_settings():
        if setting in is_open:
            chosen[setting] = choose_layer(trials, setting, first, name, data)
            first[setting] = chosen[setting].value
    others: dict[str, Sequence[object]] = {
        "input_scale": list(SCALES),
        "lr": [factor * rate for factor in FACTORS],
    }
    others = {setting: values for setting, values in others.items() if setting in is_open}
    for values in product(*others.values()):
        trials.make(first | dict(zip(others, values, strict=True)))
    return chosen | {setting: trials.choose(setting, values) for setting, values in others.items()}


def choose_layer(
    trials: Trials, setting: str, first: Settings, name: str, data: TrainingData
) -> Choice:
    """Try layers evenly spread, then those between the best and its neighbours."""
    numbers = numbers_of_layers(DETECTORS[name], data)
    spread = np.linspace(0, len(numbers) - 1, min(len(numbers), N_LAYERS)).astype(int).tolist()
    for i in spread:
        trials.make(first | {setting: numbers[i]})
    best = numbers.index(trials.choose(setting, [numbers[i] for i in spread]).value)
    place = spread.index(best)
    between = {(best + i) // 2 for i in spread[max(0, place - 1) : place + 2]}
    for i in between:
        trials.make(first | {setting: numbers[i]})
    return trials.choose(setting, [numbers[i] for i in sorted({*spread, *between})])


def searched_settings(name: str) -> list[str]:
    """The settings of a detector that are searched unless they are given."""
    options = DETECTORS[name].options
    return [*(one for one in (*layer_settings(), "input_scale") if one in options), "lr"]


def for_trials(data: TrainingData) -> TrainingData:
    """The same data with few traces, drawn by the seed."""
    rng = np.random.default_rng([data.config.seed, N_TRACES])
    splits = data.splits
    train, val = (np.sort(rng.permutation(rows)[:N_TRACES]) for rows in (splits.train, splits.val))
    few = replace(data, splits=replace(splits, train=train, val=val))
    return few.with_settings(weights=None, replacement=False, follow=False)


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
        default = described.pop(kind, None) or Choice(fixed.get(kind), "default")
        described[setting] = default if given is None else Choice(given, "user")
    described |= chosen
    # several layers that nobody chose have no number
    return {setting: one for setting, one in described.items() if one.value is not None}


def values_of(settings: Choices) -> Settings:
    """The settings that validation chose, by name."""
    return {name: one.value for name, one in settings.items() if one.by == "validation"}
