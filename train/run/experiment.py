"""A run from its settings to its results: check everything, train, score the test split once.

Mistakes of the user are reported before the first file is written.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray

from store.reports import say
from store.traces.question_split import SPLITS
from train.config import EACH, Arguments
from train.data.batches import TrainingData
from train.data.questions import Asked
from train.data.remarks import find_remarks
from train.data.requirements import missing_columns, reader_of
from train.data.splits import is_missing, read_second_labels, read_values
from train.evaluate.findings import (
    LABEL_THRESHOLDS,
    Scored,
    ScoredByName,
    build_frame,
    compare_all,
    count_splits,
    label_sensitivity,
    measure_left_out,
    measure_method,
)
from train.evaluate.frame import Frame
from train.evaluate.label_noise import measure_label_noise
from train.evaluate.over_splits import summarise_splits
from train.evaluate.paired_tests import hardest_control
from train.evaluate.results import Explained, Facts, Results, best_on_validation
from train.evaluate.strata import Strata, cut_by, measure_within, rank_correlation, strata_of
from train.evaluate.tokens import TokenTruth, describe_tokens, measure_tokens, read_token_truth
from train.files import make_directory
from train.fit.device import cpu_arithmetic, default_threads
from train.fit.probes import Features, fit_probe, out_of_fold_margin, probe_margin, read_features
from train.run.checkpoint import RunDirectory
from train.run.detectors import (
    also_needed,
    build_detector,
    bytes_of_answers,
    hidden_size,
    read_layers,
)
from train.run.jobs import Jobs, count_jobs
from train.run.plan import Work
from train.run.progress import TrainingProgress
from train.run.run_record import begin_run, check_agreement, describe_store
from train.run.trainer import Trainer

__all__ = ["Experiment", "run_experiment", "train_detectors"]


@dataclass(frozen=True)
class Experiment:
    """The results of a split as they are written, and its scores."""

    results: Results  # of the first of several splits with the summary of all
    data: TrainingData  # the store, split as these results are
    frame: Frame[str]
    directory: RunDirectory  # where the files of this split are
    # what detectors learned besides the split, from a store that was followed
    followed: Sequence[Asked] = ()
    further: tuple["Experiment", ...] = ()  # the other splits


def run_experiment(
    arguments: Arguments,
    fabric: Fabric,
    work: Work,
    output_dir: Path | None,
    *,
    progress: bool = True,
) -> Experiment | None:
    """Train and score every detector and baseline; checkpoints go to `output_dir`, which exists.

    Without one they are kept in memory. With `progress` bars and remarks go to stderr.

    Of several splits the first one has its files there, each other one in a directory of its own
    below, and each is what a run with its seed, or without its value, would be. All processes
    train, and get None; only the first one judges the scores and gets the results.
    """
    config = work.config
    data = work.splits[0]
    check_agreement(fabric, config, data)
    is_first = fabric.is_global_zero
    for name in work.detectors:
        build_detector(name, data)  # raises what would stop it later
    widest = max((hidden_size(name, data) for name in work.detectors), default=0)
    n_threads = config.threads or default_threads(widest)
    n_jobs = count_jobs(config, fabric, n_threads, len(work.detectors) * config.seeds)
    parts = [add_base_margin(part) for part in work.splits]
    directory = RunDirectory(Path(), id="")
    if is_first:
        directory = begin_run(output_dir, arguments, data, read_layers(work.names, data))
    directory = fabric.broadcast(directory)
    if progress and is_first:
        if directory.replaces:
            text = f"{directory.path}: trained again, in place of the finished run there"
            say(text, file=sys.stderr)
        of_splits = [remark for part in parts for remark in find_remarks(part)]
        for remark in dict.fromkeys([*of_splits, *work.remarks]):
            say(remark, file=sys.stderr)
    experiments = []
    for part in parts:
        place = directory
        if part is not parts[0]:
            place = directory.split(part.splits.seed, part.config.hold_out)
        if is_first and place.memory is None:
            make_directory(place.path)
        trainer = Trainer(place, part, fabric, TrainingProgress(progress and is_first))
        experiments.append(run_split(work, trainer, n_threads, n_jobs))
    first, *further = experiments
    if first is None:
        return None
    others = tuple(experiment for experiment in further if experiment is not None)
    results = replace(first.results, config=asdict(config))
    if config.hold_out == EACH:
        results.transfer = [
            measure_left_out(str(one.data.config.hold_out), one.frame.test, first.frame)
            for one in others
        ]
        of_others = [
            f"{one.results.split.by}: {remark}"
            for one in others
            for remark in one.results.remarks
            if remark not in first.results.remarks
        ]
        results.remarks = [*first.results.remarks, *work.remarks, *of_others]
    elif others:
        results.splits = summarise_splits([one.results for one in (first, *others)])
    return replace(first, results=results, further=others)


def run_split(work: Work, trainer: Trainer, n_threads: int, n_jobs: int) -> Experiment | None:
    """Train and score everything on one split; None for all processes but the first."""
    data = trainer.data
    is_first = trainer.fabric.is_global_zero
    truth = read_token_truth(data)
    at_work = replace(
        trainer, data=data.with_settings(jobs=n_jobs), measures_tokens=truth is not None
    )
    with cpu_arithmetic(n_threads), Jobs(at_work, n_jobs) as jobs:
        if is_first:  # what takes seconds before what takes hours
            probes = {name: jobs.submit(Trainer.fit_probe, name) for name in work.probes}
            references = jobs.submit(Trainer.fit_baselines)
        scored = train_detectors(jobs, work.detectors)
        if is_first:
            scored |= {name: jobs.result(probe) for name, probe in probes.items()}
            baselines, left_out = jobs.result(references)
    if not is_first:
        return None
    scored = {name: scored[name] for name in work.names} | baselines
    frame = build_frame(scored, data)
    results = build_results(trainer, frame, scored, work.names)
    if truth is not None:
        measure_all_tokens(results, scored, truth)
    results.left_out = left_out or None
    results.machine["jobs"] = n_jobs
    followed = [asked for one in scored.values() for asked in one.followed]
    return Experiment(results, data, frame, trainer.directory, followed)


def train_detectors(jobs: Jobs, names: Sequence[str]) -> ScoredByName:
    """Train detectors once per seed: the first seed of all of them, then the others."""
    config = jobs.trainer.data.config
    seeds = range(config.seed, config.seed + config.seeds)
    firsts = {name: jobs.submit(Trainer.train_once, name, seeds[0]) for name in names}
    others = {}
    for name, training in firsts.items():
        first = jobs.result(training)
        others[name] = [jobs.submit(Trainer.train_once, name, seed, first) for seed in seeds[1:]]
    return {
        name: over_seeds([jobs.result(firsts[name]), *map(jobs.result, others[name])])
        for name in names
    }


def over_seeds(trainings: Sequence[Scored]) -> Scored:
    """The trainings of a detector as one, with the means of what they took."""
    runs = [run for one in trainings for run in one.facts.runs or []]
    facts = Facts(
        parameters=max(one.facts.parameters for one in trainings),
        seconds=round(sum(run.seconds for run in runs) / len(runs), 1),
        ms_per_trace=sum(run.ms_per_trace for run in runs) / len(runs),
        bytes_per_trace=sum(one.facts.bytes_per_trace or 0 for one in trainings) / len(trainings),
        runs=runs,
    )
    val = np.concatenate([one.val for one in trainings])
    test = np.concatenate([one.test for one in trainings])
    tokens = {split: [one.tokens[split][0] for one in trainings] for split in trainings[0].tokens}
    followed = [asked for one in trainings for asked in one.followed]
    return Scored(val, test, facts, tokens, followed)


def measure_all_tokens(
    results: Results, scored: ScoredByName, truth: dict[str, TokenTruth]
) -> None:
    """Write into the results what is found of tokens, by each method that has scores of them."""
    for name, one in scored.items():
        if one.tokens:
            results.entries[name].tokens = measure_tokens(
                one.tokens["val"], one.tokens["test"], truth
            )
    results.tokens = {split: describe_tokens(of_split) for split, of_split in truth.items()}


def add_base_margin(data: TrainingData) -> TrainingData:
    """The data, with the log-odds of the baseline, if any, that detectors learn to add to."""
    name = data.config.on_top_of
    if name is None:
        return data
    probe = reader_of(name, data)
    features: Features = {}
    for split in SPLITS:
        features[split] = read_features(name, probe, data, split, features.get("train"))
    fitted = fit_probe(probe, features, data.splits)
    margin = probe_margin(fitted, features, data)
    margin[data.splits.train] = out_of_fold_margin(probe, fitted, features["train"], data.splits)
    return replace(data, base_margin=margin)


def build_results(
    trainer: Trainer, frame: Frame[str], scored: ScoredByName, names: Sequence[str]
) -> Results:
    """What is found of the scores; `names` are those of the models, all others are baselines."""
    data = trainer.data
    entries = {
        name: measure_method(frame, name, one.facts, data.config.risk)
        for name, one in scored.items()
    }
    for name, entry in entries.items():
        entry.bytes_per_trace = (entry.bytes_per_trace or 0) + bytes_of_answers(name, data)
        entry.also_needs = also_needed(name, data)
    models = {name: entries[name] for name in names}
    baselines = {name: entry for name, entry in entries.items() if name not in models}
    runs = [run for entry in models.values() for run in entry.runs or []]
    comparisons, verdict = compare_all(models, baselines, frame.test, data.config.margin)
    hardest = hardest_control(comparisons, best_on_validation(models), data.config.margin)
    control = None if hardest is None else hardest.b
    explained = None
    if control is not None:
        scores = frame.test.scores
        ranks = {name: rank_correlation(scores[name], scores[control]) for name in models}
        explained = Explained(control, ranks)
    strata = find_strata(data, frame, control)
    if strata is not None:
        for name, entry in entries.items():
            entry.test.auroc_within = measure_within(frame.test, name, strata)
    results = Results(
        run=trainer.directory.id,
        split=count_splits(data.splits),
        models=models,
        baselines=baselines,
        comparisons=comparisons,
        verdict=verdict,
        strata=None if strata is None else strata.summary(frame.test.labels),
        explained=explained,
        store=describe_store(data.store),
        layers=read_layers(scored, data),
        config=asdict(data.config),
        machine=describe_machine(trainer.fabric),
        remarks=[*find_remarks(data), *(run.warning for run in runs if run.warning is not None)],
    )
    truth = read_truth(data)
    # of 0 and 1 every cut gives the same labels
    if truth is not None and len(np.unique(truth[~np.isnan(truth)])) > 2:
        results.label_sensitivity = [
            label_sensitivity(frame.test, truth, threshold) for threshold in LABEL_THRESHOLDS
        ]
    config = data.config
    if config.label_noise is not None or config.second_label is not None:
        second = read_second_labels(data.store, config.second_label, data.splits.test)
        results.label_noise = measure_label_noise(frame.test, config.label_noise, second)
    return results


def read_truth(data: TrainingData) -> NDArray[np.float32] | None:
    """The column `score` of the test split (n_test,), which labels derive from; None without it."""
    if missing_columns(data, ["score"]):
        return None
    return data.store.read(data.splits.test, columns=["score"]).fixed("score").float().numpy()


def find_strata(data: TrainingData, frame: Frame[str], control: str | None) -> Strata | None:
    """The strata of the test rows: by a column, else by the score of a control, if any."""
    column = data.config.strata
    if column is not None:
        values = read_values(data.store, column, "--strata", data.splits.test)
        return strata_of(f"values of {column}", values, is_missing(values))
    if control is None:
        return None
    return cut_by(control, frame.val.mean(control), frame.test.mean(control))


def describe_machine(fabric: Fabric) -> dict[str, object]:
    device = fabric.device.type
    if device == "cuda":
        device = torch.cuda.get_device_name(fabric.device)
    return {
        "device": device,
        "processes": fabric.world_size,
        "precision": fabric.strategy.precision.precision,
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
