"""The one training loop: batches in, the best weights out; it never asks which detector it trains.

Best means the epoch with the highest AUROC on validation. Everything random in a step (dropout,
mixtures) is a function of (seed, epoch, batch, process), and the order of the rows one of (seed,
epoch); so a training that goes on from a saved state ends, on the CPU, with the same weights bit
for bit as one that never stopped.

Several processes share each batch: together they see every row once an epoch, and the gradient is
that of the mean over all rows of the step, however they are shared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, OneCycleLR

from models import Detector
from models.mixup import Mixup
from store import Batch
from train.config import Config
from train.data.batches import TrainingData
from train.errors import DataError
from train.evaluate.metrics import auroc
from train.fit.device import compile_detector, gather_rows

__all__ = ["Best", "Epoch", "Hooks", "Training", "fit", "predict"]

CLIP_NORM = 1.0


@dataclass(frozen=True)
class Epoch:
    """What one pass gave: mean training loss and validation AUROC."""

    epoch: int
    loss: float
    val_auroc: float


class Best(NamedTuple):
    """The best epoch so far, and its weights on the CPU."""

    epoch: Epoch
    weights: dict[str, Tensor]


class Hooks:
    """What else happens while a detector trains: nothing, unless a subclass says so."""

    def on_step(self, step: int, n_rows: int, loss: float, lr: float) -> None:
        """Called after each batch, one late; `step` counts from the first epoch on."""

    def on_epoch(self, epoch: Epoch) -> None:
        """Called after each validation."""

    def on_save(self, training: Training) -> None:
        """Called when `training.state_dict()` should be kept: at each new best epoch, and as often
        as asked for."""


def fit(
    fabric: Fabric,
    detector: Detector,
    data: TrainingData,
    config: Config,
    hooks: Hooks,
    state: dict | None = None,
) -> Training:
    """Train a detector until `config.epochs`, or until `config.patience` epochs have brought
    nothing better.

    Parameters
    ----------
    fabric : Fabric
        Device, precision, gradients and processes are its business.
    detector : Detector
        Trained in place; ends with the weights of the last epoch, not of the best.
    data : TrainingData
        The store and its split.
    config : Config
        Settings of the training; of seeds, `config.seed` counts.
    hooks : Hooks
        Told of steps, epochs and moments to save.
    state : dict, optional
        What `Training.state_dict` gave when an equal training was stopped; goes on from there.

    Returns
    -------
    Training
        With its history and the best epoch.

    Raises
    ------
    DataError
        If the loss or a score is not a finite number.
    """
    training = Training(fabric, detector, data, config, hooks)
    if state is not None:
        training.load_state_dict(state)
    while not training.finished:
        training.run_epoch()
    return training


class Training:
    """One training at one moment: everything that changes from step to step, saved and loaded
    whole.

    Attributes
    ----------
    history : list of Epoch
        One per pass made.
    best : Best or None
        None before the end of the first epoch.
    seconds, wait_seconds : float
        Time spent, in all stretches together, and how much of it waiting for batches.
    """

    def __init__(
        self, fabric: Fabric, detector: Detector, data: TrainingData, config: Config, hooks: Hooks
    ) -> None:
        self.fabric, self.detector, self.data, self.config, self.hooks = (
            fabric,
            detector,
            data,
            config,
            hooks,
        )
        self.batches = data.loader("train", detector.columns, config, fabric, shuffle=True)
        self.n_rows = len(data.splits.train)
        self.n_batches = -(-self.n_rows // config.batch_size)
        self.labels = torch.from_numpy(data.splits.labels)
        self.start = None if data.start is None else torch.from_numpy(data.start).float()
        # fused steps undo the scaling of losses themselves, too late to clip
        fused = config.precision != "16-mixed"
        optimizer = torch.optim.AdamW(
            detector.parameters(), config.lr, betas=(0.9, 0.999), weight_decay=1e-4, fused=fused
        )
        self.schedule = build_schedule(optimizer, config, self.n_batches)
        module = compile_detector(detector) if config.compile else detector
        self.model, self.optimizer = fabric.setup(module, optimizer)
        self.history: list[Epoch] = []
        self.best: Best | None = None
        self.losses = Losses(self)
        self.seconds, self.wait_seconds = 0.0, 0.0
        self._clock = time.perf_counter()
        self._saved = self._clock, 0  # when, and after how many batches

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to gain: all epochs made, or too many without a better
        one."""
        n_worse = len(self.history) - 1 - self.best.epoch.epoch if self.best else 0
        return len(self.history) == self.config.epochs or n_worse >= self.config.patience

    def run_epoch(self) -> None:
        """Make one pass, or the rest of one, and validate."""
        number = len(self.history)
        self.batches.set_epoch(number)
        self.model.train()
        for i, batch, n_counted in self._shares():
            self._step(number, i, batch, n_counted)
        self.losses.look()
        scores = predict(self.fabric, self.detector, self.data, "val", self.config)
        area = auroc(self.data.splits.labels[self.data.splits.val], scores)
        epoch = Epoch(number, self.losses.total / self.n_rows, area)
        self.losses = Losses(self)
        self.history.append(epoch)
        better = self.best is None or area > self.best.epoch.val_auroc
        if better:
            self.best = Best(
                epoch,
                {
                    name: one.detach().cpu().clone()
                    for name, one in self.detector.state_dict().items()
                },
            )
        self.hooks.on_epoch(epoch)
        if better or self._save_is_due():
            self._save()

    def _shares(self) -> Iterator[tuple[int, Batch, int]]:
        """(number of the batch, this process's share of it, rows of that share that count) to the
        end of the epoch.

        A process whose share of the last batch is empty takes part with a row that counts for
        nothing: the others wait for its gradient.
        """
        first = self.batches.state_dict()["position"] // self.config.batch_size
        shares = iter(self.batches)
        for i in range(first, self.n_batches):
            start = time.perf_counter()
            batch = next(shares, None)
            self.wait_seconds += time.perf_counter() - start
            if batch is None:
                yield i, self.data.read(self.data.splits.train[:1], self.detector.columns), 0
            else:
                yield i, batch, len(batch)
        next(shares, None)  # lets the loader see its end

    def _step(self, epoch: int, i: int, batch: Batch, n_counted: int) -> None:
        """Batch `i` of an epoch: gradients, and every `grad_accum` batches new weights."""
        fabric, config = self.fabric, self.config
        torch.manual_seed(step_seed(config.seed, epoch, i, fabric.global_rank))
        moves = (i + 1) % config.grad_accum == 0 or i + 1 == self.n_batches
        n_together = rows_of_move(i, self.n_rows, config.batch_size, config.grad_accum)
        with fabric.no_backward_sync(self.model, enabled=not moves):
            loss, logits = self._loss(batch.to(fabric.device, non_blocking=True))
            # Processes' gradients are averaged, so each weighs its own by how many of the rows it
            # has.
            fabric.backward(loss * (n_counted * fabric.world_size / n_together))
        if moves:
            fabric.clip_gradients(
                self.model, self.optimizer, max_norm=CLIP_NORM, error_if_nonfinite=False
            )
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.schedule.step()
        self.losses.add(
            epoch * self.n_batches + i, loss.detach(), logits.detach(), batch.rows, n_counted
        )
        if moves and i + 1 < self.n_batches and self._save_is_due():
            self._save()

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss of a batch, a scalar, and its logits (B,)."""
        mixup = Mixup.draw(len(batch), self.config.mixup) if self.config.mixup else None
        outputs = self.model(batch) if mixup is None else self.model(batch, mixup)
        if self.start is not None:
            outputs = outputs._replace(
                logits=outputs.logits + self._of_rows(self.start, batch, mixup)
            )
        return self.detector.loss(outputs, self._of_rows(self.labels, batch, mixup)), outputs.logits

    def _of_rows(self, numbers: Tensor, batch: Batch, mixup: Mixup | None) -> Tensor:
        """What is known of each row of a batch, (B,) float32, mixed as the rows are."""
        values = numbers[batch.rows].to(self.fabric.device).float()
        return values if mixup is None else mixup(values)

    def _save_is_due(self) -> bool:
        saved_at, saved_step = self._saved
        late = time.perf_counter() - saved_at >= self.config.save_seconds
        return late or self.losses.step - saved_step >= self.config.save_steps

    def _save(self) -> None:
        self.losses.look()  # a state with a loss or a weight that is not finite is never saved
        for name, parameter in self.detector.named_parameters():
            if not parameter.isfinite().all():
                raise DataError(
                    f"{self.data.store.path}: step {self.losses.step}: expected finite weights, found others in "
                    f"{name}; lower --lr, or give --precision 32"
                )
        self.hooks.on_save(self)
        self._saved = time.perf_counter(), self.losses.step

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs to go on: tensors and plain values."""
        return {
            "weights": self.detector.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.fabric.strategy.precision.state_dict(),
            "batches": self.batches.state_dict(),
            "history": [asdict(epoch) for epoch in self.history],
            "best": self.best and self.best.weights,
            "loss": self.losses.total,
            "seconds": self.elapsed(),
            "wait_seconds": self.wait_seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where an equal training was, with any number of processes."""
        self.detector.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.fabric.strategy.precision.load_state_dict(state["scaler"])
        self.batches.load_state_dict(state["batches"])
        self.history = [Epoch(**epoch) for epoch in state["history"]]
        if self.history:
            self.best = Best(max(self.history, key=lambda epoch: epoch.val_auroc), state["best"])
        self.losses.total = state["loss"]
        self.seconds, self.wait_seconds = state["seconds"], state["wait_seconds"]

    def elapsed(self) -> float:
        """Seconds of this training, those before it was stopped included."""
        return self.seconds + time.perf_counter() - self._clock


class Losses:
    """The losses of an epoch, summed over rows and processes.

    Each is looked at one step late: to look at once would make the device wait for the next step.
    """

    def __init__(self, training: Training) -> None:
        self.training = training
        self.total, self.step = 0.0, training.n_batches * len(training.history)
        self._last: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    def add(self, step: int, loss: Tensor, logits: Tensor, rows: Tensor, n_counted: int) -> None:
        """Take the mean loss of `n_counted` rows of this process, and the logits (B,) that it is
        of."""
        self.look()
        total = self.training.fabric.all_reduce(loss * n_counted, reduce_op="sum")
        self.step, self._last = step + 1, (loss, total, logits, rows)

    def look(self) -> None:
        """Add the last loss; raises DataError if it is not finite."""
        if self._last is None:
            return
        (last, last_total, logits, rows), self._last = self._last, None
        training, loss, total = self.training, last.item(), last_total.item()
        if not math.isfinite(loss):
            to_blame = ~logits.isfinite().cpu()
            rows = rows[to_blame] if to_blame.any() else rows
            check_finite(f"step {self.step}: training loss", loss, rows, training.data)
        if not math.isfinite(total):
            raise DataError(
                f"step {self.step}: another process found a training loss that is not finite, and says where"
            )
        self.total += total
        start = (self.step - 1) % training.n_batches * training.config.batch_size
        n_rows = min(training.config.batch_size, training.n_rows - start)
        training.hooks.on_step(
            self.step, n_rows, total / n_rows, training.schedule.get_last_lr()[0]
        )


def build_schedule(optimizer: torch.optim.Optimizer, config: Config, n_batches: int) -> LRScheduler:
    """How the learning rate moves; it takes a step with each move of the weights."""
    if config.schedule == "constant":
        return ConstantLR(optimizer, factor=1.0, total_iters=0)
    return OneCycleLR(
        optimizer, config.lr, total_steps=config.epochs * -(-n_batches // config.grad_accum) + 1
    )


def rows_of_move(i: int, n_rows: int, batch_size: int, grad_accum: int) -> int:
    """How many rows take part in the move of the weights that batch `i` belongs to; fewer at the
    end of an epoch."""
    first = i // grad_accum * grad_accum * batch_size
    return min(batch_size * grad_accum, n_rows - first)


def step_seed(seed: int, epoch: int, i: int, rank: int) -> int:
    """Seed of what is random in batch `i` of an epoch in one process."""
    return int(np.random.SeedSequence([seed, epoch, i, rank]).generate_state(1, np.uint64)[0])


@torch.inference_mode()
def predict(
    fabric: Fabric, detector: Detector, data: TrainingData, split: str, config: Config
) -> NDArray[np.float64]:
    """Probability of hallucination of each row of a split, (n_split,), in the order of the split, on
    every process.

    The arithmetic is float32 whatever the training's precision is: half precision would let scores
    tie.
    """
    batches = data.loader(split, detector.columns, config, fabric, shuffle=False)
    rows = data.splits.rows(split)
    detector.eval()
    parts = [
        detector(batch.to(fabric.device, non_blocking=True)).logits.cpu().double()
        for batch in batches
    ]
    logits = gather_rows(
        fabric, torch.cat([torch.zeros(0, dtype=torch.float64), *parts]), len(rows)
    )  # (n_split,)
    if data.start is not None:
        logits += torch.from_numpy(data.start[rows])
    for position in (~logits.isfinite()).nonzero()[:1, 0].tolist():
        check_finite("score", logits[position].item(), rows[position : position + 1], data)
    # of doubles, because in float32 all logits above 17 would tie at 1
    return logits.sigmoid().numpy()


def check_finite(what: str, number: float, rows: Sequence[int], data: TrainingData) -> None:
    """Raise DataError, which names the first of `rows`, if a number is NaN or infinite."""
    if not math.isfinite(number):
        ids = ", ".join(repr(data.store.ids[int(row)]) for row in rows[:4]) + (
            ", ..." if len(rows) > 4 else ""
        )
        raise DataError(
            f"{data.store.path}: {what} of traces {ids}: expected a finite number, found {number}; "
            "look for values that are not finite in these traces, lower --lr, or give --precision 32"
        )
