"""Which rows of a store are a test of a run: none that it has learned from."""

import numpy as np
import pytest
from runs import LABELS, SPLITS, N, as_texts, make_run

from train.commands.evaluate_runs import Rules, choose_rows

RUN = make_run({"x": 1}).frame
IDS = RUN.trace_ids
QUESTIONS = RUN.question_ids
TESTED = np.flatnonzero(SPLITS == "test").tolist()


def choose(ids=IDS, questions=QUESTIONS, labels=LABELS, is_own=False, **rules):
    return choose_rows(
        RUN, as_texts(ids), as_texts(questions), np.asarray(labels), is_own, Rules(**rules)
    )


@pytest.mark.parametrize("is_own", [True, False])
def test_the_run_s_rows_are_judged_by_its_test_split(is_own):
    """Of its own store, and of a copy of it under another name."""
    found = choose(is_own=is_own)
    assert found.rows.tolist() == TESTED
    assert (found.n_seen, found.n_shared, found.n_unlabelled) == (80, 0, 0)


def test_rows_of_the_own_store_that_the_run_did_not_use_are_left_out():
    """They were added later: their questions may be of any split."""
    ids, questions = [*IDS, "new"], [*QUESTIONS, "q0"]
    found = choose(ids, questions, [*LABELS, 1], is_own=True)
    assert found.rows.tolist() == TESTED
    assert found.n_added == 1


def test_questions_in_common_are_counted():
    """Their traces are others; the rules may leave them out."""
    ids = [f"other {i}" for i in range(N)]
    found = choose(ids)
    assert (len(found.rows), found.n_seen, found.n_shared) == (N, 0, 80)
    found = choose(ids, only_new=True)
    assert (found.rows.tolist(), found.n_shared) == (TESTED, 80)


def test_an_id_alone_is_not_a_trace():
    """The same trace id under another question is another trace."""
    found = choose(questions=[f"other {i}" for i in range(N)])
    assert (len(found.rows), found.n_seen, found.n_shared) == (N, 0, 0)


def test_ids_that_are_equal_by_chance_say_nothing():
    """But in the run's own store."""
    assert len(choose(unrelated_ids=True).rows) == N
    assert choose(is_own=True, unrelated_ids=True).rows.tolist() == TESTED


@pytest.mark.parametrize("is_own", [True, False])
def test_unlabelled_rows_are_not_judged(is_own):
    """Nor counted as anything else."""
    labels = np.where(np.arange(N) % 4 == 0, -1, LABELS)
    found = choose(labels=labels, is_own=is_own)
    assert found.rows.tolist() == [row for row in TESTED if row % 4]
    assert (found.n_unlabelled, found.n_seen) == (30, 60)


def test_an_empty_store_has_no_rows():
    assert len(choose([], [], np.zeros(0, np.int64)).rows) == 0
