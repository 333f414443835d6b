"""How far training is: what is trained, the loss, the best validation AUROC and rows/s, on stderr.

A bar on a terminal, a line a minute in a log.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from train.fit.loop import Epoch

__all__ = ["TrainingProgress"]


SECONDS_A_LINE = 60.0


class _RowsPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.0f} rows/s", no_wrap=True)


class TrainingProgress(Progress):
    """One bar per training run; `on_step` and `on_epoch` are what the loop calls.

    Parameters
    ----------
    n_rows : int
        Training rows of one epoch.
    n_epochs : int
        Most epochs of one run.
    visible : bool
        Of several processes only one shows what all of them do.
    clock : callable
        Seconds.
    """

    def __init__(
        self,
        n_rows: int,
        n_epochs: int,
        visible: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        texts = (
            "{task.description}",
            "epoch {task.fields[epoch]}",
            "loss {task.fields[loss]:.3f}",
            "val {task.fields[best]:.3f}",
        )
        columns = [TextColumn(text) for text in texts]
        super().__init__(
            *columns,
            BarColumn(10),
            _RowsPerSecond(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not visible,
        )
        self.n_rows, self.n_epochs = n_rows, n_epochs
        self.clock = clock
        self.best = 0.0
        self.begun_at = self.logged_at = clock()
        self.rows_before = 0

    def begin(self, name: str, rows_done: int = 0) -> None:
        """Start the bar of the next training run, of which a stopped one may have seen some
        rows."""
        self.best = 0.0
        self.begun_at = self.logged_at = self.clock()
        self.rows_before = rows_done
        number = rows_done // self.n_rows + 1
        self.current = self.add_task(
            name,
            total=self.n_rows * self.n_epochs,
            completed=rows_done,
            epoch=f"{number}/{self.n_epochs}",
            loss=0.0,
            best=0.0,
        )

    def on_step(self, n_rows: int, loss: float) -> None:
        self.update(self.current, advance=n_rows, loss=loss)
        is_due = self.clock() - self.logged_at >= SECONDS_A_LINE
        if is_due and not (self.disable or self.console.is_terminal):
            self.logged_at = self.clock()
            self.say(self._line())

    def say(self, text: str) -> None:
        """Write a line above the bar, or into the log."""
        if not self.disable:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _line(self) -> str:
        """How far the training is that goes on, and how long it may still take."""
        task = self.tasks[self.current]
        n_new = task.completed - self.rows_before
        rows_per_s = n_new / (self.clock() - self.begun_at)
        seconds_left = (task.total - task.completed) / rows_per_s
        minutes_left = round(seconds_left / 60)
        return (
            f"{task.description}: epoch {task.fields['epoch']}, {task.completed / task.total:.0%} of the rows, "
            f"{rows_per_s:,.0f} rows/s, loss {task.fields['loss']:.3f}, val {task.fields['best']:.3f}, "
            f"at most {minutes_left // 60}:{minutes_left % 60:02} h left"
        )

    def on_epoch(self, epoch: Epoch) -> None:
        self.best = max(self.best, epoch.val_auroc)
        number = min(epoch.epoch + 2, self.n_epochs)
        self.update(
            self.current, epoch=f"{number}/{self.n_epochs}", loss=epoch.loss, best=self.best
        )

    def end(self) -> None:
        """Close the bar of a run, which may have stopped early."""
        self.update(self.current, total=self.tasks[self.current].completed)
