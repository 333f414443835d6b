"""The one training loop: batches in, the best weights out; it never asks which detector it trains.

Best means the epoch with the highest AUROC on validation. On the CPU, the same seed gives the same weights bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from models import Detector
from store import TraceLoader
from train.config import Config
from train.data import TrainingData
from train.errors import DataError
from train.metrics import auroc

__all__ = ["Epoch", "fit", "predict"]

CLIP_NORM = 1.0

Model = Detector  # wrapped by Fabric, which passes attributes through
OnStep = Callable[[int, float], None]
OnEpoch = Callable[["Epoch"], None]
OnBest = Callable[["Epoch", dict[str, Tensor]], None]


@dataclass(frozen=True)
class Epoch:
    """What one pass gave: mean training loss and validation AUROC."""

    epoch: int
    loss: float
    val_auroc: float


def fit(
    fabric: Fabric,
    model: Model,
    data: TrainingData,
    config: Config,
    on_best: OnBest,
    on_step: OnStep = lambda n_rows, loss: None,
    on_epoch: OnEpoch = lambda epoch: None,
) -> list[Epoch]:
    """Train a detector until `config.epochs`, or until `config.patience` epochs have brought nothing better.

    Parameters
    ----------
    fabric : Fabric
        Device, precision and gradients are its business.
    model : Detector
        As `fabric.setup_module` gives it; trained in place, ends with the weights of the last epoch, not of the best.
    data : TrainingData
        The store and its split.
    config : Config
        epochs, patience, batch_size, grad_accum, lr, num_workers and, for the order of the rows, seed count here.
    on_best : callable
        (Epoch, weights) after each epoch that beats those before it; the first one always does.
    on_step, on_epoch : callable
        (rows, loss) after each step, (Epoch) after each epoch.

    Returns
    -------
    list of Epoch
        One per pass made.

    Raises
    ------
    DataError
        If the loss is not a finite number.
    """
    batches = data.loader("train", model.columns, config, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), config.lr, betas=(0.9, 0.999), weight_decay=1e-4, fused=True)
    n_steps = -(-len(batches) // config.grad_accum)
    schedule = OneCycleLR(optimizer, config.lr, total_steps=config.epochs * n_steps + 1)
    optimizer = fabric.setup_optimizers(optimizer)
    val_labels = data.split.labels[data.split.val]
    history: list[Epoch] = []
    best = Epoch(-1, math.inf, -math.inf)
    for number in range(config.epochs):
        batches.set_epoch(number)
        loss = train_epoch(fabric, model, optimizer, schedule, batches, data, config.grad_accum, on_step)
        scores = predict(fabric, model, data, "val", config)
        epoch = Epoch(number, loss, auroc(val_labels, scores))
        history.append(epoch)
        on_epoch(epoch)
        if epoch.val_auroc > best.val_auroc:
            best = epoch
            on_best(epoch, model.state_dict())
        if number - best.epoch >= config.patience:
            break
    return history


def train_epoch(
    fabric: Fabric,
    model: Model,
    optimizer: torch.optim.Optimizer,
    schedule: LRScheduler,
    batches: TraceLoader,
    data: TrainingData,
    grad_accum: int,
    on_step: OnStep,
) -> float:
    """Make one pass; the weights move after every `grad_accum` batches. Give the mean loss of a row."""
    labels = torch.from_numpy(data.split.labels)
    model.train()
    total, n_rows = 0.0, 0
    for i, batch in enumerate(batches):
        batch = batch.to(fabric.device)
        outputs = model(batch)
        loss = model.loss(outputs, labels[batch.rows].to(fabric.device))
        first = i // grad_accum * grad_accum  # of the batches that make this step
        n_together = min(grad_accum, len(batches) - first)
        fabric.backward(loss / n_together)
        if i == first + n_together - 1:
            fabric.clip_gradients(model, optimizer, max_norm=CLIP_NORM, error_if_nonfinite=False)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
        step_loss = check_finite("training loss", loss.item(), batch.rows, data)
        total, n_rows = total + step_loss * len(batch), n_rows + len(batch)
        on_step(len(batch), step_loss)
    return total / n_rows


@torch.inference_mode()
def predict(fabric: Fabric, model: Model, data: TrainingData, side: str, config: Config) -> NDArray[np.float64]:
    """Probability of hallucination of each row of a side, (n_side,), in the order of the split."""
    batches = data.loader(side, model.columns, config, shuffle=False)
    model.eval()
    logits = torch.cat([model(batch.to(fabric.device)).logits for batch in batches]).cpu().double()  # (n_side,)
    for position in (~logits.isfinite()).nonzero()[:1, 0].tolist():
        check_finite("score", logits[position].item(), getattr(data.split, side)[position : position + 1], data)
    return logits.sigmoid().numpy()  # of doubles, because in float32 all logits above 17 would tie at 1


def check_finite(what: str, number: float, rows: Sequence[int], data: TrainingData) -> float:
    """Give the number back; raises DataError, which names the first of `rows`, if it is NaN or infinite."""
    if not math.isfinite(number):
        ids = ", ".join(repr(data.store.ids[int(row)]) for row in rows[:4]) + (", ..." if len(rows) > 4 else "")
        raise DataError(
            f"{data.store.path}: {what} of traces {ids}: expected a finite number, found {number}; "
            "look for values that are not finite in these traces, or lower --lr"
        )
    return number
