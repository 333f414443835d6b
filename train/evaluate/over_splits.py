"""Numbers of several splits of the same rows: means, spreads, and tests of differences.

NumPy arrays in, plain numbers out. The splits share most of their rows, so their results are not
independent: a t-test that took them for independent would find too many differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from train.evaluate.paired_tests import holm_of_rivals
from train.files import Json

__all__ = ["ResampledTest", "corrected_t_test", "over_all_splits", "summarise_splits"]

GROUPS = ("models", "baselines")
# of an entry: what has a mean over splits
MEANT = ("val", "test", "parameters", "seconds", "ms_per_trace")


class ResampledTest(NamedTuple):
    """A mean over splits, its 95% interval, and its two-sided p value against 0."""

    mean: float
    low: float
    high: float
    p: float


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
    margin = float(student.ppf(0.975, n - 1)) * error
    if not error:
        return ResampledTest(mean, mean, mean, 0.0 if mean else 1.0)
    p = float(2 * student.sf(abs(mean) / error, n - 1))
    return ResampledTest(mean, mean - margin, mean + margin, p)


def summarise_splits(runs: Sequence[Json]) -> Json:
    """Means and spreads over the results of several splits, and paired tests of the methods.

    `runs` are the results of each split, with `split`, `models`, `baselines` and `comparisons`, as
    results.json has them.

    Returns
    -------
    dict
        JSON-able: `seeds`; `test_over_train`; `models` and `baselines`, whose entries have the form
        of those of one split, with means over the splits, and on test `auroc_splits`, `auroc_sd`
        (over the splits) and `auroc_ci` (of `corrected_t_test`, within 0 and 1); `strata` and
        `explained` with means; `comparisons`, one a pair of methods, with the `differences` of each
        split; `verdict`; `remarks` of any split; and `runs`, the results themselves.
    """
    ratio = sum(count_rows(run, "test") for run in runs) / sum(
        count_rows(run, "train") for run in runs
    )
    groups = {
        group: {
            name: mean_entry([run[group][name] for run in runs], ratio)
            for name in in_all([run[group] for run in runs])
        }
        for group in GROUPS
    }
    comparisons = compare_over_splits(runs, groups["models"] | groups["baselines"], ratio)
    return {
        "seeds": [run["split"]["seed"] for run in runs],
        "test_over_train": ratio,
        **groups,
        "strata": mean_strata(runs),
        "explained": mean_explained(runs),
        "comparisons": comparisons,
        "verdict": find_verdict(comparisons, groups),
        "remarks": merge_remarks(runs),
        "runs": list(runs),
    }


def count_rows(run: Json, split: str) -> int:
    return int(run["split"][split]["rows"])


def in_all(entries: Sequence[Json]) -> list[str]:
    """The names that each of them has, in the order of the first."""
    return [name for name in entries[0] if all(name in other for other in entries)]


def mean_entry(entries: Sequence[Json], ratio: float) -> Json:
    """An entry of the same form, with the means of metrics and costs that each split has."""
    merged = mean_numbers([{key: entry[key] for key in MEANT if key in entry} for entry in entries])
    areas = [entry["test"]["auroc"] for entry in entries]
    test = corrected_t_test(areas, ratio)
    merged["test"] |= {
        "auroc_splits": areas,
        "auroc_sd": float(np.std(areas, ddof=1)),
        "auroc_ci": [max(0.0, test.low), min(1.0, test.high)],
    }
    if entries[0].get("control"):
        merged["control"] = True
    return merged


def mean_numbers(entries: Sequence[Json]) -> Json:
    """Means of the numbers of nested objects; what is no number in one of them is left out."""
    merged: Json = {}
    for key in in_all(entries):
        values: list[Any] = [entry[key] for entry in entries]
        if all(isinstance(value, dict) for value in values):
            merged[key] = mean_numbers(values)
        elif all(type(value) in (int, float) for value in values):
            merged[key] = float(np.mean(values))
    return merged


def mean_strata(runs: Sequence[Json]) -> Json | None:
    """What the strata are of, and means of their numbers; None where a split has none."""
    strata = [run["strata"] for run in runs]
    if not all(strata):
        return None
    return {key: strata[0].get(key) for key in ("by", "control")} | mean_numbers(strata)


def mean_explained(runs: Sequence[Json]) -> Json | None:
    """Mean correlations with the best control, which is None where splits differ in it."""
    explained = [run["explained"] for run in runs]
    if not all(explained):
        return None
    controls = {one["control"] for one in explained}
    return {
        "control": controls.pop() if len(controls) == 1 else None,
        "rank_correlation": mean_numbers([one["rank_correlation"] for one in explained]),
    }


def merge_remarks(runs: Sequence[Json]) -> list[str]:
    """Remarks of the splits, and on what some left out; with the seeds, unless all have them."""
    seeds: dict[str, list[int]] = {}
    for run in runs:
        remarks = [*run.get("remarks", []), *remarks_on_left_out(run, runs)]
        for remark in remarks:
            seeds.setdefault(remark, []).append(run["split"]["seed"])
    return [
        remark if len(of) == len(runs) else f"split of seed {', '.join(map(str, of))}: {remark}"
        for remark, of in seeds.items()
    ]


def remarks_on_left_out(run: Json, runs: Sequence[Json]) -> list[str]:
    """Why a baseline that other splits have is in no table."""
    others = {name for other in runs for name in other["baselines"]}
    return [
        f"{name} could not be fitted, and is in no table: {why}"
        for name, why in run.get("left_out", {}).items()
        if name in others
    ]


def over_all_splits(results: Json) -> Json:
    """The results, of several splits with their means instead of what the first split has."""
    splits = results.get("splits")
    if not splits:
        return results
    return results | {key: value for key, value in splits.items() if key in results}


def compare_over_splits(runs: Sequence[Json], entries: Json, ratio: float) -> list[Json]:
    """The mean difference of each pair of the first split, with Holm's correction."""
    firsts = [(test["a"], test["b"]) for test in runs[0]["comparisons"]]
    pairs = [(a, b) for a, b in firsts if a in entries and b in entries]
    differences = {
        (a, b): np.subtract(
            entries[a]["test"]["auroc_splits"], entries[b]["test"]["auroc_splits"]
        ).tolist()
        for a, b in pairs
    }
    tests = {pair: corrected_t_test(found, ratio) for pair, found in differences.items()}
    controls = [name for name, entry in entries.items() if entry.get("control")]
    p_holm = holm_of_rivals({pair: test.p for pair, test in tests.items()}, controls)
    return [
        {
            "a": a,
            "b": b,
            "difference": test.mean,
            "ci": [test.low, test.high],
            "p": test.p,
            "p_holm": p_holm[a, b],
            "differences": differences[a, b],
            **({"control": True} if b in controls else {}),
        }
        for (a, b), test in tests.items()
    ]


def find_verdict(comparisons: list[Json], groups: Json) -> Json | None:
    """The comparison of the best detector with the best baseline by mean AUROC on validation.

    Controls are no rivals here, as in that of one split.
    """
    compared = {(test["a"], test["b"]): test for test in comparisons}
    rivals = [
        name
        for name, entry in groups["baselines"].items()
        if "control" not in entry and any(name == b for _, b in compared)
    ]
    if not rivals or not groups["models"]:
        return None
    detector = max(groups["models"], key=lambda name: val_area(groups["models"], name))
    baseline = max(rivals, key=lambda name: val_area(groups["baselines"], name))
    test = dict(compared[detector, baseline])
    del test["a"], test["b"], test["differences"]
    return {"detector": detector, "baseline": baseline, **test}


def val_area(group: Json, name: str) -> float:
    return float(group[name]["val"]["auroc"])
