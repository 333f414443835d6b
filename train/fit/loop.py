"""The one training loop: batches in, the best weights out, for any detector.

Best means the latest epoch whose loss on validation (`refined_losses`) is not above the least by
more than the standard error of the difference (the rule of one standard error, Breiman et al.,
1984). Weights are best at the end of a cycle of the learning rate; an epoch before it that has the
best AUROC by chance costs .001 to .003, and makes trainings of several seeds differ more. A
detector on top of other log-odds begins with logits of 0, and competes with that beginning: it may
turn out to add nothing.

Everything random in a step (dropout,
mixtures) is a function of (seed, epoch, batch, process), and the order of the rows one of (seed,
epoch); so a training that continues from a saved state ends, on the CPU, with the same weights bit
for bit as one that never stopped.

Several processes share each batch: together they see every row once an epoch, and the gradient is
that of the mean over all rows of the optimizer step, however they are shared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, OneCycleLR

from models import Detector
from models.losses import Mixup
from store import Batch
from train.config import Config
from train.data.batches import TrainingData
from train.data.features import FeatureCache
from train.errors import ConfigError, DataError
from train.evaluate.metrics import Labels, Scores, auroc, refined_losses
from train.evaluate.results import Epoch
from train.fit.device import compile_detector, gather_rows
from train.fit.token_scores import validation_of_tokens

__all__ = ["Best", "Hooks", "Training", "fit", "predict"]

CLIP_NORM = 1.0
N_NAMED = 4  # traces that a message names
ROUNDING = 1e-6  # logits all closer than that differ by float32's rounding alone
State = dict[str, Any]  # of a training: tensors and plain values


class Best(NamedTuple):
    """The best epoch so far, and its weights on the CPU."""

    epoch: Epoch
    weights: dict[str, Tensor]


class Pending(NamedTuple):
    """A batch whose loss was not read from the device yet.

    Read at once, it would make the device wait for the next batch; so it is read one batch late.
    """

    loss: Tensor  # mean over the rows of this process
    total: Tensor  # sum over the rows of all processes
    logits: Tensor  # (B,)
    rows: Tensor  # (B,)
    n_rows: int  # of all processes


class Hooks:
    """Callbacks of a training; these do nothing."""

    def on_step(self, step: int, n_rows: int, loss: float, lr: float) -> None:
        """Called for each batch, one late; `step` counts batches from the first epoch on."""

    def on_epoch(self, epoch: Epoch) -> None:
        """Called after each validation."""

    def on_save(self, training: Training) -> None:
        """Called to save `training.state_dict()`: at a new best epoch and every `save_every`."""


def fit(
    fabric: Fabric, detector: Detector, data: TrainingData, hooks: Hooks, state: State | None = None
) -> Training:
    """Train a detector for `epochs`, or until `patience` epochs were no better.

    The detector is trained in place, with the seed of the settings, and ends with the weights of
    the last epoch, not of the best. `hooks` are called at batches, at epochs and to save; `state`
    is the `Training.state_dict` of a stopped training with the same settings, to continue it.
    Raises DataError if the loss or a score is not a finite number.
    """
    training = Training(fabric, detector, data, hooks)
    if state is not None:
        training.load_state_dict(state)
    elif detector.sample_size:
        training.prepare()
    if state is None and data.base_margin is not None:
        training.validate_start()
    while not training.finished:
        training.run_epoch()
    return training


class Training:
    """One training: everything that changes from step to step, saved and loaded as a whole."""

    def __init__(
        self, fabric: Fabric, detector: Detector, data: TrainingData, hooks: Hooks
    ) -> None:
        self.fabric = fabric
        self.detector = detector
        self.data = data = data.reading(detector)
        self.config = config = data.config
        self.hooks = hooks

        # of this process; the processes share the bytes
        n_bytes = config.image_cache // (fabric.world_size * (config.jobs or 1))
        n_bytes = 0 if config.follow else n_bytes
        self.kept = FeatureCache(detector, len(data.store), n_bytes) if n_bytes else None
        self.columns = (*detector.columns, *detector.targets)
        self.trained = data.splits.train  # in any epoch; more where a store is followed
        self._feed(data)
        self.base_margin: Tensor | None = None
        if data.base_margin is not None:
            self.base_margin = torch.from_numpy(data.base_margin).float()
            detector.begin_at_zero()

        # fused steps undo the scaling of losses themselves, too late to clip
        fused = config.precision != "16-mixed"
        optimizer = torch.optim.AdamW(
            detector.parameters(), config.rate, weight_decay=1e-4, fused=fused
        )
        n_steps = data.n_epochs * math.ceil(self.n_batches / config.grad_accum)
        self.schedule = build_schedule(optimizer, config, n_steps)
        module = compile_detector(detector) if config.compile else detector
        self.model, self.optimizer = fabric.setup(module, optimizer)

        self.history: list[Epoch] = []  # the finished ones
        # before training, on top of other log-odds; else the worst that there is
        self.start = Epoch(-1, math.nan, -math.inf)
        # until the first epoch ends `start`, which has weights on top of other log-odds only
        self.best = Best(self.start, {})
        # of the epoch with the least mean: the loss of each row or token of validation
        self.least = np.array([math.inf])
        self.step = 0  # batches so far, those before it was continued included
        self.loss_total = 0.0  # over the rows of this epoch
        self.seconds = 0.0  # before it was continued
        self.wait_seconds = 0.0  # for batches
        self._pending: Pending | None = None
        self._clock = time.perf_counter()
        self._saved_at = self._clock
        self._saved_step = 0

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or too many since the best one."""
        n_since_best = len(self.history) - 1 - self.best.epoch.epoch
        return len(self.history) == self.data.n_epochs or n_since_best >= self.config.patience

    def run_epoch(self) -> None:
        """Make one pass over the training rows, or the rest of one, and validate."""
        number = len(self.history)
        if self.config.follow and number:
            self._feed(self.data.with_new_rows().reading(self.detector))
        self.batches.set_epoch(number)
        self.model.train()
        for i, batch, n_counted in self._shares():
            self._train_batch(number, i, batch, n_counted)
        self._read_loss()

        val_auroc, losses = self._validate()
        epoch = Epoch(number, self.loss_total / self.n_rows, val_auroc, float(losses.mean()))
        self.loss_total = 0.0
        self.history.append(epoch)
        is_best = self._is_best(losses)
        if is_best:
            self.best = Best(epoch, self._copy_weights())
        self.hooks.on_epoch(epoch)
        if is_best or self._save_is_due():
            self._save()

    def _feed(self, data: TrainingData) -> None:
        """Train on the rows of train of these data from here on."""
        self.data = data
        self.trained = np.union1d(self.trained, data.splits.train)
        self.batches = data.loader("train", self.columns, self.fabric, shuffle=True, kept=self.kept)
        self.n_rows = self.batches.n_visits
        self.n_batches = math.ceil(self.n_rows / self.config.batch_size)
        self.labels = torch.from_numpy(data.splits.labels)

    def prepare(self) -> None:
        """Show the detector the same sample of training traces on every process."""
        n_rows = self.detector.sample_size
        rng = np.random.default_rng([self.config.seed, n_rows])
        rows = rng.permutation(self.data.splits.train)[:n_rows]
        size = self.config.batch_size
        parts = (rows[first : first + size] for first in range(0, len(rows), size))
        device = self.fabric.device
        self.detector.prepare(self.data.read(part, self.columns).to(device) for part in parts)

    def validate_start(self) -> None:
        """Let the weights before training compete with those of the epochs."""
        val_auroc, self.least = self._validate()
        self.start = Epoch(-1, math.nan, val_auroc)
        self.best = Best(self.start, self._copy_weights())

    def _is_best(self, losses: Scores) -> bool:
        """Whether an epoch with these losses on validation (n,) is the best so far."""
        if losses.mean() < self.least.mean():
            self.least = losses
            return True
        excess = losses - self.least
        is_start = self.best.epoch is self.start  # which adds nothing: only a better replaces it
        return not is_start and bool(excess.mean() < excess.std() / math.sqrt(len(excess)))

    def _validate(self) -> tuple[float, Scores]:
        """AUROC and losses (n,) on validation, on every process the same.

        They are of tokens for a detector that learns from their labels.
        """
        if self.detector.targets:
            is_first = self.fabric.is_global_zero
            found = validation_of_tokens(self.detector, self.data) if is_first else None
            labels, scores = cast(tuple[Labels, Scores], self.fabric.broadcast(found))
        else:
            scores = predict(self.fabric, self.detector, self.data, "val", self.kept)
            labels = self.data.splits.labels_of("val")
        return auroc(labels, scores), refined_losses(labels, scores)

    def _copy_weights(self) -> dict[str, Tensor]:
        """Copies of the detector's weights on the CPU."""
        weights = self.detector.state_dict()
        return {name: weight.detach().cpu().clone() for name, weight in weights.items()}

    def _shares(self) -> Iterator[tuple[int, Batch, int]]:
        """(number of a batch, this process's share of it, rows of that share that count).

        A process whose share of the last batch is empty takes part with a row that counts for
        nothing: the others wait for its gradient.
        """
        shares = iter(self.batches)
        for i in range(self._first_batch(), self.n_batches):
            start = time.perf_counter()
            batch = next(shares)
            self.wait_seconds += time.perf_counter() - start
            n_counted = len(batch)
            if not n_counted:
                batch = self.data.read(self.data.splits.train[:1].tolist(), self.columns)
            yield i, batch, n_counted
        next(shares, None)  # lets the loader see its end

    def _first_batch(self) -> int:
        """The number of the next batch of this epoch: 0 unless it was stopped within the epoch."""
        return int(self.batches.state_dict()["position"]) // self.config.batch_size

    def _train_batch(self, epoch: int, i: int, batch: Batch, n_counted: int) -> None:
        """Gradients of batch `i` of an epoch; every `grad_accum` batches an optimizer step."""
        fabric = self.fabric
        config = self.config
        is_last = i + 1 == self.n_batches
        is_optimizer_step = is_last or (i + 1) % config.grad_accum == 0
        n_together = rows_of_optimizer_step(i, self.n_rows, config.batch_size, config.grad_accum)
        torch.manual_seed(step_seed(config.seed, epoch, i, fabric.global_rank))
        with fabric.no_backward_sync(self.model, enabled=not is_optimizer_step):
            loss, logits = self._loss(batch.to(fabric.device, non_blocking=True))
            # The gradients of the processes are averaged: each is weighted by its rows.
            fabric.backward(loss * (n_counted * fabric.world_size / n_together))
        if is_optimizer_step:
            fabric.clip_gradients(
                self.model, self.optimizer, max_norm=CLIP_NORM, error_if_nonfinite=False
            )
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()

        self._read_loss()  # of the batch before
        total = cast(Tensor, fabric.all_reduce(loss.detach() * n_counted, reduce_op="sum"))
        n_rows = min(config.batch_size, self.n_rows - i * config.batch_size)
        self._pending = Pending(loss.detach(), total, logits.detach(), batch.rows, n_rows)
        self.step += 1
        if is_optimizer_step and not is_last and self._save_is_due():
            self._save()

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        mixup = Mixup.draw(len(batch), self.config.mixup) if self.config.mixup else None
        outputs = self.model(batch) if mixup is None else self.model(batch, mixup)
        if self.base_margin is not None:
            margin = self._of_rows(self.base_margin, batch, mixup)
            outputs = outputs._replace(logits=outputs.logits + margin)
        labels = self._of_rows(self.labels, batch, mixup)
        return self.detector.loss(outputs, labels), outputs.logits

    def _of_rows(self, numbers: Tensor, batch: Batch, mixup: Mixup | None) -> Tensor:
        """The numbers of a batch's rows, (B,) float32, mixed as the rows are."""
        values = numbers[batch.rows].to(self.fabric.device).float()
        return values if mixup is None else mixup(values)

    def _read_loss(self) -> None:
        """Add the pending loss to the epoch's; raises DataError if it is not finite."""
        if self._pending is None:
            return
        pending = self._pending
        self._pending = None
        loss = pending.loss.item()
        total = pending.total.item()
        if not math.isfinite(loss):
            is_to_blame = ~pending.logits.isfinite().cpu()
            rows = pending.rows[is_to_blame] if is_to_blame.any() else pending.rows
            what = f"step {self.step}: training loss"
            raise not_finite_error(self.detector, what, loss, rows.tolist(), self.data)
        if not math.isfinite(total):
            raise DataError(
                f"step {self.step}: the training loss is not finite in another process, whose "
                "message names the traces"
            )
        self.loss_total += total
        lr = float(self.schedule.get_last_lr()[0])
        self.hooks.on_step(self.step, pending.n_rows, total / pending.n_rows, lr)

    def _save_is_due(self) -> bool:
        seconds = time.perf_counter() - self._saved_at
        n_steps = self.step - self._saved_step
        return seconds >= self.config.save_seconds or n_steps >= self.config.save_steps

    def _save(self) -> None:
        self._read_loss()  # a state with a loss or a weight that is not finite is never saved
        for name, parameter in self.detector.named_parameters():
            if not parameter.isfinite().all():
                raise DataError(
                    f"{self.data.store.location}: step {self.step}: expected finite weights, found "
                    f"others in {name}; lower --lr, or use --precision 32"
                )
        self.hooks.on_save(self)
        self._saved_at = time.perf_counter()
        self._saved_step = self.step

    def state_dict(self) -> State:
        """Everything that `load_state_dict` needs to continue: tensors and plain values."""
        return {
            **{name: part.state_dict() for name, part in self._parts().items()},
            "history": [asdict(epoch) for epoch in self.history],
            "start": self.start.val_auroc,
            "best": self.best.weights or None,
            "best_epoch": self.best.epoch.epoch,
            "least": torch.from_numpy(self.least),
            "loss": self.loss_total,
            "seconds": self.elapsed(),
            "wait_seconds": self.wait_seconds,
        }

    def load_state_dict(self, state: State) -> None:
        """Continue a training of the same settings, with any number of processes."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.history = [Epoch(**epoch) for epoch in state["history"]]
        self.start = Epoch(-1, math.nan, state["start"])
        best = [*self.history, self.start][state["best_epoch"]]
        self.best = Best(best, state["best"] or {})
        self.least = state["least"].numpy()
        self.step = len(self.history) * self.n_batches + self._first_batch()
        self._saved_step = self.step
        self.loss_total = state["loss"]
        self.seconds = state["seconds"]
        self.wait_seconds = state["wait_seconds"]

    def _parts(self) -> dict[str, Any]:
        """The parts that save and load a state of their own."""
        return {
            "weights": self.detector,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "scaler": self.fabric.strategy.precision,
            "batches": self.batches,
        }

    def elapsed(self) -> float:
        """Seconds of this training, including those before it was continued."""
        return self.seconds + time.perf_counter() - self._clock


def build_schedule(optimizer: torch.optim.Optimizer, config: Config, n_steps: int) -> LRScheduler:
    if config.schedule == "constant":
        return ConstantLR(optimizer, factor=1.0, total_iters=0)
    # cycling would replace AdamW's first beta, .9, by .95 falling to .85 and rising again
    return OneCycleLR(optimizer, config.rate, total_steps=n_steps + 1, cycle_momentum=False)


def rows_of_optimizer_step(i: int, n_rows: int, batch_size: int, grad_accum: int) -> int:
    """Number of rows of the optimizer step that batch `i` belongs to; fewer at an epoch's end."""
    first = i // grad_accum * grad_accum * batch_size
    return min(batch_size * grad_accum, n_rows - first)


def step_seed(seed: int, epoch: int, i: int, rank: int) -> int:
    sequence = np.random.SeedSequence([seed, epoch, i, rank])
    return int(sequence.generate_state(1, np.uint64)[0])


@torch.inference_mode()
def predict(
    fabric: Fabric,
    detector: Detector,
    data: TrainingData,
    split: str,
    kept: FeatureCache | None = None,
) -> Scores:
    """Probability of hallucination of each row of a split, (n_split,), on every process.

    The arithmetic is float32 whatever the training's precision is: half precision would let scores
    tie. Rows that `kept` has are not read.
    """
    data = data.reading(detector)
    rows = data.splits.rows(split)
    detector.eval()
    parts = [torch.zeros(0, dtype=torch.float64)]  # a process may have no row
    for batch in filter(len, data.loader(split, detector.columns, fabric, kept=kept)):
        outputs = detector(batch.to(fabric.device, non_blocking=True))
        parts.append(check_logits(detector, outputs, len(batch)).cpu().double())
    logits = gather_rows(fabric, torch.cat(parts), len(rows))  # (n_split,)
    if len(rows) and logits.max() - logits.min() < ROUNDING:
        logits[:] = logits[0]  # or places in their batches would rank equal traces
    if data.base_margin is not None:
        logits += torch.from_numpy(data.base_margin[rows])
    not_finite = (~logits.isfinite()).nonzero()
    if len(not_finite):
        i = int(not_finite[0])
        raise not_finite_error(detector, "score", logits[i].item(), [int(rows[i])], data)
    # of doubles, because in float32 all logits above 17 would tie at 1
    return logits.sigmoid().numpy()


def check_logits(detector: Detector, outputs: Any, n_rows: int) -> Tensor:
    """The logits (n_rows,) of a detector's outputs; raises ConfigError for others."""
    logits = getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor) or logits.shape != (n_rows,):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(outputs).__name__
        raise ConfigError(
            f"{type(detector).__name__}: classify: expected Outputs of logits ({n_rows},), one a "
            f"trace, found {found}; correct the detector"
        )
    return logits


def not_finite_error(
    detector: Detector, what: str, number: float, rows: list[int], data: TrainingData
) -> DataError:
    """The error for a number that is NaN or infinite; it names the first of `rows`."""
    ids = [repr(data.store.ids[row]) for row in rows[:N_NAMED]]
    if len(rows) > N_NAMED:
        ids.append("...")
    return DataError(
        f"{data.store.location}: {type(detector).__name__}: {what} of traces {', '.join(ids)}: "
        f"expected a finite number, found {number}; look for values that are not finite in "
        f"{', '.join(detector.columns)} of these traces, lower --lr, use --precision 32, or leave "
        "the detector out"
    )
