"""The control that reads questions: its features by loops, what it learns, what it never sees."""

import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from plain import reload
from sklearn.metrics import roc_auc_score

from models import CONTROLS
from models.question_only import Vocabulary, count_features

CONTROL = CONTROLS["question_only"]
TEXTS = ["12+345", "What is 7+7?", "", "Who was Ada Lovelace?", "who was Ada?", "   "]


def character_grams(text):
    """All runs of 1 to 5 characters of the text in lower case, runs of spaces as one."""
    text = " ".join(text.lower().split(" ")) if "  " not in text else text.lower()
    return [text[i : i + n] for n in range(1, 6) for i in range(len(text) - n + 1)]


def plain_tf_idf(texts, terms):
    """(1 + log count) * idf, each row of length 1; idf = 1 + log((1 + n) / (1 + n_with))."""
    grams = [Counter(character_grams(text)) for text in texts]
    idf = [
        1 + math.log((1 + len(texts)) / (1 + sum(term in one for one in grams))) for term in terms
    ]
    counts = np.array([[one[term] for term in terms] for one in grams])
    rows = np.where(counts > 0, 1 + np.log(np.maximum(counts, 1)), 0) * idf
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def test_characters_are_weighted_by_tf_idf():
    """Against loops that count them."""
    texts = TEXTS[:5]
    vocabulary, of_train = Vocabulary.of_texts("characters", texts)
    expected = {gram for text in texts for gram in character_grams(text)}
    assert set(vocabulary.terms) == expected
    found = vocabulary.transform(texts).toarray()
    np.testing.assert_allclose(found, plain_tf_idf(texts, vocabulary.terms), atol=1e-12)
    np.testing.assert_allclose(of_train.toarray(), found, atol=1e-12)


def test_of_a_long_text_words_are_read_all_and_characters_at_its_ends():
    """So that the time grows with the number of words, not with five times that of characters."""
    text = " ".join(["first", *["filler"] * 50, "xyz", *["filler"] * 50, "last"])
    kinds = [set(Vocabulary.of_texts(kind, [text])[0].terms) for kind in ("characters", "words")]
    assert {"first", " last"} <= kinds[0]
    assert "xyz" not in kinds[0]
    assert {"first", "xyz", "last"} <= kinds[1]


def test_counts_are_of_characters_words_and_numbers():
    assert count_features(TEXTS[:3]).tolist() == [
        [6, 1, 5, 2, 3],
        [12, 3, 2, 2, 1],
        [0, 0, 0, 0, 0],
    ]


@cache
def fit(n=200, seed=0):
    """Fit on questions whose operator decides the label in nine of ten."""
    rng = np.random.default_rng(seed)
    operator = rng.integers(0, 2, n)
    questions = [f"{rng.integers(100)}{'+*'[one]}{rng.integers(100)}" for one in operator]
    texts = np.array(questions, dtype=object)
    labels = np.where(rng.random(n) < 0.9, operator, 1 - operator)
    half = n // 2
    fitted = CONTROL.fit(texts[:half], labels[:half], texts[half:], labels[half:])
    return fitted, texts, labels


def of_pairs(n, seed=0):
    """Questions on two of 40 places, and whether one is in the north and the other in the south."""
    rng = np.random.default_rng(seed)
    places = ["".join(rng.choice(list("bdfgklmnprstvz"), 5)) for _ in range(40)]
    pairs = rng.integers(0, 40, (n, 2))
    texts = np.array([f"{places[a]} in {places[b]}" for a, b in pairs], dtype=object)
    return texts, pairs[:, 0] % 2 ^ pairs[:, 1] % 2


@cache
def fit_pairs(n=400):
    """A control that has learnt products, and what it is fitted on."""
    texts, labels = of_pairs(n)
    half = n // 2
    return CONTROL.fit(texts[:half], labels[:half], texts[half:], labels[half:]), texts, labels


def test_it_learns_what_two_words_say_together():
    """Of pairs that it never saw as well, where no word says anything alone."""
    texts, labels = of_pairs(1500)
    fitted = CONTROL.fit(texts[:700], labels[:700], texts[700:900], labels[700:900])
    is_new = ~np.isin(texts, texts[:900])
    assert is_new.sum() > 300
    assert fitted.iterations > 0
    assert roc_auc_score(labels[is_new], fitted.predict(texts[is_new])) > 0.97


def test_of_labels_by_chance_it_learns_nothing():
    texts, labels = of_pairs(900)
    labels = np.random.default_rng(1).permutation(labels)
    fitted = CONTROL.fit(texts[:300], labels[:300], texts[300:400], labels[300:400])
    # 500 traces: a standard error of .026
    assert abs(roc_auc_score(labels[400:], fitted.predict(texts[400:])) - 0.5) < 0.06


def test_a_word_that_says_all_alone_needs_no_products():
    """On few questions the regression is better on validation, and stays."""
    fitted, *_ = fit(80, seed=2)
    assert fitted.iterations == 0
    assert fitted.factors.size == 0


@pytest.mark.parametrize("make", [lambda: fit(80, seed=2), fit_pairs])
def test_saved_and_loaded_it_scores_the_same(make):
    """Bit for bit, from a file without code, whatever texts it is asked; a refit keeps what was
    chosen."""
    fitted, texts, labels = make()
    loaded = CONTROL.load(reload(fitted.to_dict()))
    asked = [*texts, *TEXTS]
    np.testing.assert_array_equal(loaded.predict(asked), fitted.predict(asked))
    n_parameters = len(fitted.weight) + fitted.factors.size + 1
    assert loaded.n_parameters() == fitted.n_parameters() == n_parameters
    again = CONTROL.refit(fitted, texts[:70], labels[:70])
    for name in ("strength", "iterations", "val_auroc"):
        assert getattr(again, name) == getattr(fitted, name)
    assert not np.array_equal(again.predict(texts), fitted.predict(texts))


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("mean", torch.zeros(1), r"mean: expected shape \(5,\)"),
        ("mean", torch.full((5,), np.nan), "mean: expected finite"),
        ("scale", torch.ones(1), r"scale: expected shape \(5,\)"),
        ("scale", torch.tensor([1.0, 1, 0, 1, 1]), "scale: expected positive"),
        ("bias", np.inf, "bias: expected finite"),
        ("weight", torch.zeros(2), "expected"),
        ("factors", torch.zeros(2, 2), "expected"),
        ("vocabularies", {}, "expected"),
    ],
)
def test_what_gives_no_score_is_refused(name, value, message):
    """A file from elsewhere would otherwise score NaN, or a number for anything."""
    with pytest.raises(ValueError, match=message):
        CONTROL.load(fit()[0].to_dict() | {name: value})


def test_a_vocabulary_of_other_weights_is_refused():
    saved = fit()[0].to_dict()
    saved["vocabularies"]["words"]["idf"] = torch.zeros(2)
    with pytest.raises(ValueError, match="expected"):
        CONTROL.load(saved)


@pytest.mark.parametrize("texts", [[""] * 6, ["?"] * 6, ["same"] * 6], ids=["empty", "?", "same"])
def test_questions_that_say_nothing_give_the_base_rate(texts):
    labels = np.array([0, 1, 1, 0, 1, 1])
    fitted = CONTROL.fit(texts, labels, texts, labels)
    np.testing.assert_allclose(fitted.predict(texts), 4 / 6, atol=1e-3)
    assert fitted.val_auroc == (0.5,)
