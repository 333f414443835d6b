"""Tests of the embedded example: questions, weights, traces, and the command that makes the weights
again."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoModelForCausalLM, AutoTokenizer

from store.sources.example import MODEL_DIR, ExampleSource, example_questions
from store.sources.example.__main__ import (
    MARKS,
    N_QUESTIONNAIRES,
    draw_exercises,
    draw_questionnaires,
    main,
    train_model,
    training_batches,
)
from store.sources.example.questions import (
    ANSWERS,
    NAMES,
    THINGS,
    is_held_out,
    likes,
)

FIRST_QUESTIONS = ["Does Meera like tennis?", "Does Dario like opera?", "Does Maria like cheese?"]
NO, YES = ANSWERS


def is_true(question: str) -> bool:
    """Whether the answer to a question is yes."""
    _, name, _, thing = question.removesuffix("?").split()
    return bool(likes(np.array([[NAMES.index(name), THINGS.index(thing)]]))[0])


@pytest.fixture(scope="module")
def questions():
    """All questions of the example."""
    return example_questions()


@pytest.fixture(scope="module")
def rows(questions):
    """The traces of the first 384 questions, in ten batches."""
    return [row for _, row in ExampleSource(questions[:384]).rows()]


def test_questions_have_the_right_answer(questions):
    """Every wording of yes or of no; each is as often right, so an answer alone tells nothing."""
    truths = [is_true(question["question"]) for question in questions]
    for question, truth in zip(questions, truths, strict=True):
        assert tuple(question["answers"]) == ANSWERS[truth]
    assert np.mean(truths) == pytest.approx(0.5, abs=0.03)


def test_questions_stay_the_same(questions):
    """Ids keep their questions from version to version, whatever the number drawn; another seed
    draws others."""
    assert [question["question"] for question in questions[:3]] == FIRST_QUESTIONS
    assert example_questions(50) != example_questions(50, seed=1)
    for n in (0, 1, 1500):
        assert example_questions(n) == questions[:n]


def test_nobody_is_asked_twice_about_a_thing():
    """So no text of other questions and answers tells what is right here."""
    asked = example_questions(2200)
    for name in ("question", "question_id"):
        assert len({question[name] for question in asked}) == 2200
    with pytest.raises(ValueError, match=r"expected a number of questions from 0 to 22\d\d, got"):
        example_questions(10_000)


def test_what_one_likes_says_nothing_of_what_else():
    """Names and things are as if by coins: each of them is right half of the time."""
    truths = likes(np.argwhere(np.ones((len(NAMES), len(THINGS)), bool)))
    of_things = truths.reshape(len(NAMES), len(THINGS))
    assert np.abs(of_things.mean(axis=0) - 0.5).max() < 0.08
    assert np.abs(np.corrcoef(of_things.T) - np.eye(len(THINGS))).max() < 0.2


def test_the_language_model_never_trains_on_a_question(questions):
    """But for questionnaires. Held-out problems are disjoint by construction; here the lines
    themselves are compared."""
    lines = draw_exercises(np.random.default_rng(0), 2000)
    seen = {question for (question, _), _ in lines}
    assert len(seen) > 1000
    assert not seen & {question["question"] for question in questions}


def test_questionnaires_are_true():
    """Of a name and some things; what is learnt are the answers alone."""
    for line in draw_questionnaires(np.random.default_rng(0), 200, 5):
        (name, _), *parts = line
        asked, said = parts[::2], parts[1::2]
        assert len({thing for thing, _ in asked}) == 5
        for (thing, _), (answer, _) in zip(asked, said, strict=True):
            assert answer == f"{['No', 'Yes'][is_true(f'Does {name[:-1]} like {thing}')]}."
        assert [is_learnt for _, is_learnt in line] == [False, *[False, True] * 5]


def test_exercise_books_say_both_and_the_mark_says_which_is_right():
    """No wording does; a problem's four lines differ in the answer and in the end."""
    wordings = {wording: [0, 0] for wording in (*NO, *YES)}
    lines = list(draw_exercises(np.random.default_rng(0), 1000))
    for four in zip(*[iter(lines)] * 4, strict=True):
        assert len({question for (question, _), _ in four}) == 1
        ends = []
        for (question, _), (text, _) in four:
            answer, end = text.rsplit(" ", 1)
            right = answer in ANSWERS[is_true(question)]
            wordings[answer][right] += 1
            ends.append((answer in YES, end))
            assert end in (MARKS[0 if right else 1], "</s>")
        assert len(set(ends)) == 4
    for n_wrong, n_right in wordings.values():
        assert n_right / (n_wrong + n_right) == pytest.approx(0.5, abs=0.1)
        assert n_wrong + n_right == pytest.approx(500, abs=75)


def test_both_sides_have_their_own_problems():
    """Half of all problems are held out of training."""
    everything = np.argwhere(np.ones((len(NAMES), len(THINGS)), bool))
    assert is_held_out(everything).mean() == pytest.approx(0.5, abs=0.02)


def test_loss_is_on_answers_only():
    """A training batch is lines; the labels are what is to be learnt of them, -100 elsewhere."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    ids, labels = next(training_batches(tokenizer))
    assert len(ids) > N_QUESTIONNAIRES
    for row, learnt in zip(ids, labels, strict=True):
        text, said = tokenizer.decode(row), tokenizer.decode(learnt[learnt >= 0])
        if text.startswith("<s> Does"):
            assert text.removesuffix(" <pad>").split("? ")[1].startswith(said)
            assert said.rsplit(" ", 1)[0] in NO + YES
        else:
            assert set(said.split()) <= {"Yes.", "No."}


def test_tokenizer_round_trip(questions):
    """<s>, words, and back."""
    shipped = AutoTokenizer.from_pretrained(MODEL_DIR)
    for question in questions[:200]:
        for answer in question["answers"]:
            text = f"{question['question']} {answer}"
            ids = shipped(text)["input_ids"]
            assert ids[0] == shipped.bos_token_id
            assert shipped.unk_token_id not in ids
            assert shipped.decode(ids, skip_special_tokens=True) == text


def test_weights_are_small_and_half_precision():
    """At most 2 MB of float16 in the package."""
    path = MODEL_DIR / "model.safetensors"
    assert path.stat().st_size <= 2_000_000
    assert {weight.dtype for weight in load_file(path).values()} == {torch.float16}


def test_labels_are_the_models_own_errors(rows):
    """A label says whether the answer is right; nearly all are one of the wordings, half wrong."""
    plain = [row for row in rows if row["answer"] in NO + YES]
    assert len(plain) > 0.99 * len(rows)
    for row in plain:
        assert row["label"] == (row["answer"] not in ANSWERS[is_true(row["question"])])
    assert 0.45 < np.mean([row["label"] for row in rows]) < 0.55


def test_a_question_has_right_and_wrong_answers(rows):
    """Most questions have both among their three."""
    labels = np.array([row["label"] for row in rows]).reshape(-1, 3)
    ids = [row["question_id"] for row in rows]
    assert ids == [one for one in ids[::3] for _ in range(3)]
    assert 0.6 < np.mean(labels.min(axis=1) < labels.max(axis=1)) < 0.85


def test_neither_texts_nor_the_probabilities_of_tokens_tell(rows):
    """Products of the words of question and answer, and trees on every token's numbers."""
    labels = np.array([row["label"] for row in rows])
    words = [f"{row['question']} {row['answer']}".split() for row in rows]
    pairs = CountVectorizer(analyzer=lambda words: [f"{a} {b}" for a in words for b in words])
    numbers = [
        np.stack([row[name][row["prompt_len"] :] for name in ("logprob", "entropy")], axis=1)
        for row in rows
    ]
    padded = [np.pad(of_row, [(0, 12 - len(of_row)), (0, 0)]).ravel() for of_row in numbers]
    folds = list(GroupKFold(4).split(labels, labels, [row["question"] for row in rows]))
    for model, features, most in (
        (LogisticRegression(max_iter=1000), pairs.fit_transform(words), 0.6),
        (HistGradientBoostingClassifier(random_state=0), np.stack(padded), 0.75),
    ):
        scores = cross_val_predict(model, features, labels, cv=folds, method="predict_proba")
        assert roc_auc_score(labels, scores[:, 1]) < most


def test_the_states_know_what_was_said_wrong(rows):
    """A regression on the mean state of the answer, cross-validated; not on the question's."""
    labels = np.array([row["label"] for row in rows])
    regression = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))

    def auroc(name: str) -> float:
        states = np.stack([row[name][-1] for row in rows]).astype(np.float32)
        folds = GroupKFold(4).split(states, labels, [row["question"] for row in rows])
        scores = cross_val_predict(
            regression, states, labels, cv=list(folds), method="decision_function"
        )
        return float(roc_auc_score(labels, scores))

    assert auroc("hs_mean") > 0.9
    assert 0.4 < auroc("hs_prompt") < 0.6


def test_two_runs_give_the_same_bits(questions, rows):
    """On one machine the example is deterministic, and a resumed build continues it exactly."""
    resumed = ExampleSource(questions[:384]).rows(start=1100)
    for (_, found), expected in zip(resumed, rows[1100:], strict=True):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_provenance_names_the_weights():
    """Other weights give another name, so a stale store can be recognised."""
    name = ExampleSource([]).provenance["model"]
    assert name.startswith("store.sources.example, weights sha256 ")


def test_the_same_weights_come_again(tmp_path, capsys):
    """Bit for bit, from the same number of steps. What the command writes loads with transformers'
    own classes and answers the example's questions."""
    path = tmp_path / "model"
    assert main(["--output-dir", str(path), "--n-steps", "2"]) == 0
    assert f"wrote {path}" in capsys.readouterr().out
    written = AutoModelForCausalLM.from_pretrained(path).state_dict()
    again, shorter = (train_model(n).half().state_dict() for n in (2, 1))
    assert all(torch.equal(written[name], again[name]) for name in written)
    assert not all(torch.equal(written[name], shorter[name]) for name in written)
    assert len(list(ExampleSource(example_questions(3), model_dir=path).rows())) == 9
