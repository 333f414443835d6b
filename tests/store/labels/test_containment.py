"""The rule `contains`: a reference is said in the first statement, and not denied."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.labels.answer_scores import contains_score, exact_match_score, first_statement

SAID = [  # a reference, and answers
    ("Paris", "The capital of France is Paris.", "**Paris** is the capital."),
    ("Paris", "Paris, not London.", "It's not London, Paris is.", "Not only Paris, also Lyon."),
    ("Paris", "Paris is not only the capital, but the largest city."),
    ("Paris", "Sure, here is the answer:\n\nParis", "1. Paris\n2. London", "Paris?"),
    ("Paris", "Sure. The answer is Paris.", "Let me think.\nParis"),
    ("Paris", "Great question!\nSure. Let me see.\nParis"),
    ("Paris", "<think>\nLondon? No.\n</think>\n\nParis", "<think>hm</think>Paris"),
    ("Paris", "London? No.\n</think>\nParis", "Believe it or not, it's Paris."),
    ("Paris", "Don't worry, it is Paris.", "I do not know London, but I think it is Paris."),
    ("Paris", "I have no doubt that it is Paris.", "Not Paris in Texas, but Paris in France."),
    ("St. Louis", "It was St. Louis."),
    ("JK Rowling", "Great question! The answer is J. K. Rowling. She was born in 1965."),
    ("paris", "\n\n  Paris"),
    ("1000", "It is 1,000 km."),
    ("Vitamin A", "Vitamin A is one."),
    ("A", "The answer is A.", "A) Paris"),
    ("no", "No, it isn't."),
    ("not to be", "To be, or not to be"),
    ("President", "The U.S. President"),
    ("yes", "Great question! Yes, it is."),
    ("No", "The answer is no."),
    ("False", "That statement is false."),
    ("true", "True."),
    ("北京", "中国的首都是北京。", "首都是北京，不是上海。"),
    ("東京", "東京です"),
    ("서울", "서울입니다."),
]
NOT_SAID = [  # a reference, and answers
    ("Paris", "London.", "", "not Paris", "It isn't Paris.", "It isn’t Paris."),
    ("Paris", "It is not in the city of Paris.", "It was never called Paris."),
    ("Paris", "Neither London nor Paris.", "London rather than Paris."),
    ("Paris", "London, unlike Paris, is.", "Paris is not the capital."),
    ("Paris", "Paris isn't the capital.", "Is it Paris? No, it is London.", "London.\nParis"),
    ("Paris", "London. Or Paris.", "A Parisian", "It can't be Paris.", "It cannot be Paris."),
    ("Paris", "It couldn't be Paris.", "It wasn't actually Paris.", "It is no longer Paris."),
    ("Paris", "It hadn't been Paris.", "It won't be Paris, it wouldn't be Paris."),
    ("Paris", "I don't think it's Paris.", "I do not believe that it is in Paris."),
    ("Paris", "I doubt it was Paris.", "Anything but Paris."),
    ("Paris", "It is anything but the Paris of old.", "<think>Paris, perhaps"),
    ("Paris", "<think>Paris?</think>London", "London. Sure. Paris"),
    ("A", "It is a dog."),
    ("3.14", "3.14159"),
    ("5 million", "It is 1.5 million."),
    ("12", "-12"),
    ("", "Paris"),
    ("C", "C++"),
    ("No", "Yes, no doubt about that."),
    ("true", "There is no doubt that it is true.", "Not true."),
    ("北京", "首都不是北京。", "上海。北京。"),
    ("東京", "東京ではない"),
    ("서울", "서울이 아니다"),
    ("Рим", "Римский"),
]


@pytest.mark.parametrize("said, texts", [(1.0, SAID), (0.0, NOT_SAID)])
def test_a_reference_is_said(said, texts):
    """One place will do, though it is denied in another. It is not, elsewhere, denied, or as a part
    of another word or number."""
    for reference, *answers in texts:
        for answer in answers:
            others = ["Oslo"] if said else []
            assert contains_score(answer, [*others, reference]) == said, (answer, reference)


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
def test_long_answers_take_linear_time(text):
    """A model that repeats itself holds nothing up: 10,000 repetitions."""
    began = time.process_time()
    assert contains_score(text * 10_000 + "x", ["Paris", "a. st."]) == 0.0
    assert time.process_time() - began < 6
