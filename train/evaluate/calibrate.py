"""What is fitted to the scores of a finished method: calibration, and a threshold with a promise.

NumPy arrays in, numbers out. Nothing here changes a method's scores, its ranks or its threshold.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression

from train.evaluate.metrics import (
    Areas,
    Labels,
    QuestionNumbers,
    Scores,
    brier,
    draw_folds,
    expected_calibration_error,
)

__all__ = [
    "LOG_RANGE",
    "controlled_risk",
    "fit_temperature",
    "keep_promise",
    "measure_recalibrated",
    "risk_threshold",
    "risks_at",
]

ABOVE_ALL = float(np.nextafter(1, 2))  # a threshold that no probability reaches
SUREST = 1e-9  # a score is at least so far from 0 and 1 before its log-odds are taken
LOG_RANGE = (-5.0, 5.0)  # of the natural logarithm of a temperature


def fit_temperature(labels: Labels, scores: Scores) -> float:
    """The T > 0 for which sigmoid(logit(score) / T) has the least log-loss (Guo et al., 2017).

    Above 1 the scores were too sure.
    """
    log_odds = log_odds_of(scores)

    def log_loss(log_temperature: float) -> float:
        towards_label = (2 * labels - 1) * log_odds * np.exp(-log_temperature)
        return float(np.mean(np.logaddexp(0, -towards_label)))

    return float(np.exp(minimize_scalar(log_loss, bounds=LOG_RANGE, method="bounded").x))


def log_odds_of(scores: Scores) -> Scores:
    return logit(np.clip(scores, SUREST, 1 - SUREST))


def measure_recalibrated(
    val_labels: Labels, val_scores: Scores, labels: Labels, scores: Scores
) -> Areas:
    """ECE and Brier score of `scores` (n,) after what was fitted on validation (n_val,).

    A temperature moves all scores to or from one half; isotonic regression (Zadrozny and Elkan,
    2002) takes any rising map, and needs more rows.
    """
    temperature = fit_temperature(val_labels, val_scores)
    isotonic = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    after = {
        "temperature": expit(log_odds_of(scores) / temperature),
        "isotonic": isotonic.fit(val_scores, val_labels).predict(scores),
    }
    numbers = {"temperature": temperature}
    for name, probabilities in after.items():
        numbers[f"{name}_ece"] = expected_calibration_error(labels, probabilities)
        numbers[f"{name}_brier"] = brier(labels, probabilities)
    return numbers


def risks_at(
    labels: Labels, scores: Scores, questions: QuestionNumbers, thresholds: NDArray
) -> Scores:
    """The risk of letting answers of `score < t` through, for each of the thresholds (k,).

    It is the share of its hallucinations that a question lets through, the mean over the questions
    that have one. It never falls as t rises, as conformal risk control needs; the share of wrong
    answers among those let through may.
    """
    is_wrong = labels == 1
    _, question, counts = np.unique(questions[is_wrong], return_inverse=True, return_counts=True)
    weights = 1 / (counts[question] * len(counts))
    order = np.argsort(scores[is_wrong])
    cumulated = np.append(0, np.cumsum(weights[order]))
    return cumulated[np.searchsorted(scores[is_wrong][order], thresholds, side="left")]


def risk_threshold(
    labels: Labels, scores: Scores, questions: QuestionNumbers, risk: float
) -> float | None:
    """The largest t whose rule "let `score < t` through" promises this risk on new questions.

    By conformal risk control (Angelopoulos et al., arXiv:2208.02814): of n questions that were not
    used otherwise, the largest t with (n R(t) + 1) / (n + 1) <= `risk`, where R is `risks_at`. The
    risk of a new question of the same kind is then at most `risk`, the mean over draws of both. A
    threshold above 1 lets everything through; None where 1 / (n + 1) is above `risk`.
    """
    n_questions = len(np.unique(questions[labels == 1]))
    candidates = np.append(np.unique(scores[labels == 1]), ABOVE_ALL)
    found = risks_at(labels, scores, questions, candidates)
    allowed = (n_questions * found + 1) / (n_questions + 1) <= risk + 1e-12
    return float(candidates[allowed][-1]) if allowed.any() else None


def controlled_risk(
    labels: Labels, scores: Scores, questions: QuestionNumbers, threshold: float
) -> Areas:
    """What a threshold of `risk_threshold` does on other rows: the risk, and what is answered.

    `answered` is the share of traces let through, `wrong_answered` the share of hallucinations
    among those, 0 of none.
    """
    through = scores < threshold
    (risk,) = risks_at(labels, scores, questions, np.array([threshold]))
    return {
        "risk": float(risk),
        "answered": float(through.mean()),
        "wrong_answered": float(labels[through].mean()) if through.any() else 0.0,
    }


def keep_promise(
    labels: Labels, scores: Scores, questions: QuestionNumbers, risk: float, seed: int
) -> Areas:
    """The threshold of `risk_threshold` of all rows (n,), and what such thresholds do.

    The latter are of one half of the questions and tried on the other, both ways, since rows that
    found a threshold are no test of it. Without a threshold of one of them its numbers are missing.
    """
    threshold = risk_threshold(labels, scores, questions, risk)
    half = draw_folds(questions, 2, seed)
    found = []
    for fold in (0, 1):
        given, tried = (
            (labels[rows], scores[rows], questions[rows]) for rows in (half != fold, half == fold)
        )
        of_half = risk_threshold(*given, risk)
        if of_half is not None and tried[0].any():
            found.append(controlled_risk(*tried, of_half))
    numbers = {} if threshold is None else {"risk_threshold": threshold}
    if len(found) == 2:
        numbers |= {name: (found[0][name] + found[1][name]) / 2 for name in found[0]}
    return numbers
