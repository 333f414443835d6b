"""Values left out of training in turn: AUROC on what was never seen, beside in-domain."""

import numpy as np

from train.evaluate.frame import Frame
from train.evaluate.intervals import auroc_interval
from train.evaluate.metrics import mean_auroc
from train.evaluate.paired_tests import compare_pairs
from train.evaluate.results import LeftOut, Results, Transfer

__all__ = ["judge_left_out"]

PAIR = ("left out", "in domain")


def judge_left_out(value: str, results: Results, without: Frame[str], every: Frame[str]) -> LeftOut:
    """Judge a run without a value, and one on all, by the traces of the value.

    The test split of the run without it, whose `results` these are, has all traces of the value; in
    domain are those of them that are in the test split of `every`. The difference is of these.
    """
    in_domain = every.take(
        every.rows_of(np.intersect1d(without.test.trace_ids, every.test.trace_ids))
    )
    same = without.take(without.rows_of(in_domain.trace_ids))
    labels, questions, seed = in_domain.labels, in_domain.questions, in_domain.seed
    methods = {}
    for name in filter(every.scores.__contains__, results.entries):
        test = results.entries[name].test
        methods[name] = found = Transfer(test.auroc, test.auroc_ci)
        if 0 < labels.sum() < len(labels):
            runs = in_domain.scores[name]
            found.in_domain_auroc = mean_auroc(labels, runs)
            found.in_domain_auroc_ci = auroc_interval(labels, runs, questions)
            scores = dict(zip(PAIR, (same.scores[name], runs), strict=True))
            (paired,) = compare_pairs(labels, scores, [PAIR], questions, seed)
            found.difference, found.difference_ci = paired.difference, paired.ci
    return LeftOut(value, results.split.test, len(in_domain), methods)
