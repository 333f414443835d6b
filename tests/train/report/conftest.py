"""Evidence made up, so that no test of a report has to train."""

import numpy as np
import pytest
from runs import make_results

from store.traces.question_split import SPLITS
from train.config import Config
from train.data.splits import Splits
from train.evaluate.findings import Scored, compare_all, count_splits, measure_method
from train.evaluate.frame import Frame
from train.evaluate.results import Epoch, Facts, StoreRecord, TrainingFacts
from train.report.evidence import Evidence

N = 60  # rows of each split


def make_split(rng):
    """Three splits of N rows, two rows per question, labels at random."""
    labels = rng.integers(0, 2, 3 * N)
    return Splits(*np.split(np.arange(3 * N), 3), labels, np.arange(3 * N) // 2, seed=0)


def make_scored(rng, splits, skill, n_runs, **facts):
    labels = (splits.labels[rows] for rows in (splits.val, splits.test))
    values = [np.clip(skill * one + (1 - skill) * rng.random((n_runs, N)), 0, 1) for one in labels]
    return Scored(*values, Facts(**({"seconds": 1.5, "parameters": 9} | facts)))


def make_history(rng, seed):
    epochs = [Epoch(i, 1 / (i + 1), 0.5 + 0.1 * float(rng.random())) for i in range(4)]
    return TrainingFacts(seed, f"x-seed{seed}.pt", epochs, 1.0, 0.0, 1, 0.1)


@pytest.fixture
def undrawn(monkeypatch):
    """Sections have their texts and tables, and no pictures."""
    monkeypatch.setattr("train.report.draw", lambda name, evidence, shows: None)


@pytest.fixture(scope="session")
def make_evidence():
    """The function that makes evidence: (models=2, baselines=2, n_runs=1, ...) -> Evidence."""

    def make(models=2, baselines=2, n_runs=1, trace_id="trace", **texts):
        rng = np.random.default_rng(0)
        splits = make_split(rng)
        histories = {"parameters": 1000}
        histories["runs"] = [make_history(rng, seed) for seed in range(n_runs)]
        scored_models = {
            f"model_{i}": make_scored(rng, splits, 0.4 - i / 50, n_runs, **histories)
            for i in range(models)
        }
        scored_baselines = {
            f"base_{i}": make_scored(rng, splits, 0.2 + i / 50, 1) for i in range(baselines)
        }
        if baselines:
            half, facts = np.full((1, N), 0.5), Facts(seconds=0.0, parameters=2)
            scored_baselines["majority"] = Scored(half, half, facts)
        scored = scored_models | scored_baselines
        parts = [splits.train, splits.val, splits.test]
        frame = Frame(
            np.array([f"{trace_id}{i}" for i in [*range(N)] * 3], dtype=object),
            np.repeat(SPLITS, N),
            splits.labels[np.concatenate(parts)],
            splits.questions[np.concatenate(parts)],
            {
                name: np.hstack([np.full_like(one.val, np.nan), one.val, one.test])
                for name, one in scored.items()
            },
        )
        judged = {name: measure_method(frame, name, one.facts) for name, one in scored.items()}
        made = {name: judged[name] for name in scored_models}
        others = {name: judged[name] for name in scored_baselines}
        comparisons, verdict = compare_all(made, others, frame.test, 0.01)
        comparisons = [test for test in comparisons if test.b in others]
        results = make_results(
            made,
            others,
            split=count_splits(splits),
            store=StoreRecord("/data/traces.zarr", "ab-cd", 3, 3 * N, [], False),
            config=vars(Config(epochs=4)),
            comparisons=comparisons,
            verdict=verdict,
        )

        def read_texts(positions):
            return {
                name: [f"{text} {position}" for position in positions]
                for name, text in texts.items()
            }

        return Evidence(results, frame, read_texts)

    return make
