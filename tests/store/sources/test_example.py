"""Tests of the embedded example: questions, weights, traces, and the command that makes the weights
again."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from transformers import AutoModelForCausalLM, AutoTokenizer

from store import StoreWriter, TraceStore
from store.sources.example import MODEL_DIR, ExampleSource, example_questions
from store.sources.example.__main__ import main
from store.sources.example.questions import OPERATORS, draw_problems, is_held_out, text_and_answer
from store.sources.example.recipe import Recipe, build_tokenizer, train_model, training_batches
from store.sources.labels.rule import LABEL_RULES

LEXICAL = ("exact", "contains", "f1")
SOLVE = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def split_question(question: str) -> tuple[int, str, int]:
    """Take a question apart: "12+345" -> (12, "+", 345)."""
    operator = next(character for character in question if character in OPERATORS)
    left, right = question.split(operator)
    return int(left), operator, int(right)


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
    """One reference each, checked by doing the sum again."""
    for question in questions:
        left, operator, right = split_question(question["question"])
        assert question["answers"] == [str(SOLVE[operator](left, right))]
        assert 0 <= min(left, right) <= max(left, right) <= 9999


def test_questions_stay_the_same(questions):
    """Ids keep their questions from version to version, whatever the number drawn; another seed
    draws others."""
    assert [question["question"] for question in questions[:3]] == ["3-33", "51+2204", "0*462"]
    assert example_questions(50) != example_questions(50, seed=1)


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


def test_both_sides_are_drawn_from_their_own_problems():
    """`draw_problems` draws only what `is_held_out` allows, which holds out a fifth."""
    rng = np.random.default_rng(0)
    assert is_held_out(draw_problems(rng, 1000, held_out=True)).all()
    assert not is_held_out(draw_problems(rng, 1000, held_out=False)).any()
    grid = np.stack(np.meshgrid(np.arange(100), np.arange(3), np.arange(100)), axis=-1).reshape(
        -1, 3
    )
    assert is_held_out(grid).mean() == pytest.approx(0.2, abs=0.01)


def test_loss_is_on_answers_only():
    """A training batch is prompt, answer, end; the labels are the answer and the end, -100
    elsewhere."""
    tokenizer = build_tokenizer()
    ids, labels = next(training_batches(tokenizer, Recipe(batch_size=32)))
    for row, learnt in zip(ids, labels, strict=True):
        question, answer = tokenizer.decode(row, skip_special_tokens=True).split("=")
        left, operator, right = split_question(question)
        assert answer == str(SOLVE[operator](left, right))
        assert tokenizer.decode(learnt[learnt >= 0]) == answer + tokenizer.eos_token


def test_tokenizer_round_trip(questions):
    """One token per character after <s>, and back; the one that ships is the one that the recipe
    builds."""
    shipped, built = AutoTokenizer.from_pretrained(MODEL_DIR), build_tokenizer()
    assert shipped.get_vocab() == built.get_vocab()
    for question in questions[:200]:
        text = question["question"] + "=" + question["answers"][0]
        ids = shipped(text)["input_ids"]
        assert ids == built(text)["input_ids"]
        assert len(ids) == 1 + len(text)
        assert shipped.decode(ids, skip_special_tokens=True) == text


def test_weights_are_small_and_half_precision():
    """At most 2 MB of float16 in the package."""
    path = MODEL_DIR / "model.safetensors"
    assert path.stat().st_size <= 2_000_000
    assert {weight.dtype for weight in load_file(path).values()} == {torch.float16}


def test_rows_fit_the_schema(rows):
    """Shapes follow from T, L = 4, H = 4, d = 128 and K = 10."""
    schema = ExampleSource([]).schema
    for row in rows:
        n_tokens = len(row["tokens"])
        assert list(row) == list(schema.columns)
        assert n_tokens == row["prompt_len"] + row["answer_len"]
        assert row["prompt_len"] == len(row["question"]) + 2  # <s> and =
        assert row["hidden_states"].shape == (n_tokens, 4, 128)
        assert row["attn_mean"].shape == (n_tokens * (n_tokens + 1) // 2, 4)
        assert row["attn_pmass"].shape == (n_tokens, 4, 4)
        assert row["topk_id"].shape == (n_tokens, 10)


def test_labels_are_the_models_own_errors(rows):
    """A label says whether the answer is the right number; about four in ten are wrong, of every
    kind of sum."""
    for row in rows:
        left, operator, right = split_question(row["question"])
        assert row["label"] == (row["answer"] != str(SOLVE[operator](left, right)))
    labels = np.array([row["label"] for row in rows])
    assert 0.3 < labels.mean() < 0.5
    for operator in OPERATORS:
        of_kind = labels[[operator in row["question"] for row in rows]]
        assert 0 < of_kind.mean() < 1


def test_every_rule_gives_the_same_labels(rows):
    """Answers are bare numbers: what contains a reference equals it."""
    for row in rows:
        references = json.loads(row["references"])
        scores = {LABEL_RULES[name].score(row["answer"], references) for name in LEXICAL}
        assert scores == {row["score"]}


def test_the_example_has_signal(rows):
    """The mean log-probability of the answer tells errors well, its length badly."""
    labels = [row["label"] for row in rows]
    logprob = [row["logprob"][row["prompt_len"] :].mean() for row in rows]
    length = [row["answer_len"] for row in rows]
    assert roc_auc_score(labels, np.negative(logprob)) > 0.85
    assert 0.6 < roc_auc_score(labels, length) < 0.8


def test_attention_rows_sum_to_one(rows):
    """A row of `attn_mean` is a mean of distributions, and all of a prompt token's attention is on
    the prompt."""
    for row in rows[:20]:
        n_tokens = len(row["tokens"])
        full = np.zeros((n_tokens, n_tokens, 4), np.float32)
        full[np.tril_indices(n_tokens)] = row["attn_mean"]
        np.testing.assert_allclose(full.sum(axis=1), 1, atol=5e-3)
        np.testing.assert_allclose(row["attn_pmass"][: row["prompt_len"]], 1, atol=1e-3)


def test_two_runs_give_the_same_bits(questions, rows):
    """On one machine the example is deterministic, and a resumed build continues it exactly."""
    for (_, found), expected in zip(
        ExampleSource(questions[:384]).rows(start=300), rows[300:], strict=True
    ):
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_store_gives_the_traces_back(tmp_path, questions):
    """What the source yields is what a store that was built from it reads."""
    source = ExampleSource(questions[:5])
    with StoreWriter.create(
        tmp_path / "traces.zarr", source.schema, provenance=source.provenance
    ) as writer:
        for trace_id, row in source.rows():
            writer.append(trace_id, row)
    store = TraceStore.open(tmp_path / "traces.zarr")
    assert list(store.ids) == [question["question_id"] for question in questions[:5]]
    for question in questions[:5]:
        [(_, expected)] = ExampleSource([question]).rows()
        trace = store[question["question_id"]]
        assert str(trace["answer"]) == expected["answer"]
        np.testing.assert_array_equal(trace["tokens"], expected["tokens"])
        np.testing.assert_allclose(
            trace["hidden_states"], expected["hidden_states"], rtol=2e-3, atol=1e-3
        )


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


def test_problems_are_written_as_people_write_them():
    """Operators stand between the numbers, and a negative answer has its sign."""
    assert text_and_answer((12, 0, 345)) == ("12+345", "357")
    assert text_and_answer((3, 1, 10)) == ("3-10", "-7")
    assert text_and_answer((70, 2, 0)) == ("70*0", "0")
