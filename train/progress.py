"""The progress bar: what is trained, the loss, the best validation AUROC and rows/s, on stderr."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from train.loop import Epoch

__all__ = ["TrainingProgress"]


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
    """

    def __init__(self, n_rows: int, n_epochs: int, visible: bool = True) -> None:
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
        self.best = 0.0

    def begin(self, name: str, rows_done: int = 0) -> None:
        """Start the bar of the next training run, of which a stopped one may have seen some rows."""
        self.best = 0.0
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

    def on_epoch(self, epoch: Epoch) -> None:
        self.best = max(self.best, epoch.val_auroc)
        number = min(epoch.epoch + 2, self.n_epochs)
        self.update(self.current, epoch=f"{number}/{self.n_epochs}", loss=epoch.loss, best=self.best)

    def end(self) -> None:
        """Close the bar of a run, which may have stopped early."""
        self.update(self.current, total=self.tasks[self.current].completed)
