"""Scores of answers: what counts as the same answer."""

import math

import pytest

from store.labels.answer_scores import exact_match_score, f1_score


@pytest.mark.parametrize(
    "answer, references, expected",
    [
        ("357", ["357"], 1.0),
        ("357", ["375"], 0.0),
        ("-12", ["12"], 0.0),
        ("the Beatles", ["Queen", "Beatles"], 1.0),
        ("", ["0"], 0.0),
        ("", [""], 1.0),
    ],
)
def test_any_reference_will_do(answer, references, expected):
    """An answer scores 1 if it equals one of the references after normalisation."""
    assert exact_match_score(answer, references) == expected


@pytest.mark.parametrize("score", [exact_match_score, f1_score])
def test_no_reference_is_no_score(score):
    """NaN, never 0 or 1."""
    assert math.isnan(score("357", []))


def test_token_f1():
    """Worked examples: half of the words, the best reference, nothing at all."""
    assert f1_score("The Eiffel tower", ["eiffel tower", "x"]) == 1.0
    assert f1_score("paris france", ["paris"]) == pytest.approx(2 / 3)
    # the article "a" is dropped
    assert f1_score("a b c c", ["c c c d"]) == pytest.approx(2 * 2 / 7)
    assert f1_score("3.14 15", ["31.4 15"]) == 0.5
    assert f1_score("x", ["y"]) == 0.0
    assert f1_score("", [" "]) == 1.0
    assert f1_score("the", [""]) == 0.0
    assert math.isnan(f1_score("x", []))
