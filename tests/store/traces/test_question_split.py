"""Which questions are one, by ids and normalised texts."""

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from store.traces.question_split import join_questions, normalize_question


@pytest.mark.parametrize(
    "texts",
    [
        ("What's the Capital of FRANCE?", "whats  the\tcapital, of france"),
        ("Ｗhat’s the\u200b capital of France", "whats  the\tcapital, of france"),
        ("STRASSE 3/4", "straße 3/4?"),
        ("twenty-one", "Twenty one"),
        ("3 - 1", "3-1", "3 -1?", "3 \u2212 1"),
        ("C # or 5 %", "C# or 5%", "c#, or 5 %"),
        ("It's 5 - 3", "It\u2018s 5 \u2013 3", "it\u02bcs 5 \u2212 3", "it`s 5 \u2014 3\ufe0f"),
    ],
)
def test_texts_that_ask_the_same(texts):
    assert len(set(map(normalize_question, texts))) == 1


DIFFERENT = "3 * 4|3 + 4|3 - 4|3 / 4|34|3.4|x 3|x3|दी का|दीका|C|C#|C++|résumé|resume|5%|5"


def test_texts_that_ask_something_else():
    texts = DIFFERENT.split("|")
    assert len(set(map(normalize_question, texts))) == len(texts)
    assert normalize_question(" ?! ") == ""


def test_questions_are_joined_by_chains_of_ids_and_texts():
    """Each is called after its first row; a text that is missing joins nothing."""
    ids, texts = list("abcbdef"), ["x", "y", "z", "x", "", "", "z"]
    assert join_questions(ids, texts) == list("aacadec")
    assert join_questions(ids, texts, [(4, 2)]) == list("aacacec")
    assert join_questions([], []) == []


def test_each_component_is_a_question_and_appended_copies_move_no_row():
    """As SciPy finds the components; without equal texts ids alone decide."""
    rng = np.random.default_rng(0)
    ids, texts = rng.integers(0, 900, 1000), rng.integers(1000, 2000, 1000)
    both = coo_array((np.ones(1000), (ids, texts)), shape=(2000, 2000))
    component = connected_components(both, directed=False)[1][ids]
    found = join_questions(ids.tolist(), texts.tolist())
    first = {one: row for row, one in reversed(list(enumerate(component)))}
    assert found == [ids[first[one]] for one in component]
    copies = rng.choice(texts, 500)
    more = join_questions([*ids, *range(5000, 5500)], [*texts, *copies])
    assert more[:1000] == found
    assert join_questions(ids.tolist(), range(1, 1001)) == ids.tolist()
