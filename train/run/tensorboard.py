"""A training's curves for TensorBoard: loss and learning rate of steps, metrics of epochs.

Epochs are also logged at a number of steps, so that one `purge_step` hides everything that a
resumed training logs again. TensorBoard is imported when the first log is opened: it takes a
second.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from train.files import writing

if TYPE_CHECKING:
    from train.evaluate.results import Epoch

__all__ = ["TensorBoardLog"]

EVERY_STEPS = 20  # one point; more are slow to load and look the same


class TensorBoardLog:
    """One training's log, to be closed at its end.

    Its event files go to `directory`, which is created if it does not exist; a resumed training
    adds a file. `purge_step` steps were done before: what an earlier process logged of later ones
    is hidden. Raises OutputError if a file cannot be written.
    """

    def __init__(self, directory: Path, purge_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.directory = directory
        self.step = purge_step or 0
        with writing(self.directory):
            self.writer = SummaryWriter(str(directory), purge_step=purge_step)

    def on_step(self, step: int, loss: float, lr: float) -> None:
        """Log step number `step`, counted from 0, if it is a multiple of `EVERY_STEPS`."""
        self.step = step
        if step % EVERY_STEPS == 0:
            self._log({"step/loss": loss, "step/lr": lr})

    def on_epoch(self, epoch: Epoch) -> None:
        """Log every number of an epoch, and its own, at the last step."""
        numbers = asdict(epoch)
        self._log({"epoch": numbers.pop("epoch")})
        self._log({f"epoch/{key}": number for key, number in numbers.items()})
        with writing(self.directory):
            self.writer.flush()

    def close(self) -> None:
        with writing(self.directory):
            self.writer.close()

    def _log(self, numbers: dict[str, float]) -> None:
        """Log the finite ones."""
        with writing(self.directory):
            for tag, number in numbers.items():
                if math.isfinite(number):
                    self.writer.add_scalar(tag, number, self.step)
