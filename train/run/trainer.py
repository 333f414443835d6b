"""Training and scoring of detectors, probes and baselines, each kept in the run's directory."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from lightning_fabric import Fabric

from models import BASELINES, CONTROLS, Detector, FittedProbe, Probe
from store.reports import count, first_ids
from train.data.batches import TrainingData
from train.data.questions import Asked
from train.data.requirements import missing_columns, reader_of
from train.data.splits import Splits
from train.errors import DataError
from train.evaluate.findings import Scored, ScoredByName
from train.evaluate.intervals import auroc_interval
from train.evaluate.metrics import Scores, auroc
from train.evaluate.results import Choices, Epoch, Facts, TrainingFacts
from train.fit.device import for_a_batch, memory_enough
from train.fit.loop import Hooks, Training, fit, predict
from train.fit.probes import score_probe
from train.fit.token_scores import detector_tokens, probe_tokens, token_columns
from train.run.checkpoint import (
    Checkpoint,
    FinishedTraining,
    RunDirectory,
    TrainingFiles,
    check_layer,
    load_weights,
)
from train.run.detectors import build_detector, number_of_layer, set_loss, settings_of_training
from train.run.progress import Relay, TensorBoardLog, TrainingBar, TrainingProgress
from train.run.search import Settings, describe_settings, for_trials, search, values_of

__all__ = [
    "Trainer",
    "TrainingHooks",
    "chance_warning",
    "joined_warning",
]

Content = TypeVar("Content")


@dataclass(frozen=True)
class TrainingHooks(Hooks):
    """What the first process does besides training: it shows, logs and saves."""

    files: TrainingFiles
    bar: TrainingBar | Relay
    log: TensorBoardLog | None
    layer: int | None  # that the detector reads, where it reads one

    def on_step(self, step: int, n_rows: int, loss: float, lr: float) -> None:
        self.bar.on_step(n_rows, loss)
        if self.log is not None:
            self.log.on_step(step - 1, loss, lr)

    def on_epoch(self, epoch: Epoch) -> None:
        self.bar.on_epoch(epoch)
        if self.log is not None:
            self.log.on_epoch(epoch)

    def on_save(self, training: Training) -> None:
        self.files.save_state({**training.state_dict(), "layer": self.layer})


@dataclass(frozen=True)
class Trainer:
    """Trains and scores for one run; the seed is that of the split and the first training."""

    directory: RunDirectory
    data: TrainingData
    fabric: Fabric
    progress: TrainingProgress | Relay
    measures_tokens: bool = False  # whether the store has usable labels of tokens

    def fit_baselines(self) -> tuple[ScoredByName, dict[str, str]]:
        """Fit the baselines and controls of the settings whose columns the store has.

        Returns scores by name; and, by name, why a baseline was left out. Its column holds numbers
        that are not finite, which does not stop a run: the user did not ask for this baseline. Of a
        control it is said as well that the store has no such column; where a store has no fields,
        nothing is said of the control that reads them.
        """
        fitted: ScoredByName = {}
        left_out: dict[str, str] = {}
        for name in self.data.config.references:
            columns = reader_of(name, self.data).columns
            missing = missing_columns(self.data, columns)
            if not columns or (missing and name in BASELINES):
                continue
            try:
                if missing:
                    raise DataError(f"the store has no column {' or '.join(map(repr, missing))}")
                fitted[name] = self.fit_probe(name)
            except DataError as error:
                left_out[name] = str(error)
                kind = "control" if name in CONTROLS else "baseline"
                self.progress.say(f"{kind} {name} is left out: {error}")
        for name in CONTROLS.keys() & fitted.keys():
            fitted[name].facts.control = True
        return fitted, left_out

    def fit_probe(self, name: str) -> Scored:
        """Fit and score a probe or a baseline, and save what was fitted."""
        probe = reader_of(name, self.data)
        purpose = "the features of all rows; lower --max-traces, or read fewer --layers"
        with memory_enough(name, purpose):
            scored, fitted = score_probe(name, probe, self.data)
        owner = self.directory.training(name, self.data.config.seed).owner
        self.directory.save(self.directory.probe(name), owner, fitted.to_dict())

        def score(split: str) -> np.ndarray:
            assert isinstance(probe, Probe)  # a probe of texts has no columns for tokens
            assert isinstance(fitted, FittedProbe)
            return probe_tokens(probe, fitted, self.data, split)

        return replace(scored, tokens=self.score_tokens(name, score))

    def score_tokens(
        self, name: str, score: Callable[[str], np.ndarray]
    ) -> dict[str, list[np.ndarray]]:
        """Split -> scores of its tokens, by this process alone; empty where they are not judged."""
        is_judged = self.measures_tokens and self.fabric.is_global_zero
        if not is_judged or not token_columns(name, self.data):
            return {}
        return {split: [score(split)] for split in ("val", "test")}

    def train_once(self, name: str, seed: int, first: Scored | None = None) -> Scored:
        """Train a detector with one seed, unless that is done; score it with its best weights.

        It has the settings of the training with the first seed, for which they are searched.
        Raises CheckpointError, before it trains, if that one read another layer.
        """
        with memory_enough(name, for_a_batch(self.data.config)):
            return self._train_once(name, seed, first)

    def _train_once(self, name: str, seed: int, first: Scored | None) -> Scored:
        files = self.directory.training(name, seed)
        runs = [] if first is None else first.facts.runs or []
        finished = self.read_first(files.load_finished)
        data = self.data.with_settings(seed=seed)
        if finished is not None:
            data = data.with_settings(**settings_of_training(finished.config))
        else:
            if not runs:
                self.check_scores(self.begin(name, data), data)
            chosen, seconds = (runs[0].settings, 0.0) if runs else self.search(files, data)
            data = data.with_settings(**values_of(chosen))
        detector = self.begin(name, data)
        layer = number_of_layer(detector, self.data)
        for run in runs:
            path = self.directory.path / run.checkpoint
            check_layer(path, run.layer, f"layer {layer}, that of seed {seed}", layer)
        if finished is None:
            finished = self.train_to_the_end(files, detector, data, chosen, seconds)
        load_weights(detector, finished.weights, files.checkpoint)
        val = self.score(detector, data, "val")
        started_at, before = time.perf_counter(), data.store.reader.n_bytes_read
        test = self.score(detector, data, "test")
        seconds = time.perf_counter() - started_at
        # each process reads a part
        read_here = torch.tensor(float(data.store.reader.n_bytes_read - before))
        n_bytes: Any = self.fabric.all_reduce(read_here, reduce_op="sum")
        run = replace(finished.facts, ms_per_trace=1000 * seconds / len(test), layer=layer)
        title = f"{name} seed {seed}"
        if not detector.targets:  # else it learned something else than to rank traces
            of_chance = chance_warning(title, val, self.data.splits)
            run.warning = "; ".join(filter(None, (run.warning, of_chance))) or None
        if run.warning is not None:
            self.progress.say(run.warning)
        facts = Facts(
            parameters=detector.n_parameters(),
            seconds=run.seconds,
            bytes_per_trace=float(n_bytes) / len(test),
            runs=[run],
        )
        device = self.fabric.device
        tokens = self.score_tokens(
            name, lambda split: detector_tokens(detector, self.data, split, device)
        )
        return Scored(val[None], test[None], facts, tokens, finished.followed)

    def search(self, files: TrainingFiles, data: TrainingData) -> tuple[Choices, float]:
        """Choose the settings of a detector that are open, by short trainings of so many seconds.

        A stopped run goes on with the trials that are not done: their files stay until the training
        that they are for has ended.
        """
        name = files.name
        few = for_trials(data)
        seconds = 0.0

        def try_out(settings: Settings, epochs: int) -> Epoch:
            nonlocal seconds
            one = few.with_settings(**settings, epochs=epochs)
            trial = files.trial_of({**settings, "epochs": epochs})
            finished = self.read_first(trial.load_finished)
            try:
                finished = finished or self.train_to_the_end(trial, self.begin(name, one), one)
            except DataError:  # it diverged; if the data are to blame, the training will say so
                return Epoch(-1, math.inf, 0.5, math.inf)
            seconds += finished.facts.seconds
            return finished.facts.least

        chosen = search(name, data, try_out) if data.config.tune != "none" else {}
        return describe_settings(name, data, chosen), seconds

    def read_first(self, read: Callable[[], Content | None]) -> Content | None:
        """What the first process reads of the run: another host may still see older files."""
        content = read() if self.fabric.is_global_zero else None
        return self.fabric.broadcast(content)

    def begin(self, name: str, data: TrainingData) -> Detector:
        """An untrained detector, its weights drawn with the seed of the settings."""
        self.fabric.seed_everything(data.config.seed, verbose=False)
        detector = build_detector(name, data)
        set_loss(detector, data)
        return detector

    def check_scores(self, detector: Detector, data: TrainingData) -> None:
        """Raise now what would stop the scoring after hours of training: NaN, too little memory."""
        for split in ("val", "test"):
            self.score(detector, data, split)

    def score(self, detector: Detector, data: TrainingData, split: str) -> np.ndarray:
        """Scores of a split, (n_split,)."""
        detector.to(self.fabric.device)
        return predict(self.fabric, detector, data, split)

    def train_to_the_end(
        self,
        files: TrainingFiles,
        detector: Detector,
        data: TrainingData,
        settings: Choices | None = None,
        seconds: float = 0.0,
    ) -> FinishedTraining:
        """Train a detector, from its saved state if there is one, and save it.

        `settings` are the record of its choices, for which so many seconds were spent.
        """
        state = self.read_first(files.load_state)
        if state is not None:
            layer = number_of_layer(detector, data)
            check_layer(files.state, state["layer"], f"layer {layer}", layer)
        with self.watch(files, state, detector, data) as hooks:
            training = fit(self.fabric, detector, data, hooks, state)
        facts = TrainingFacts(
            seed=files.seed,
            checkpoint=files.checkpoint.name,
            history=training.history,
            seconds=round(training.elapsed() + seconds, 1),
            wait_seconds=round(training.wait_seconds, 3),
            processes=self.fabric.world_size,
            ms_per_trace=0.0,  # which is measured later
            settings=settings or {},
            best_epoch=training.best.epoch.epoch,
        )
        followed: list[Asked] = []
        if data.config.follow:
            facts.last_rows = training.n_rows
            added = np.setdiff1d(training.trained, data.splits.train)
            followed = training.data.splits.asked.distinct(added)
            ever = replace(training.data.splits, train=training.trained)
            facts.warning = joined_warning(data.splits, ever)
        if data.base_margin is not None:
            facts.start_val_auroc = training.start.val_auroc
        shapes = {role: list(shape) for role, shape in data.item_shapes(detector.columns).items()}
        weights = training.best.weights
        finished = FinishedTraining(weights, shapes, asdict(data.config), facts, followed)
        if self.fabric.is_global_zero:
            files.finish(finished)
        return finished

    @contextmanager
    def watch(
        self, files: TrainingFiles, state: Checkpoint | None, detector: Detector, data: TrainingData
    ) -> Iterator[Hooks]:
        """The hooks of a training, which may continue from a state: its bar and its log.

        Only the first process has them.
        """
        if not self.fabric.is_global_zero:
            yield Hooks()
            return
        n_rows = data.n_visits
        batch_size = data.config.batch_size
        n_epochs = len(state["history"]) if state else 0
        position = state["batches"]["position"] if state else 0
        n_steps = n_epochs * math.ceil(n_rows / batch_size) + position // batch_size
        title = files.name if self.data.config.seeds == 1 else f"{files.name} seed {files.seed}"
        title += files.trial.replace("-", " ")
        bar = self.progress.begin(title, n_rows, data.n_epochs, n_epochs * n_rows + position)
        is_logged = not files.trial and files.run.memory is None
        log = TensorBoardLog(files.log, n_steps or None) if is_logged else None
        with closing(log) if log else nullcontext():
            layer = number_of_layer(detector, data)
            yield TrainingHooks(files, bar, log, layer)
        bar.end(not files.trial)


ADVICE = "more --epochs, another --lr, more traces, or other --layers"


def chance_warning(title: str, scores: Scores, splits: Splits) -> str | None:
    """One line on a training that has not left chance; None for one that has.

    `scores` (n_val,) are those of the best weights.
    """
    labels = splits.labels_of("val")
    area = auroc(labels, scores)
    low, high = auroc_interval(labels, scores, splits.questions[splits.val])
    if low > 0.5:
        return None
    interval = f"{area:.3f} [{low:.3f}, {high:.3f}]"
    return f"warning: {title} has not left chance: validation AUROC {interval}; try {ADVICE}"


def joined_warning(begun: Splits, ever: Splits) -> str | None:
    """One line on questions of val and test that had been trained on before a new trace showed that
    they are; None if there are none.

    `begun` are the splits of the beginning; `ever` those of the end, with all rows that were
    trained on.
    """
    joined = sorted({*ever.shared_questions()} - {*begun.shared_questions()})
    if not joined:
        return None
    questions = count(len(joined), "question of val or test was", "questions of val or test were")
    return (
        f"warning: {questions} trained on before new traces showed it: their scores say nothing "
        f"about new questions ({first_ids(joined)})"
    )
