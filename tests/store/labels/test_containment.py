"""The rule `contains`: a reference is said in the first statement, and not denied."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.labels.answer_scores import contains_score, exact_match_score, first_statement

SAID = [
    ("The capital of France is Paris.", "Paris"),
    ("**Paris** is the capital.", "Paris"),
    ("Paris, not London.", "Paris"),
    ("It's not London, Paris is.", "Paris"),
    ("Not only Paris, also Lyon.", "Paris"),
    ("Paris is not only the capital, but the largest city.", "Paris"),
    ("It was St. Louis.", "St. Louis"),
    ("Great question! The answer is J. K. Rowling. She was born in 1965.", "JK Rowling"),
    ("Sure, here is the answer:\n\nParis", "Paris"),
    ("1. Paris\n2. London", "Paris"),
    ("Paris?", "Paris"),
    ("\n\n  Paris", "paris"),
    ("It is 1,000 km.", "1000"),
    ("Vitamin A is one.", "Vitamin A"),
    ("The answer is A.", "A"),
    ("A) Paris", "A"),
    ("No, it isn't.", "no"),
    ("To be, or not to be", "not to be"),
    ("The U.S. President", "President"),
    ("Sure. The answer is Paris.", "Paris"),
    ("Let me think.\nParis", "Paris"),
    ("Great question!\nSure. Let me see.\nParis", "Paris"),
    ("<think>\nLondon? No.\n</think>\n\nParis", "Paris"),
    ("<think>hm</think>Paris", "Paris"),
    ("London? No.\n</think>\nParis", "Paris"),
    ("Great question! Yes, it is.", "yes"),
    ("The answer is no.", "No"),
    ("That statement is false.", "False"),
    ("True.", "true"),
    ("中国的首都是北京。", "北京"),
    ("首都是北京，不是上海。", "北京"),
    ("東京です", "東京"),
    ("Believe it or not, it's Paris.", "Paris"),
    ("Don't worry, it is Paris.", "Paris"),
    ("I do not know London, but I think it is Paris.", "Paris"),
    ("I have no doubt that it is Paris.", "Paris"),
    ("서울입니다.", "서울"),
]
NOT_SAID = [
    ("London.", "Paris"),
    ("", "Paris"),
    ("not Paris", "Paris"),
    ("It isn't Paris.", "Paris"),
    ("It isn’t Paris.", "Paris"),
    ("It is not in the city of Paris.", "Paris"),
    ("It was never called Paris.", "Paris"),
    ("Neither London nor Paris.", "Paris"),
    ("London rather than Paris.", "Paris"),
    ("London, unlike Paris, is.", "Paris"),
    ("Paris is not the capital.", "Paris"),
    ("Paris isn't the capital.", "Paris"),
    ("Is it Paris? No, it is London.", "Paris"),
    ("London.\nParis", "Paris"),
    ("London. Or Paris.", "Paris"),
    ("A Parisian", "Paris"),
    ("It is a dog.", "A"),
    ("3.14159", "3.14"),
    ("It is 1.5 million.", "5 million"),
    ("-12", "12"),
    ("Paris", ""),
    ("C++", "C"),
    ("Yes, no doubt about that.", "No"),
    ("There is no doubt that it is true.", "true"),
    ("Not true.", "true"),
    ("It can't be Paris.", "Paris"),
    ("It cannot be Paris.", "Paris"),
    ("It couldn't be Paris.", "Paris"),
    ("It wasn't actually Paris.", "Paris"),
    ("It is no longer Paris.", "Paris"),
    ("It hadn't been Paris.", "Paris"),
    ("It won't be Paris, it wouldn't be Paris.", "Paris"),
    ("I don't think it's Paris.", "Paris"),
    ("I do not believe that it is in Paris.", "Paris"),
    ("I doubt it was Paris.", "Paris"),
    ("Anything but Paris.", "Paris"),
    ("It is anything but the Paris of old.", "Paris"),
    ("<think>Paris, perhaps", "Paris"),
    ("<think>Paris?</think>London", "Paris"),
    ("London. Sure. Paris", "Paris"),
    ("首都不是北京。", "北京"),
    ("上海。北京。", "北京"),
    ("東京ではない", "東京"),
    ("서울이 아니다", "서울"),
    ("Римский", "Рим"),
]


@pytest.mark.parametrize("answer, reference", SAID)
def test_said(answer, reference):
    assert contains_score(answer, ["Oslo", reference]) == 1.0


@pytest.mark.parametrize("answer, reference", NOT_SAID)
def test_not_said(answer, reference):
    """Elsewhere, denied, or part of another word or number."""
    assert contains_score(answer, [reference]) == 0.0


def test_said_in_one_place_and_denied_in_another():
    """One place will do."""
    assert contains_score("Not Paris in Texas, but Paris in France.", ["Paris"]) == 1.0


def test_without_references_there_is_no_score():
    assert math.isnan(contains_score("Paris", []))


@pytest.mark.parametrize(
    "answer, statement",
    [
        ("One. Two.", "One."),
        ("One! Two. Three.", "One! Two."),
        ("Dr. Who met Mr. T. at 5 p.m. today. Then", "Dr. Who met Mr. T. at 5 p.m. today."),
        ('"Paris." It is.', '"Paris."'),
        ("a:\nb:", "a:"),
        ("Why? Because.", "Because."),
        ("Sure. One. Two.", "Sure. One."),
        ("Sure.", "Sure."),
        ("Version 2.0 is. It", "Version 2.0 is."),
        ("", ""),
    ],
)
def test_first_statement(answer, statement):
    assert first_statement(answer) == statement


@given(st.text(max_size=40), st.text(max_size=8))
def test_any_text_has_a_score(answer, reference):
    """0 or 1; what an answer of one line without sentences equals, it contains."""
    assert contains_score(answer, [reference]) in (0.0, 1.0)
    word = "".join(filter(str.isalpha, answer))
    if word:
        assert contains_score(word, [word]) == exact_match_score(word, [word]) == 1.0


SLOW = ["sure.\n", "。", "不是x", "yes! ", "a. ", "st. ", ".", "!", "?! ", "a ", "1,000 ", '"']


@pytest.mark.parametrize(
    "text", ["sure. ", "\n", "not ", *(pytest.param(text, marks=pytest.mark.slow) for text in SLOW)]
)
@pytest.mark.timeout(30)
def test_long_answers_take_linear_time(text):
    """A model that repeats itself holds nothing up: 50,000 repetitions."""
    assert contains_score(text * 50_000 + "x", ["Paris", "a. st."]) == 0.0
