"""Values left out of training in turn: AUROC on what was never seen, beside in-domain."""

import numpy as np

from train.evaluate.frame import Frame
from train.evaluate.intervals import auroc_interval
from train.evaluate.metrics import mean_auroc
from train.evaluate.paired_tests import compare_pairs
from train.evaluate.results import Counts, LeftOut, Transfer

__all__ = ["measure_left_out"]

PAIR = ("left out", "in domain")


def measure_left_out(value: str, without: Frame[str], every: Frame[str]) -> LeftOut:
    """Judge a run without a value, and one on all, by the traces of the value.

    `without` is the test split of the run without it; in domain are those of its traces that are in
    the test split of `every`. The difference is of these.
    """
    in_domain = every.take(every.rows_of(np.intersect1d(without.trace_ids, every.test.trace_ids)))
    same = without.take(without.rows_of(in_domain.trace_ids))
    labels, questions, seed = in_domain.labels, in_domain.questions, in_domain.seed
    methods = {}
    for name in filter(every.scores.__contains__, without.scores):
        left_out = without.labels, without.scores[name]
        ci = auroc_interval(*left_out, without.questions)
        methods[name] = found = Transfer(mean_auroc(*left_out), ci)
        if 0 < labels.sum() < len(labels):
            runs = in_domain.scores[name]
            found.in_domain_auroc = mean_auroc(labels, runs)
            found.in_domain_auroc_ci = auroc_interval(labels, runs, questions)
            scores = dict(zip(PAIR, (same.scores[name], runs), strict=True))
            (paired,) = compare_pairs(labels, scores, [PAIR], questions, seed)
            found.difference, found.difference_ci = paired.difference, paired.ci
    n_questions = len(np.unique(without.questions))
    counts = Counts(len(without), n_questions, int(without.labels.sum()))
    return LeftOut(value, counts, len(in_domain), methods)
