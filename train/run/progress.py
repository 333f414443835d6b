"""Progress of trainings on stderr: name, loss, best validation AUROC and rows/s.

A bar on a terminal, a line a minute in a log; and the same for TensorBoard, which is imported when
the first log is opened: it takes a second.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from store.reports import terminal_text
from train.evaluate.results import Epoch
from train.files import writing

__all__ = ["Relay", "TensorBoardLog", "TrainingBar", "TrainingProgress", "send"]

SECONDS_A_LINE = 60.0


class _RowsPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.0f} rows/s", no_wrap=True)


class TrainingProgress(Progress):
    """One bar per training.

    Only one of several processes is `visible`, and shows what all of them do. `clock` gives
    seconds.
    """

    def __init__(self, visible: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            TextColumn("epoch {task.fields[epoch]}"),
            TextColumn("loss {task.fields[loss]:.3f}"),
            TextColumn("val {task.fields[best]:.3f}"),
            BarColumn(10),
            _RowsPerSecond(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not visible,
        )
        self.clock = clock

    def begin(self, name: str, n_rows: int, n_epochs: int, rows_done: int = 0) -> TrainingBar:
        """Start the bar of a training, of which an earlier process may have done some rows.

        `n_rows` are the training rows of one epoch, `n_epochs` its most epochs.
        """
        return TrainingBar(self, name, n_rows, n_epochs, rows_done)

    def say(self, text: str) -> None:
        """Write a line above the bars, or into the log."""
        if not self.disable:
            self.console.print(terminal_text(text), markup=False, highlight=False, soft_wrap=True)


class TrainingBar:
    """The bar of one training; `on_step` and `on_epoch` are called from the loop."""

    def __init__(
        self, progress: TrainingProgress, name: str, n_rows: int, n_epochs: int, rows_done: int
    ) -> None:
        self.progress = progress
        self.n_epochs = n_epochs
        self.n_rows_total = n_rows * n_epochs
        self.best = 0.0
        self.begun_at = progress.clock()
        self.logged_at = self.begun_at
        self.rows_before = rows_done
        self.task = progress.add_task(
            name,
            total=self.n_rows_total,
            completed=rows_done,
            epoch=f"{rows_done // n_rows + 1}/{n_epochs}",
            loss=0.0,
            best=0.0,
        )

    def on_step(self, n_rows: int, loss: float) -> None:
        progress = self.progress
        progress.update(self.task, advance=n_rows, loss=loss)
        is_due = progress.clock() - self.logged_at >= SECONDS_A_LINE
        if is_due and not (progress.disable or progress.console.is_terminal):
            self.logged_at = progress.clock()
            progress.say(self._line())

    def _line(self) -> str:
        """How far the training is, and how long it may still take."""
        task = self.progress.tasks[self.task]
        rows_per_s = (task.completed - self.rows_before) / (self.logged_at - self.begun_at)
        seconds_left = (self.n_rows_total - task.completed) / rows_per_s
        hours, minutes = divmod(round(seconds_left / 60), 60)
        return (
            f"{task.description}: epoch {task.fields['epoch']}, "
            f"{task.completed / self.n_rows_total:.0%} of the rows, {rows_per_s:,.0f} rows/s, "
            f"loss {task.fields['loss']:.3f}, val {task.fields['best']:.3f}, "
            f"at most {hours}:{minutes:02} h left"
        )

    def on_epoch(self, epoch: Epoch) -> None:
        self.best = max(self.best, epoch.val_auroc)
        number = min(epoch.epoch + 2, self.n_epochs)
        self.progress.update(
            self.task, epoch=f"{number}/{self.n_epochs}", loss=epoch.loss, best=self.best
        )

    def end(self, keep: bool = True) -> None:
        """Close the bar of a training, which may have stopped early, or hide it."""
        task = self.progress.tasks[self.task]
        speed = task.finished_speed or task.speed
        self.progress.update(self.task, total=task.completed, visible=keep)
        task.finished_speed = speed  # which another total resets


class Relay:
    """The progress of another process, and the bar of its training there: calls are sent to it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __getattr__(self, what: str) -> Callable[..., Any]:
        def call(*content: object) -> Relay:
            send(self.connection, what, *content)
            return self

        return call


def send(connection: Connection, what: str, *content: object) -> None:
    """Send a name and values; plainly pickled, as torch leaves tensors in memory that ends here."""
    connection.send_bytes(pickle.dumps((what, content)))


EVERY_STEPS = 20  # one point; more are slow to load and look the same


class TensorBoardLog:
    """One training's log: loss and learning rate of steps, metrics of epochs; closed at its end.

    Epochs are also logged at a number of steps, so that one `purge_step` hides everything that a
    resumed training logs again. Its event files go to `directory`, which is created if it does not
    exist; a resumed training adds a file. `purge_step` steps were done before: what an earlier
    process logged of later ones is hidden. Raises OutputError if a file cannot be written.
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
