"""Runs of the same several splits compared: their difference in each split, and its mean.

Each split is compared as two runs of it are, on the rows that all runs were tested on. Nothing is
trained, and only scores are read.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from train.commands.side_by_side import Common, Key, Runs, choose_pairs, find_common
from train.evaluate.metrics import Areas, auroc
from train.evaluate.over_splits import mean_differences
from train.evaluate.results import PairedTest
from train.run.results import read_run

__all__ = ["compare_across_splits", "read_splits_of"]


def read_splits_of(runs: Runs) -> list[Runs]:
    """The runs of each split, the first included; [] unless all have the same ones, and two.

    The further splits of a run are in directories of its own. Where one is gone, as where only the
    files of the first split were copied, there is nothing to compare.
    """
    first, *others = [run.split_seeds for run in runs.values()]
    further = first[1:]
    directories = {
        name: [run.directory / f"split-{seed}" for seed in further] for name, run in runs.items()
    }
    has_all = all(path.is_dir() for paths in directories.values() for path in paths)
    if not further or any(other != first for other in others) or not has_all:
        return []
    return [
        runs,
        *(
            {name: read_run(paths[i]) for name, paths in directories.items()}
            for i in range(len(further))
        ),
    ]


def compare_across_splits(splits: Sequence[Runs]) -> list[PairedTest[Key]]:
    """The mean difference of each pair of scores over the splits, with Holm's correction.

    The test is that of a run's own table, `corrected_t_test`. Of the runs the one with the fewest
    training rows says how many the splits share. The best of a run is that of the mean AUROC on
    validation.

    There are at least two splits, as `read_splits_of` has them, with runs by name. Raises DataError
    as `compare_runs` does, of any split.
    """
    commons = [find_common(runs) for runs in splits]
    pairs = choose_pairs(with_mean_validation(splits), commons[0])
    pairs = {
        pair: what
        for pair, what in pairs.items()
        if all(key in common.scores for common in commons for key in pair)
    }
    n_test = sum(len(common.labels) for common in commons)
    n_train = min(
        sum(int((runs[name].row_splits == "train").sum()) for runs in splits) for name in splits[0]
    )
    differences = {
        (a, b): [area_of(common, a) - area_of(common, b) for common in commons] for a, b in pairs
    }
    tests = mean_differences(differences, n_test / n_train)
    return [replace(test, what=pairs[test.a, test.b]) for test in tests]


def area_of(common: Common, key: Key) -> float:
    return auroc(common.labels, common.scores[key])


def with_mean_validation(splits: Sequence[Runs]) -> Runs:
    """The runs of the first split, with the mean AUROCs on validation of what all splits have."""
    return {
        name: replace(
            run,
            val_auroc={
                group: mean_areas([runs[name].val_auroc[group] for runs in splits])
                for group in run.val_auroc
            },
        )
        for name, run in splits[0].items()
    }


def mean_areas(areas: Sequence[Areas]) -> Areas:
    shared = [name for name in areas[0] if all(name in other for other in areas)]
    return {name: float(np.mean([other[name] for other in areas])) for name in shared}
