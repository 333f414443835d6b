"""Numbers of several splits of the same rows: means, spreads, and tests of differences.

The splits share most of their rows: a t-test that took them for independent would find too many
differences.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.stats import t as student

from train.evaluate.paired_tests import find_verdict, holm_of_rivals, t_interval
from train.evaluate.results import (
    Entries,
    Entry,
    Explained,
    Interval,
    PairedTest,
    Results,
    SplitsSummary,
    StrataRecord,
    mean_record,
)

__all__ = [
    "ResampledTest",
    "corrected_t_test",
    "summarise_splits",
]

OF_ONE_SCORE = dict.fromkeys(("threshold", "temperature", "risk_threshold"))
Value = TypeVar("Value")


class ResampledTest(NamedTuple):
    """A mean over splits, its standard error, and its two-sided p value against 0."""

    mean: float
    error: float
    df: int
    p: float

    @property
    def ci(self) -> Interval:
        """The 95% interval of a difference, or of an AUROC."""
        return t_interval(self.mean, self.error, self.df)


def corrected_t_test(values: Sequence[float], test_over_train: float) -> ResampledTest:
    """The corrected resampled t-test of Nadeau and Bengio (2003, doi:10.1023/A:1024068626366).

    The variance of the mean of K splits is estimated as (1/K + n_test/n_train) times the sample
    variance: the second term stands for the training rows that any two splits share. t has K - 1
    degrees of freedom.

    `values` are of each split, at least two: a difference of two methods, or a number of one;
    `test_over_train` is rows of test over rows of train. p is 1 where all values are 0, and 0 where
    they are equal but not 0.
    """
    n = len(values)
    mean = float(np.mean(values))
    variance = float(np.var(values, ddof=1))
    error = math.sqrt((1 / n + test_over_train) * variance)
    if not error:
        return ResampledTest(mean, 0.0, n - 1, 0.0 if mean else 1.0)
    return ResampledTest(mean, error, n - 1, float(2 * student.sf(abs(mean) / error, n - 1)))


def summarise_splits(runs: Sequence[Results]) -> SplitsSummary:
    """Means and spreads over the results of several splits, and paired tests of the methods.

    The intervals on test are those of `corrected_t_test`, within 0 and 1. A method that a split
    lacks has no mean.
    """
    ratio = sum(run.split.test.rows for run in runs) / sum(run.split.train.rows for run in runs)
    models = mean_entries([run.models for run in runs], ratio)
    baselines = mean_entries([run.baselines for run in runs], ratio)
    comparisons = compare_over_splits(runs, models | baselines, ratio)
    compared = {test.b for test in comparisons}
    rivals = {name: entry for name, entry in baselines.items() if name in compared}
    return SplitsSummary(
        seeds=[run.split.seed for run in runs],
        test_over_train=ratio,
        models=models,
        baselines=baselines,
        strata=mean_strata(runs),
        explained=mean_explained(runs),
        comparisons=comparisons,
        verdict=find_verdict(comparisons, models, rivals, runs[0].config["margin"]),
        remarks=merge_remarks(runs),
        runs=list(runs),
    )


def in_all(objects: Sequence[dict[str, Value]]) -> dict[str, list[Value]]:
    """The keys that each of them has, in the order of the first -> the values."""
    first, *others = objects
    shared = [key for key in first if all(key in other for other in others)]
    return {key: [one[key] for one in objects] for key in shared}


def mean_entries(groups: Sequence[Entries], ratio: float) -> Entries:
    return {name: mean_entry(entries, ratio) for name, entries in in_all(groups).items()}


def mean_entry(entries: Sequence[Entry], ratio: float) -> Entry:
    """An entry with the means of metrics and costs that each split has."""
    test, val = (
        replace(mean_record([getattr(entry, split) for entry in entries]), **OF_ONE_SCORE)
        for split in ("test", "val")
    )
    test.auroc_splits = [entry.test.auroc for entry in entries]
    test.auroc_sd = float(np.std(test.auroc_splits, ddof=1))
    low, high = corrected_t_test(test.auroc_splits, ratio).ci
    test.auroc_ci = [max(0.0, low), high]
    costs = mean_record([entry.costs for entry in entries])
    return Entry(
        val=val,
        test=test,
        control=entries[0].control,
        fields=mean_by_name([entry.fields for entry in entries]),
        **vars(costs),
    )


def mean_by_name(records: Sequence[dict[str, float] | None]) -> dict[str, float] | None:
    """The mean of each name over the records that have it, the largest first; None without one."""
    known = [one for one in records if one]
    names = {name for one in known for name in one}
    means = {name: float(np.mean([one[name] for one in known if name in one])) for name in names}
    return dict(sorted(means.items(), key=lambda one: (-one[1], one[0]))) or None


def mean_strata(runs: Sequence[Results]) -> StrataRecord | None:
    """What the strata are of, and means of their numbers; None where a split has none."""
    strata = [run.strata for run in runs if run.strata is not None]
    if len(strata) < len(runs):
        return None
    mean = mean_record(strata)
    if same([one.by for one in strata]):
        return mean
    control = same([one.control for one in strata])
    by = f"groups of the score of {control or 'the hardest control of each split'}"
    return replace(mean, by=by, control=control)


def mean_explained(runs: Sequence[Results]) -> Explained | None:
    """Mean correlations with the hardest control, which is None where splits differ in it."""
    explained = [run.explained for run in runs if run.explained is not None]
    if len(explained) < len(runs):
        return None
    correlations = in_all([one.rank_correlation for one in explained])
    return Explained(
        control=same([one.control for one in explained]),
        rank_correlation={
            name: float(np.mean(found))
            for name, values in correlations.items()
            if len(found := [value for value in values if value is not None]) == len(runs)
        },
    )


def same(values: Sequence[Value]) -> Value | None:
    """The value that all are; None where they differ."""
    return values[0] if len(set(values)) == 1 else None


def merge_remarks(runs: Sequence[Results]) -> list[str]:
    """Remarks of the splits, and on what some left out; with the seeds, unless all have them."""
    seeds: dict[str, list[int]] = {}
    for run in runs:
        for remark in [*run.remarks, *remarks_on_left_out(run, runs)]:
            seeds.setdefault(remark, []).append(run.split.seed)
    return [
        remark if len(of) == len(runs) else f"split of seed {', '.join(map(str, of))}: {remark}"
        for remark, of in seeds.items()
    ]


def remarks_on_left_out(run: Results, runs: Sequence[Results]) -> list[str]:
    """Why a baseline that other splits have is in no table."""
    others = {name for other in runs for name in other.baselines}
    return [
        f"{name} could not be fitted, and is in no table: {why}"
        for name, why in (run.left_out or {}).items()
        if name in others
    ]


def compare_over_splits(
    runs: Sequence[Results], entries: Entries, ratio: float
) -> list[PairedTest[str]]:
    """The mean difference of each pair of the first split, with Holm's correction.

    Its error has half an answer of the smaller class of all splits, as in `error_of_trainings`.
    """
    pairs = [(test.a, test.b) for test in runs[0].comparisons]
    areas = {name: entry.test.auroc_splits or [] for name, entry in entries.items()}
    differences = {
        (a, b): np.subtract(areas[a], areas[b]).tolist()
        for a, b in pairs
        if a in areas and b in areas
    }
    controls = [name for name, entry in entries.items() if entry.control]
    half_an_answer = 0.5 / max(1, sum(run.split.test.fewest for run in runs))
    tests = {pair: corrected_t_test(found, ratio) for pair, found in differences.items()}
    errors = {pair: math.hypot(test.error, half_an_answer) for pair, test in tests.items()}
    p_holm = holm_of_rivals({pair: test.p for pair, test in tests.items()}, controls)
    return [
        PairedTest(
            a=a,
            b=b,
            difference=test.mean,
            ci=t_interval(test.mean, errors[a, b], test.df),
            p=test.p,
            p_holm=p_holm[a, b],
            differences=differences[a, b],
            control=b in controls,
            error=errors[a, b],
            df=test.df,
        )
        for (a, b), test in tests.items()
    ]
