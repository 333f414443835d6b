"""A training's curves for TensorBoard: the loss and the learning rate of its steps, the metrics of
its epochs.

Everything is logged at a number of steps, epochs too, so that one `purge_step` takes back all that
a resumed training makes again. TensorBoard is imported when the first log is opened: it takes a
second.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.errors import OutputError

if TYPE_CHECKING:
    from train.fit.loop import Epoch

__all__ = ["TensorBoardLog"]

EVERY_STEPS = 20  # one point; more are slow to load and look the same


class TensorBoardLog:
    """One training's log; also a context manager.

    Parameters
    ----------
    directory : Path
        Where its event files go; made if it is not there. A resumed training adds a file of its
        own.
    purge_step : int, optional
        How many steps were made before this start. What an earlier start logged of later steps is
        hidden from then on.

    Raises
    ------
    OutputError
        If the directory or a file in it cannot be written.
    """

    def __init__(self, directory: Path, purge_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.directory, self.step = Path(directory), purge_step or 0
        try:
            self.writer = SummaryWriter(str(directory), purge_step=purge_step)
        except OSError as error:
            raise self._failure(error) from error

    def on_step(self, step: int, loss: float, lr: float) -> None:
        """Log step number `step` of the training, counted from 0, if its number is a multiple of
        20."""
        self.step = step
        if step % EVERY_STEPS == 0:
            self._log({"step/loss": loss, "step/lr": lr})

    def on_epoch(self, epoch: Epoch) -> None:
        """Log every number of an epoch, and which it was, at the last step that was made."""
        numbers = {
            key: value for key, value in asdict(epoch).items() if isinstance(value, int | float)
        }
        self._log(
            {"epoch" if key == "epoch" else f"epoch/{key}": value for key, value in numbers.items()}
        )
        try:
            self.writer.flush()
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Write what is left."""
        try:
            self.writer.close()
        except OSError as error:
            raise self._failure(error) from error

    def __enter__(self) -> TensorBoardLog:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _log(self, numbers: dict[str, float]) -> None:
        """Log the finite ones."""
        try:
            for tag, number in numbers.items():
                if math.isfinite(number):
                    self.writer.add_scalar(tag, number, self.step)
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> OutputError:
        return OutputError(
            f"{self.directory}: expected to write a TensorBoard log, found: {error.strerror or error}; "
            "make room, or choose another --output-dir"
        )
