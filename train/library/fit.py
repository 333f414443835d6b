"""Fit detectors on a store, with the protocol and the results of `python -m train`."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from lightning_fabric import Fabric

from train.config import Arguments, Reading, config_of_run, make_config
from train.errors import ConfigError, store_errors
from train.evaluate.metrics import Scores
from train.evaluate.results import Results
from train.files import make_directory
from train.fit.device import launched
from train.library.guard import Guard, build_guard
from train.outside import load_methods
from train.report import write_report
from train.run.detectors import read_layers
from train.run.experiment import Experiment, run_experiment
from train.run.plan import open_data
from train.run.run_record import begin_run, lock_directory
from train.run.scoring import choose_names, trained_models

__all__ = ["FittedRun", "fit", "fit_detectors"]


@dataclass(frozen=True, repr=False)
class FittedRun:
    """What a run has found and fitted."""

    experiment: Experiment

    def __repr__(self) -> str:
        results = self.results
        return f"FittedRun({', '.join([*results.models, *results.baselines])})"

    @property
    def results(self) -> Results:
        """Every result: `results["saplma"].test.auroc`, of several splits of the first."""
        return self.experiment.results

    @cached_property
    def guard(self) -> Guard:
        """The detectors and probes, to score other traces."""
        directory = self.experiment.directory
        models = trained_models(self.results, directory, directory.path / "results.json")
        reading = Reading(force_cpu=models.config.force_cpu)
        return build_guard(models, choose_names(models, None), reading)

    def score(self, traces: object, *, force: bool = False) -> dict[str, Scores]:
        """As `Guard.score`, by every detector and probe."""
        return self.guard.score(traces, force=force)

    def export(self, path: str | Path) -> None:
        """As `Guard.export`, of every detector and probe."""
        self.guard.export(path)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write what `python -m train` writes: results, scores, checkpoints and the report.

        The directory may be there; another run in it is replaced if `overwrite` says so. Raises
        ConfigError for another run, OutputError where nothing can be written.
        """
        place = Path(path)
        one = self.experiment
        if one.directory.memory is None:
            raise ConfigError(f"{place}: the run is written already, to {one.directory.path}")
        arguments = Arguments(config_of_run(self.results.config, "settings"), overwrite=overwrite)
        make_directory(place)
        with lock_directory(place):
            layers = read_layers(self.results.models, one.data)
            begin_run(place, arguments, one.data, layers, one.directory.id)
            one.directory.copy_to(place)
            write_report(moved(one, place), place)


def moved(experiment: Experiment, place: Path) -> Experiment:
    """The experiment whose directory, and those of its splits, are in another place."""
    directory = replace(experiment.directory, path=place / experiment.directory.path)
    further = tuple(moved(other, place) for other in experiment.further)
    return replace(experiment, directory=directory, further=further)


def fit_detectors(
    store: str | Path | Sequence[str | Path],
    models: str | Sequence[str] | None = None,
    *,
    progress: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    **settings: object,
) -> FittedRun:
    """Train and test detectors on a store, beside the baselines and controls.

    No file is written without an `output_dir`; it is what `python -m train` does but for printing.

    Parameters
    ----------
    store
        Path or address of the store, or of several, which are read as one.
    models
        Names of detectors and probes, "all", or FILE.py:CLASS, whose file is run; not with `only`.
    progress
        Show bars and remarks on stderr.
    resume, overwrite
        What becomes of a run that is in `output_dir`, as the flags.
    settings
        Any flag of `python -m train --help` by its name: `seeds=3`, `baselines=False`,
        `only="saplma,mean_logprob"`, `hold_out="each"`.

    Raises
    ------
    TrainError
        A setting is wrong, or the store cannot be trained on; nothing was trained then.
    """
    if models is not None:
        names = models if isinstance(models, str) else ",".join(models)
        settings["models"] = load_methods(names)
    given = str(store) if isinstance(store, str | Path) else list(map(str, store))
    config = make_config(settings | {"store": given})
    with launched(config) as fabric, store_errors():
        if fabric.world_size > 1:
            raise ConfigError(
                f"fit_detectors: expected one process, found {fabric.world_size}; python -m train "
                "is what several share"
            )
        arguments = Arguments(config, resume, overwrite)
        output_dir = None if config.output_dir is None else Path(config.output_dir)
        run = fit(arguments, fabric, config.stores, output_dir, progress=progress)
    assert run is not None  # of the first process
    return run


def fit(
    arguments: Arguments,
    fabric: Fabric,
    stores: Sequence[Path],
    output_dir: Path | None,
    *,
    progress: bool,
) -> FittedRun | None:
    """Check, train and test; None for all processes but the first.

    With an `output_dir` everything is written there, checkpoints as soon as there are some. Raises
    TrainError or StoreError for a mistake.
    """
    if arguments.config.follow and (arguments.resume or fabric.world_size > 1):
        found = "--resume" if arguments.resume else f"{fabric.world_size} processes"
        raise ConfigError(f"--follow: expected one process that begins, found {found}")
    work = open_data(arguments.config, stores)
    lock: AbstractContextManager[None] = nullcontext()
    if output_dir is not None:
        for store in stores:
            if output_dir.resolve().is_relative_to(store.resolve()):
                raise ConfigError(
                    f"--output-dir: expected a directory outside the store {store}, found "
                    f"{output_dir}"
                )
        make_directory(output_dir)
        lock = lock_directory(output_dir) if fabric.is_global_zero else lock
    with lock:
        experiment = run_experiment(arguments, fabric, work, output_dir, progress=progress)
        if experiment is None:  # the first process writes for all
            return None
        if output_dir is not None:
            write_report(experiment, output_dir)
    return FittedRun(experiment)
