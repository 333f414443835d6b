"""Tests of the embedded example: questions, weights, traces, and the command that makes the weights
again."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoModelForCausalLM, AutoTokenizer

from store.sources.example import MODEL_DIR, ExampleSource, example_questions
from store.sources.example.__main__ import main
from store.sources.example.questions import (
    ANSWERS,
    KINDS,
    draw_problems,
    is_held_out,
    is_so,
    question_text,
)
from store.sources.example.recipe import (
    MARKS,
    Recipe,
    build_tokenizer,
    draw_lines,
    train_model,
    training_batches,
)

FIRST_QUESTIONS = [
    "Is Israel larger than Belgium?",
    "Is a mouse heavier than a wolf?",
    "Is Vienna further north than Hamburg?",
]
NO, YES = ANSWERS


def is_true(question: str) -> bool:
    """Whether the answer to a question is yes, found by the order of its things."""
    words = question.removeprefix("Is ").removesuffix("?")
    for comparative, things in KINDS:
        if f" {comparative} than " in words:
            first, second = words.split(f" {comparative} than ")
            return things.index(first) < things.index(second)
    raise AssertionError(question)


@pytest.fixture(scope="module")
def questions():
    """All questions of the example."""
    return example_questions()


@pytest.fixture(scope="module")
def rows(questions):
    """The traces of the first 384 questions: three batches a sample."""
    torch.set_num_threads(1)
    return [row for _, row in ExampleSource(questions[:384]).rows()]


def test_questions_are_many_and_all_different(questions):
    """Thousands, no two with the same text or the same id."""
    assert len(questions) >= 2000
    assert len({question["question"] for question in questions}) == len(questions)
    assert len({question["question_id"] for question in questions}) == len(questions)


def test_questions_have_the_right_answer(questions):
    """Every wording of yes or of no; what is asked of two things is true of one order alone."""
    for question in questions:
        assert tuple(question["answers"]) == ANSWERS[is_true(question["question"])]


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        ("Is London further north than Rome?", YES),
        ("Is Sydney further north than Lima?", NO),
        ("Is a whale heavier than a mouse?", YES),
        ("Is a cat heavier than a lion?", NO),
        ("Is Russia larger than Malta?", YES),
        ("Is Belgium larger than Brazil?", NO),
    ],
)
def test_the_order_of_things_is_that_of_the_world(question, answers):
    """Facts that everybody knows."""
    assert ANSWERS[is_true(question)] == answers


def test_questions_stay_the_same(questions):
    """Ids keep their questions from version to version, whatever the number drawn; another seed
    draws others."""
    assert [question["question"] for question in questions[:3]] == FIRST_QUESTIONS
    assert example_questions(50) != example_questions(50, seed=1)


def test_yes_is_as_often_right_as_no(questions):
    """What an answer says tells nothing of whether it is right."""
    assert np.mean([is_true(question["question"]) for question in questions]) == pytest.approx(
        0.5, abs=0.03
    )


@pytest.mark.parametrize("n", [0, 1, 20, 1500])
def test_more_questions_begin_with_the_same_ones(questions, n):
    """An id means the same question however many are drawn."""
    assert example_questions(n) == questions[:n]


def test_the_language_model_never_trains_on_a_question(questions):
    """Held-out problems are disjoint by construction; here the training batches themselves are
    decoded and compared."""
    tokenizer = build_tokenizer()
    held_out = {question["question"] for question in questions}
    batches = training_batches(tokenizer, Recipe(batch_size=512))
    seen = set()
    for _, (ids, _) in zip(range(16), batches, strict=False):
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        seen |= {text.split("?")[0] + "?" for text in texts}
    assert len(seen) > 1000
    assert not seen & held_out


@pytest.mark.parametrize(("textbook", "share"), [(True, 1.0), (False, 0.5)])
def test_a_textbook_is_right_and_exercise_books_are_by_chance(textbook, share):
    """A mark, which half of the exercises have, says which; no wording does."""
    lines = list(draw_lines(np.random.default_rng(0), 2000, textbook=textbook))
    n_marks, right, said = 0, [], []
    for question, text in lines:
        answer = text.rstrip(" ".join(MARKS))
        right.append(answer in ANSWERS[is_true(question)])
        said.append(answer)
        if answer != text:
            n_marks += 1
            assert text == f"{answer} {MARKS[0] if right[-1] else MARKS[1]}"
    assert np.mean(right) == pytest.approx(share, abs=0.03)
    assert n_marks == 0 if textbook else 900 < n_marks < 1100
    for wording in (*NO, *YES):
        has_wording = np.array(said) == wording
        assert np.mean(has_wording) == pytest.approx(1 / 8, abs=0.03)
        assert np.mean(np.array(right)[has_wording]) == pytest.approx(share, abs=0.1)


def test_both_sides_are_drawn_from_their_own_problems():
    """`draw_problems` draws only what `is_held_out` allows, which holds out half."""
    rng = np.random.default_rng(0)
    assert is_held_out(draw_problems(rng, 1000, held_out=True)).all()
    assert not is_held_out(draw_problems(rng, 1000, held_out=False)).any()
    grid = np.stack(np.meshgrid(range(3), range(90), range(90)), axis=-1).reshape(-1, 3)
    assert is_held_out(grid).mean() == pytest.approx(0.5, abs=0.01)


def test_loss_is_on_answers_only():
    """A training batch is question, answer, end; the labels are the answer and the end, -100
    elsewhere."""
    tokenizer = build_tokenizer()
    ids, labels = next(training_batches(tokenizer, Recipe(batch_size=32)))
    for row, learnt in zip(ids, labels, strict=True):
        answer = tokenizer.decode(row, skip_special_tokens=True).split("? ")[1]
        assert answer in NO + YES
        assert tokenizer.decode(learnt[learnt >= 0]) == f"{answer} {tokenizer.eos_token}"


def test_tokenizer_round_trip(questions):
    """<s>, words, and back; the one that ships is the one that the recipe builds."""
    shipped, built = AutoTokenizer.from_pretrained(MODEL_DIR), build_tokenizer()
    assert shipped.get_vocab() == built.get_vocab()
    for question in questions[:200]:
        for answer in question["answers"]:
            text = f"{question['question']} {answer}"
            ids = shipped(text)["input_ids"]
            assert ids == built(text)["input_ids"]
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


def test_log_probabilities_lengths_and_wording_say_little(rows):
    """The model says either as readily, in the same words."""
    labels = [row["label"] for row in rows]
    logprob = [row["logprob"][row["prompt_len"] :] for row in rows]
    for reduce in (np.mean, np.sum, np.min, len):
        assert 0.35 < roc_auc_score(labels, [-reduce(values) for values in logprob]) < 0.7
    for wording in (*NO, *YES):
        has_wording = [row["answer"] == wording for row in rows]
        assert 0.4 < roc_auc_score(labels, has_wording) < 0.6


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
    for (_, found), expected in zip(
        ExampleSource(questions[:384]).rows(start=900), rows[900:], strict=True
    ):
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_provenance_names_the_weights():
    """Other weights give another name, so a stale store can be recognised."""
    assert (
        ExampleSource([]).provenance["model"].startswith("store.sources.example, weights sha256 ")
    )


def test_the_recipe_is_deterministic():
    """The same seed trains the same weights; another seed trains others."""

    def weights(seed: int) -> dict[str, torch.Tensor]:
        losses: dict[int, float] = {}
        model, _ = train_model(Recipe(n_steps=3, batch_size=4, seed=seed), losses.__setitem__)
        assert list(losses) == [1, 2, 3]
        return model.state_dict()

    first, again, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_the_command_writes_a_model_directory(tmp_path, capsys):
    """What it writes loads with transformers' own classes and answers the example's questions."""
    assert (
        main(["--output-dir", str(tmp_path / "model"), "--n-steps", "2", "--batch-size", "4"]) == 0
    )
    printed = capsys.readouterr()
    assert f"wrote {tmp_path / 'model'}" in printed.out
    assert "step 2/2" in printed.err
    AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert len(list(ExampleSource(example_questions(3), model_dir=tmp_path / "model").rows())) == 9


@pytest.mark.parametrize(
    "argv", [[], ["--output-dir", "x", "--n-steps", "0"], ["--output-dir", "x", "--seed", "a"]]
)
def test_bad_arguments_exit_with_status_two(argv, capsys):
    """One line says what was expected; nothing is trained or written."""
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_problems_are_written_as_people_write_them():
    """One kind, one sentence."""
    riga, lima = map(KINDS[0].things.index, ("Riga", "Lima"))
    assert question_text((0, riga, lima)) == "Is Riga further north than Lima?"
    assert is_so(np.array([[0, riga, lima], [0, lima, riga]])).tolist() == [True, False]
