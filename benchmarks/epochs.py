"""Epochs of training as `python -m train` has them, validation included, for benchmarks of it."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from benchmarks.harness import clocks, take_turns
from benchmarks.program import needs_extra
from store import TraceStore

with needs_extra("train"):
    from train.config import Config
    from train.data.batches import TrainingData
    from train.data.splits import read_splits
    from train.fit.device import build_fabric, cpu_arithmetic
    from train.fit.loop import Hooks, Training
    from train.run.detectors import build_detector

__all__ = ["Contender", "open_data", "train_in_turns"]


@dataclass
class Contender:
    """One way to train a detector, and the seconds of its epochs: of the clock, and of the
    processor. The first epoch is apart."""

    training: Training
    first_s: float = 0.0
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    def turn(self, number: int) -> None:
        """An epoch, noted."""
        seconds, cpu_seconds = run_epoch(self)
        self.seconds.append(seconds)
        self.cpu_seconds.append(cpu_seconds)

    def described(self) -> dict:
        """The columns that all tables of trainings have."""
        device = self.training.fabric.device
        median = statistics.median(self.seconds)
        return {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
            "median_epoch_s": round(median, 2),
            "best_epoch_s": round(min(self.seconds), 2),
            "first_epoch_s": round(self.first_s, 2),
            "rows_per_s": round(self.training.n_rows / median, 1),
        }


def open_data(store: TraceStore) -> TrainingData:
    """A store with the default splits."""
    return TrainingData(store, read_splits(store, Config()))


def train_in_turns(
    name: str,
    data: TrainingData,
    configs: Mapping[tuple[str, ...], Config],
    epochs: int,
    n_threads: int,
) -> dict[tuple[str, ...], Contender]:
    """Trainings of a detector, by what tells their settings apart: an epoch of each, several times,
    after a first one."""
    with cpu_arithmetic(n_threads):
        contenders = {key: start(name, data, config) for key, config in configs.items()}
        turns = {", ".join(key): one.turn for key, one in contenders.items()}
        take_turns(turns, epochs)
    return contenders


def start(name: str, data: TrainingData, config: Config) -> Contender:
    """A training whose first epoch is done."""
    torch.manual_seed(0)
    data = replace(data, config=config)
    detector = build_detector(name, data)
    one = Contender(Training(build_fabric(config), detector, data, Hooks()))
    one.first_s, _ = run_epoch(one)
    one.training.wait_seconds = 0.0
    return one


def run_epoch(one: Contender) -> tuple[float, float]:
    """Seconds of an epoch, and of the processor; the device has nothing left to do at its end."""

    def epoch() -> None:
        one.training.run_epoch()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return clocks(epoch)
