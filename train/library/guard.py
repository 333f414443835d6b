"""Scores of new traces by what a run has fitted, from its directory or from one exported file."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from train.config import Config, Reading, scoring_settings
from train.errors import ConfigError, store_errors
from train.evaluate.metrics import Scores
from train.evaluate.results import Results
from train.outside import describe_changes, load_methods
from train.run.export import read_export, write_export
from train.run.scoring import (
    Scorer,
    TrainedModels,
    check_comparable,
    choose_names,
    keep_in_memory,
    open_models,
    read_data,
)

if TYPE_CHECKING:
    from train.library.watch import Watch

__all__ = ["Guard", "build_guard", "load_run"]


@dataclass(frozen=True, repr=False)
class Guard:
    """Fitted methods, by name; threads may share it."""

    models: TrainedModels
    names: list[str]

    def __repr__(self) -> str:
        return f"Guard({', '.join(self.names)})"

    @property
    def results(self) -> Results:
        """What the run found of each method."""
        return self.models.results

    @property
    def config(self) -> Config:
        """The settings of the run, and how traces are read."""
        return self.models.config

    @property
    def thresholds(self) -> dict[str, float]:
        """The probability from which on each method says hallucination, chosen on validation."""
        found = {name: self.results[name].test.threshold for name in self.names}
        return {name: threshold for name, threshold in found.items() if threshold is not None}

    def score(self, traces: object, *, force: bool = False) -> dict[str, Scores]:
        """Probability of hallucination of each trace, float64 (n_traces,), by each method.

        The mean over the seeds, equal to `python -m train predict` bit for bit.

        Parameters
        ----------
        traces
            A store or its path, or a list of paths; traces of one (`store[5:9]`); a `Batch`; or
            arrays by column: (n_traces, ...), a list of one for each trace where they have tokens,
            a list of texts. In memory there are the layers that the run read, and no others.
        force
            Score traces of another model, other layers or other prompts all the same.

        Raises
        ------
        DataError
            A column is missing or of another shape; traces of a store are of another model, of
            other layers or of other prompts than those of the run.
        """
        return self.read(traces, force=force).scores(self.names)

    def read(self, traces: object, *, force: bool = False) -> Scorer:
        """What scores some traces, checked; the arguments and errors are those of `score`."""
        with store_errors():
            data = read_data(traces, self.names, self.models)
            remarks = check_comparable(self.models, self.names, data, force=force)
        changes = describe_changes(self.config.outside, self.names)
        return Scorer(self.models, data, [*changes, *remarks])

    def predict_proba(
        self, traces: object, model: str | None = None, *, force: bool = False
    ) -> Scores:
        """As of scikit-learn: the probabilities of no hallucination and of one, (n_traces, 2).

        `model` names the method, which a guard of one method does not need. Raises ConfigError
        where it does, and what `score` raises.
        """
        name = self.names[0] if model is None and len(self.names) == 1 else model
        if name not in self.names:
            choices = ", ".join(self.names)
            raise ConfigError(f"model: expected one of {choices}, found {model!r:.80}")
        one = replace(self, names=[name]).score(traces, force=force)[name]
        return np.stack([1 - one, one], axis=1)

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """As of scikit-learn: the settings of the run, by their names."""
        return asdict(self.config)

    def export(self, path: str | Path) -> None:
        """Write everything that scores need into one file of safetensors, which `load_run` reads.

        Weights, scales and thresholds, and what is expected of traces: their model, columns and
        layers. It has no code, nor the paths of this machine. Raises ConfigError for a method from
        outside, whose code the file would need.
        """
        write_export(Path(path), self.models, self.names)

    def watch(self, model: Any, tokenizer: Any, *, force: bool = False) -> "Watch":
        """Score what a causal model of transformers says inside the block of the result.

        Raises ConfigError for a method that reads what generation cannot give, DataError for a
        model that the run was not trained on, unless forced.

        Examples
        --------
        >>> with guard.watch(model, tokenizer) as watch:  # doctest: +SKIP
        ...     model.generate(**inputs, max_new_tokens=64)
        >>> watch.scores  # doctest: +SKIP
        [{'saplma': 0.31}]
        """
        from train.library.watch import Watch

        return Watch(self.score, self.names, self.models, model, tokenizer, force=force)


def load_run(
    path: str | Path,
    models: str | Sequence[str] | None = None,
    *,
    batch_size: int | None = None,
    num_workers: int = 0,
    force_cpu: bool = False,
) -> Guard:
    """Load what a run has fitted, from its directory or a file of `Guard.export`.

    Nothing that is loaded is run as code.

    Parameters
    ----------
    models
        Names of detectors, probes, baselines and controls; without them all detectors and probes,
        or all that a file was exported of. FILE.py:CLASS is one of your own, whose file is run.
    batch_size
        Traces at a time, by default as in the run.
    num_workers
        Threads that read a store ahead.
    force_cpu
        Use the CPU even where there is an accelerator.

    Raises
    ------
    TrainError
        There is no such run, or a file of it is damaged; a method is unknown.
    """
    place = Path(path)
    if models is not None and not models:
        raise ConfigError("--models: expected names of methods, found none; leave it out for all")
    text = models if isinstance(models, str | None) else ",".join(models)
    text = load_methods(text or "")
    found = read_export(place) if place.is_file() else open_models(place)
    names = choose_names(found, text)
    return build_guard(found, names, Reading(batch_size, num_workers, force_cpu))


def build_guard(models: TrainedModels, names: list[str], reading: Reading) -> Guard:
    """Methods of a run, their weights in memory."""
    config = scoring_settings(models.config, reading)
    return Guard(keep_in_memory(replace(models, config=config), names), names)
