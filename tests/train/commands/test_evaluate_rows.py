"""Which rows of a store are a test of a run: no question that it has learned from."""

import numpy as np
import pytest
from runs import LABELS, SPLITS, N, as_texts, make_run

from store.traces.question_split import join_questions
from train.commands.evaluate_runs import Rules, choose_rows
from train.data.questions import Questions
from train.run.results import AskedByRun

RUN = make_run({"x": 1}).frame
IDS = RUN.trace_ids
QUESTIONS = RUN.question_ids
OTHERS = [f"other {i // 2}" for i in range(N)]
TESTED = np.flatnonzero(SPLITS == "test").tolist()
ASKED = AskedByRun(
    {question: {split} for question, split in zip(QUESTIONS, SPLITS, strict=True)},
    {f"text of {question}": {split} for question, split in zip(QUESTIONS, SPLITS, strict=True)},
)


def choose(ids=IDS, questions=QUESTIONS, texts=None, labels=LABELS, is_own=False, **rules):
    questions = as_texts(questions)
    texts = as_texts([""] * len(questions) if texts is None else texts)
    asked = Questions(questions, texts, as_texts(join_questions(questions, texts)))
    rules = Rules(**rules)
    return choose_rows(RUN, ASKED, as_texts(ids), asked, np.asarray(labels), is_own, rules)


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("is_labelled", [np.full(N, True), np.arange(N) % 4 > 0])
def test_the_run_s_rows_are_judged_by_its_test_split(is_own, is_labelled):
    """Of its own store, and of a copy of it under another name; unlabelled rows are not judged, nor
    counted as anything else."""
    found = choose(is_own=is_own, labels=np.where(is_labelled, LABELS, -1))
    assert found.rows.tolist() == [row for row in TESTED if is_labelled[row]]
    n_left = int(is_labelled[:80].sum())
    assert (found.n_seen, found.n_trained) == ((n_left, 0) if is_own else (0, n_left))
    assert found.n_unlabelled == np.sum(~is_labelled)


def test_rows_of_the_own_store_that_the_run_did_not_use_are_left_out():
    """They were added later: their questions may be of any split."""
    found = choose([*IDS, "new"], [*QUESTIONS, "q0"], labels=[*LABELS, 1], is_own=True)
    assert (found.rows.tolist(), found.n_added) == (TESTED, 1)


def test_questions_that_the_run_was_trained_on_are_left_out_and_counted():
    """Whatever the ids of their traces are; the rules may keep them. A text is known under any id,
    and makes all traces of its question known; the same trace id under another question is another
    trace."""
    ids = [f"other {i}" for i in range(N)]
    found = choose(ids)
    assert found.rows.tolist() == TESTED
    assert (found.n_trained, found.n_trained_questions) == (80, 40)
    kept = choose(ids, keep_trained=True)
    assert (len(kept.rows), kept.n_trained) == (N, 80)
    texts = [f"text of q{i // 2}" if i % 2 else f"another {i}" for i in range(N)]
    assert choose(questions=OTHERS, texts=texts).rows.tolist() == TESTED
    found = choose(questions=OTHERS)
    assert (len(found.rows), found.n_seen, found.n_trained) == (N, 0, 0)
    assert len(choose([], [], labels=np.zeros(0, np.int64)).rows) == 0
