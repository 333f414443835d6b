"""Do intervals hold the truth as often as they say, and do thresholds keep their promise?

Scores are drawn from two normal distributions whose AUROC is known, for test sets of several sizes:
a row a question ("single"), or three rows a question with a noise of its own that is half of the
variance, and labels at random ("mixed") or the same for a question ("alike"). Questions of
"unequal mixed" and "unequal alike" have very different numbers of rows, log-normal, in the middle
three. A row of the table says how often an interval of 95% held the truth.

`--part metrics` has the other metrics, of probabilities that are too sure by half; their truth is
that of 400,000 rows. `--part trainings` has the mean AUROC of several trainings that differ; its
truth is that of all rows and trainings. `--part risk` finds a threshold of conformal risk control
on one draw and tries it on another: the risk is the mean over the simulations. For "best of 8" the
same draw had chosen the score first, as validation does; "halves" are found on one half of a draw
and tried on the other. Each part has a table of its own. `--save` and `--output` replace the rows
of these `--sizes` in the table that is there, and leave the others.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import norm

from benchmarks.harness import fail, parser, run, show
from benchmarks.tables import finish, read_table
from train.evaluate.calibrate import controlled_risk, keep_promise, risk_threshold
from train.evaluate.intervals import auroc_interval, metric_intervals
from train.evaluate.metrics import (
    auroc,
    auroc_samples,
    measure,
    percentile_interval,
    unmeasured_rates,
)

SIZES = {"7/143": (7, 143), "30+30": (30, 30), "15/135": (15, 135), "744": (415, 329)}
UNEQUAL = "unequal "
KINDS = ("single", "mixed", "alike", UNEQUAL + "mixed", UNEQUAL + "alike")
AREAS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
FEWER_AREAS = (0.6, 0.8, 0.95)  # of the slower metrics
METRICS = ("auprc", "recall_at_1", "recall_at_5", "recall_at_10", "fpr_at_95", "ece", "brier")
ROWS_A_QUESTION = 3
N_TRUTH = 400_000
RISKS = (0.05, 0.1, 0.2)
N_CHOICES = 8
NAMED_BY = ("what", "size", "questions", "auroc")  # columns


class Rows(NamedTuple):
    """Labels, scores and questions, each (n,)."""

    labels: NDArray[np.int64]
    scores: NDArray[np.float64]
    questions: NDArray[np.int64]


def main(args: Namespace) -> None:
    """Of the part that was asked for."""
    if args.part not in PARTS:
        fail(f"--part: expected one of {', '.join(PARTS)}, found {args.part!r:.80}")
    table, simulate = PARTS[args.part]
    found = {name_of(row): row for row in simulate(args)}
    rows = list((earlier_rows(args.output, table) | found).values())
    finish(table, args.output, rows, *NAMED_BY)


def name_of(row: dict) -> tuple[str, ...]:
    return tuple(str(row[column]) for column in NAMED_BY)


def earlier_rows(results: Path | None, table: str) -> dict[tuple[str, ...], dict]:
    """The rows of the table that is there, by what names them."""
    path = None if results is None else results / f"{table}.csv"
    if path is None or not path.exists():
        return {}
    rows = read_table(path).rows
    return {
        name_of(row): row | {name: float(row[name]) for name in ("promised", "found")}
        for row in rows
    }


def draw(sizes: tuple[int, int], kind: str, area: float, rng: np.random.Generator) -> Rows:
    """Rows of as many positives and negatives, with normal scores of this AUROC."""
    questions = ask(sum(sizes), kind, rng)
    if kind == "alike":
        n_questions = questions.max() + 1
        wrong = rng.choice(n_questions, round(sizes[0] / ROWS_A_QUESTION), replace=False)
        labels = np.isin(questions, wrong).astype(np.int64)
    elif kind == UNEQUAL + "alike":
        is_wrong = rng.random(questions.max() + 1) < sizes[0] / sum(sizes)
        if not 1 < is_wrong.sum() < len(is_wrong) - 1:
            return draw(sizes, kind, area, rng)  # a class had one question or none
        labels = is_wrong[questions].astype(np.int64)
    else:
        labels = rng.permutation(np.repeat([1, 0], sizes))
    return Rows(labels, add_noise(labels, questions, area, rng), questions)


def ask(n: int, kind: str, rng: np.random.Generator) -> NDArray[np.int64]:
    """The question of each of n rows, numbered from 0."""
    if kind.startswith(UNEQUAL):
        n_rows = np.ceil(rng.lognormal(1, 1, n)).astype(np.int64)
        return np.repeat(np.arange(n), n_rows)[:n]
    return np.arange(n) // (1 if kind == "single" else ROWS_A_QUESTION)


def add_noise(
    labels: NDArray, questions: NDArray, area: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Scores with a noise of variance 1, half of it that of the question where it has more rows."""
    own = rng.normal(size=len(labels))
    if questions[-1] < len(labels) - 1:
        own = np.sqrt(0.5) * (own + rng.normal(size=questions.max() + 1)[questions])
    return own + distance(area) * labels


def distance(area: float) -> float:
    """Between the means of two normal distributions of variance 1, from their AUROC."""
    return float(np.sqrt(2) * norm.ppf(area))


def cover_auroc(args: Namespace) -> Iterator[dict]:
    """The interval of the AUROC, and the percentile bootstrap that it replaces."""
    for size, kind, area in product(args.sizes, KINDS, AREAS):
        show(f"AUROC: {size}, {kind}, {area}")
        rng = np.random.default_rng([args.seed, *size.encode()])
        drawn = [draw(SIZES[size], kind, area, rng) for _ in range(args.simulations)]
        intervals = [auroc_interval(*rows) for rows in drawn]
        # rows of one question share a noise, so that pairs within it have another AUROC
        truth = np.mean([auroc(*rows[:2]) for rows in drawn]) if "mixed" in kind else area
        yield covered("AUROC", size, kind, area, float(truth), intervals)
        few = drawn[: args.simulations // 20]
        percentiles = [percentile_interval(auroc_samples(*rows, 0, 400)) for rows in few]
        yield covered("AUROC, percentiles", size, kind, area, float(truth), percentiles)


def covered(
    what: str, size: str, kind: str, area: float, truth: float, intervals: list[list[float]]
) -> dict:
    """A row of the table."""
    low, high = np.transpose(intervals)
    return {
        "what": what,
        "size": size,
        "questions": kind,
        "auroc": area,
        "simulations": len(low),
        "promised": 0.95,
        "found": round(float(np.mean((low <= truth + 1e-12) & (truth <= high + 1e-12))), 4),
        "truth": round(truth, 4),
        "width": round(float(np.mean(high - low)), 4),
    }


def cover_trainings(args: Namespace) -> Iterator[dict]:
    """The interval of the mean AUROC of trainings on the same rows."""
    for size, n_trainings, spread in product(args.sizes[-1:], (2, 3, 5), (0.1, 0.5)):
        show(f"trainings: {size}, {n_trainings}, {spread}")
        rng = np.random.default_rng([args.seed, n_trainings])
        labels, questions = np.repeat([1, 0], SIZES[size]), np.arange(sum(SIZES[size]))
        mean = distance(0.8)
        truth = float(np.mean(norm.cdf(rng.normal(mean, spread, N_TRUTH) / np.sqrt(2))))
        intervals = []
        for _ in range(args.simulations):
            means = rng.normal(mean, spread, (n_trainings, 1))
            shared, own = rng.normal(size=len(labels)), rng.normal(size=(n_trainings, len(labels)))
            scores = np.sqrt(0.5) * (shared + own) + means * labels
            intervals.append(auroc_interval(labels, scores, questions))
        what = f"{n_trainings} trainings, {spread:g} apart"
        yield covered(what, size, "single", 0.8, truth, intervals)


def cover_metrics(args: Namespace) -> Iterator[dict]:
    """The intervals of the other metrics."""
    for size, kind, area in product(args.sizes, KINDS[:2], FEWER_AREAS):
        show(f"metrics: {size}, {kind}, {area}")
        rng = np.random.default_rng([args.seed, *size.encode(), 1])
        many = tuple(n * N_TRUTH // sum(SIZES[size]) for n in SIZES[size])
        truth = measure(*probabilities(SIZES[size], many, kind, area, rng)[:2], 0.5)
        found: dict[str, list[list[float]]] = {name: [] for name in METRICS}
        for _ in range(args.simulations):
            rows = probabilities(SIZES[size], SIZES[size], kind, area, rng)
            intervals = metric_intervals(*rows, 0)
            for name in set(METRICS).difference(unmeasured_rates(rows.labels)):
                found[name].append(intervals[name])
        for name in METRICS:
            if len(found[name]) > args.simulations / 2:  # others are too few to be shown
                yield covered(name, size, kind, area, getattr(truth, name), found[name])


def probabilities(
    sizes: tuple[int, int], drawn: tuple[int, ...], kind: str, area: float, rng: np.random.Generator
) -> Rows:
    """Rows whose labels have the base rate of `sizes`, and probabilities that are too sure."""
    n = sum(drawn)
    questions = ask(n, kind, rng)
    labels = np.zeros(n, np.int64)
    while not 1 < labels.sum() < n - 1:
        labels = (rng.random(n) < sizes[0] / sum(sizes)).astype(np.int64)
    mean = distance(area)
    scores = add_noise(labels, questions, area, rng)
    log_odds = mean * scores - mean**2 / 2 + np.log(sizes[0] / sizes[1])
    return Rows(labels, expit(1.5 * log_odds), questions)


def simulate_risk(args: Namespace) -> Iterator[dict]:
    """The risk of thresholds that promise one."""
    n_simulations = args.simulations // 2
    for n, kind, area, risk in product((60, 744), KINDS[:2], (0.7, 0.95), RISKS):
        show(f"risk: {n}, {kind}, {area}, {risk}")
        sizes = n // 2, n - n // 2
        rng = np.random.default_rng([args.seed, n])
        found: dict[str, list[float]] = {}
        for _ in range(n_simulations):
            first, second = (choices(sizes, kind, area, rng) for _ in range(2))
            best = max(range(N_CHOICES), key=lambda i: auroc(first[i].labels, first[i].scores))
            for what, i in {"risk": 0, f"risk, best of {N_CHOICES}": best}.items():
                threshold = risk_threshold(*first[i], risk)
                if threshold is not None:
                    kept = controlled_risk(*second[i], threshold)
                    found.setdefault(what, []).append(kept["risk"])
            halves = keep_promise(*first[0], risk, seed=0)
            found.setdefault("risk, halves", []).extend(
                [halves["risk"]] if "risk" in halves else []
            )
        for what, risks in found.items():
            if len(risks) == n_simulations:
                yield {
                    "what": f"{what}, {risk:g}",
                    "size": f"{sizes[0]}+{sizes[1]}",
                    "questions": kind,
                    "auroc": area,
                    "simulations": n_simulations,
                    "promised": risk,
                    "found": round(float(np.mean(risks)), 4),
                }


def choices(sizes: tuple[int, int], kind: str, area: float, rng: np.random.Generator) -> list[Rows]:
    """The same rows with several scores, alike but for their noise."""
    first = draw(sizes, kind, area, rng)
    scores = [add_noise(first.labels, first.questions, area, rng) for _ in range(N_CHOICES)]
    return [first._replace(scores=expit(one)) for one in scores]


PARTS: dict[str, tuple[str, Callable[[Namespace], Iterator[dict]]]] = {
    "auroc": ("coverage", cover_auroc),
    "metrics": ("coverage_metrics", cover_metrics),
    "risk": ("coverage_risk", simulate_risk),
    "trainings": ("coverage_trainings", cover_trainings),
}

OPTIONS = {
    "--simulations": (2000, "simulations a row; of slower ones a part"),
    "--part": ("auroc", "auroc, metrics, risk or trainings"),
    "--sizes": (list(SIZES), "test sets, of these"),
    "--seed": (0, "seed of the draws"),
}

if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=0, options=OPTIONS))
