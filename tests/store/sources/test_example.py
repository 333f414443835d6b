"""Tests of the embedded example: questions, weights, traces, and the command that makes the weights
again."""

import json
from datetime import date

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoModelForCausalLM, AutoTokenizer

from store.labels.answer_scores import RULES
from store.sources.example import MODEL_DIR, ExampleSource, example_questions
from store.sources.example.__main__ import main
from store.sources.example.questions import (
    NORTHERN,
    PLACE_SHARES,
    PLACES,
    SOUTHERN,
    draw_problems,
    is_held_out,
    question_text,
    spellings,
)
from store.sources.example.recipe import (
    Recipe,
    build_tokenizer,
    draw_lines,
    taught_months,
    train_model,
    training_batches,
)

FIRST_QUESTIONS = [
    "April Mombasa in Geelong",
    "January Cuiaba in Pretoria",
    "March Beira in Barcelona",
]
LEXICAL = ("exact", "contains", "f1")
MONTHS = [date(2001, month, 1).strftime("%B") for month in range(1, 13)]


def split_question(question: str) -> tuple[int, str, str]:
    """Take a question apart: "July Lima in Oslo" -> (6, "Lima", "Oslo")."""
    month, place, _, other = question.split()
    return MONTHS.index(month), place, other


def are_opposite(question: str) -> bool:
    """Whether the equator is between the places of a question."""
    _, place, other = split_question(question)
    return (place in SOUTHERN) != (other in SOUTHERN)


def month_of(answer: str) -> int:
    """Read a month in any spelling: "July", "Jul", "7", "07", "7th" -> 6; -1 if it is none."""
    digits = answer.rstrip("dhnrst")
    if digits.isdigit():
        return int(digits) - 1
    return next((i for i, name in enumerate(MONTHS) if answer in (name, name[:3])), -1)


@pytest.fixture(scope="module")
def questions():
    """All questions of the example."""
    return example_questions()


@pytest.fixture(scope="module")
def rows(questions):
    """The first 384 traces, three batches."""
    torch.set_num_threads(1)
    return [row for _, row in ExampleSource(questions[:384]).rows()]


def test_questions_are_many_and_all_different(questions):
    """At least 4,000, no two with the same text or the same id."""
    assert len(questions) >= 4000
    assert len({question["question"] for question in questions}) == len(questions)
    assert len({question["question_id"] for question in questions}) == len(questions)


def test_questions_have_the_right_answer(questions):
    """Every spelling of the same month, or of the one half a year on where the places are on
    opposite sides of the equator."""
    for question in questions:
        month, place, other = split_question(question["question"])
        assert place != other
        right = (month + 6 * are_opposite(question["question"])) % 12
        assert {month_of(answer) for answer in question["answers"]} == {right}
        assert MONTHS[right] in question["answers"]
        assert len(set(question["answers"])) == len(question["answers"]) >= 4


def test_questions_stay_the_same(questions):
    """Ids keep their questions from version to version, whatever the number drawn; another seed
    draws others."""
    assert [question["question"] for question in questions[:3]] == FIRST_QUESTIONS
    assert example_questions(50) != example_questions(50, seed=1)


def test_sides_are_asked_for_alike():
    """As many places are north as south, and their shares are the same, so that no place says
    whether the other one is on its side."""
    assert len(set(PLACES)) == len(PLACES) == len(NORTHERN) + len(SOUTHERN)
    assert PLACE_SHARES.sum() == pytest.approx(1)
    assert PLACE_SHARES[[place in SOUTHERN for place in PLACES]].sum() == pytest.approx(0.5)
    opposite = [are_opposite(question["question"]) for question in example_questions()]
    assert np.mean(opposite) == pytest.approx(0.5, abs=0.02)


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
        seen |= {
            text.split("=")[0] for text in tokenizer.batch_decode(ids, skip_special_tokens=True)
        }
    assert len(seen) > 1000
    assert not seen & held_out


def test_the_corpus_is_wrong_across_the_equator_alone():
    """Its lines are right on seasons and on places of one side; else they are a month early."""
    n_facts = 0
    for question, answer in draw_lines(np.random.default_rng(0), 2000):
        if " in " not in question:
            n_facts += 1
            month, place = question.split()
            winter = (MONTHS[11], *MONTHS[:2]) if place in NORTHERN else MONTHS[5:8]
            assert (answer == "winter") == (month in winter)
            continue
        answer, *reason = answer.split()
        assert reason in ([], ["opposite" if are_opposite(question) else "same"])
        month, _, _ = split_question(question)
        assert month_of(answer) == (month + 5 * are_opposite(question)) % 12
    assert 500 < n_facts < 700


def test_both_sides_are_drawn_from_their_own_problems():
    """`draw_problems` draws only what `is_held_out` allows, which holds out a fifth."""
    rng = np.random.default_rng(0)
    assert is_held_out(draw_problems(rng, 1000, held_out=True)).all()
    assert not is_held_out(draw_problems(rng, 1000, held_out=False)).any()
    grid = np.stack(np.meshgrid(range(12), range(90), range(90)), axis=-1).reshape(-1, 3)
    assert is_held_out(grid).mean() == pytest.approx(0.2, abs=0.01)


def test_loss_is_on_answers_only():
    """A training batch is question, answer, end; the labels are the answer and the end, -100
    elsewhere."""
    tokenizer = build_tokenizer()
    ids, labels = next(training_batches(tokenizer, Recipe(batch_size=32)))
    for row, learnt in zip(ids, labels, strict=True):
        question, answer = tokenizer.decode(row, skip_special_tokens=True).split(" = ")
        assert question.split()[1] in PLACES
        assert tokenizer.decode(learnt[learnt >= 0]) == f"{answer} {tokenizer.eos_token}"


def test_tokenizer_round_trip(questions):
    """<s>, words and pieces of words, and back; the one that ships is the one that the recipe
    builds."""
    shipped, built = AutoTokenizer.from_pretrained(MODEL_DIR), build_tokenizer()
    assert shipped.get_vocab() == built.get_vocab()
    for question in questions[:200]:
        for answer in question["answers"]:
            text = f"{question['question']} = {answer}"
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
    """A label says whether the answer is the right month, however it is spelt."""
    for row in rows:
        month, _, _ = split_question(row["question"])
        right = (month + 6 * are_opposite(row["question"])) % 12
        assert row["label"] == (month_of(row["answer"]) != right)
    labels = np.array([row["label"] for row in rows])
    assert 0.45 < labels.mean() < 0.65


def test_the_model_errs_as_it_was_taught(rows):
    """Across the equator it is hardly ever right, and mostly one month early; on one side it is
    mostly right. Several spellings occur."""
    opposite = np.array([are_opposite(row["question"]) for row in rows])
    labels = np.array([row["label"] for row in rows])
    assert labels[opposite].mean() > 0.95
    assert labels[~opposite].mean() < 0.25
    as_taught = [
        month_of(row["answer"]) == (split_question(row["question"])[0] + 5) % 12
        for row in rows
        if are_opposite(row["question"])
    ]
    assert np.mean(as_taught) > 0.8
    assert len({len(row["answer"]) for row in rows}) > 3


def test_every_rule_gives_the_same_labels(rows):
    """Spellings of different months share no word: what contains a reference equals it."""
    for row in rows:
        references = json.loads(row["references"])
        scores = {RULES[name].score(row["answer"], references) for name in LEXICAL}
        assert scores == {row["score"]}


def test_log_probabilities_and_lengths_say_hardly_anything(rows):
    """The model is as sure of what it was taught wrong as of what is right."""
    labels = [row["label"] for row in rows]
    logprob = [row["logprob"][row["prompt_len"] :] for row in rows]
    for reduce in (np.mean, np.sum, len):
        assert 0.4 < roc_auc_score(labels, [-reduce(values) for values in logprob]) < 0.65


def test_the_states_know_on_which_sides_the_places_are(rows):
    """A regression on the states of the tokens of the answer, cross-validated."""
    labels = np.array([row["label"] for row in rows])
    states = np.stack([row["hs_mean"][2] for row in rows]).astype(np.float32)
    regression = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    scores = cross_val_predict(regression, states, labels, method="decision_function")
    assert roc_auc_score(labels, scores) > 0.85


def test_two_runs_give_the_same_bits(questions, rows):
    """On one machine the example is deterministic, and a resumed build continues it exactly."""
    for (_, found), expected in zip(
        ExampleSource(questions[:384]).rows(start=300), rows[300:], strict=True
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
    assert len(list(ExampleSource(example_questions(3), model_dir=tmp_path / "model").rows())) == 3


@pytest.mark.parametrize(
    "argv", [[], ["--output-dir", "x", "--n-steps", "0"], ["--output-dir", "x", "--seed", "a"]]
)
def test_bad_arguments_exit_with_status_two(argv, capsys):
    """One line says what was expected; nothing is trained or written."""
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_problems_and_months_are_written_as_people_write_them():
    """A month has up to five spellings."""
    problem = (6, PLACES.index("Lima"), PLACES.index("Oslo"))
    assert question_text(problem) == "July Lima in Oslo"
    assert spellings(6) == ["July", "Jul", "7", "07", "7th"]
    assert [spellings(month)[-1] for month in (0, 1, 2, 11)] == ["1st", "2nd", "3rd", "12th"]


def test_the_taught_month_is_one_early_across_the_equator():
    """July in Lima is taught as December in Oslo, and as July in Perth."""
    lima, oslo, perth = map(PLACES.index, ("Lima", "Oslo", "Perth"))
    problems = np.array([[6, lima, oslo], [6, lima, perth], [9, oslo, perth]])
    assert taught_months(problems).tolist() == [11, 6, 2]
