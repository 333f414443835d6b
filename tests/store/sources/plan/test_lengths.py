"""Items of every axis from the lengths of traces, against counting them one by one."""

import numpy as np
import pytest

from store.sources.plan.measures import TraceLengths


def items(prompts, answers, n_maps, **known):
    arrays = map(np.array, (prompts, answers))
    lengths = TraceLengths(*arrays, 12, "given", {"question": 40}, **known)
    return lengths.count_items(n_maps), lengths.longest_alone().count_items(n_maps)


def test_lengths_give_the_items_of_every_axis():
    """Tokens, pairs, squares, and the texts; the longest trace has the longest prompt."""
    found, longest = items([3, 8], [1, 2], 6, token_text_bytes=7, answer_token_bytes=2)
    assert found["tokens"] == 4 + 10
    assert found["pairs"] == 4 * 5 // 2 + 10 * 11 // 2
    assert found["squares"] == 16 + 100
    assert (found["token_texts"], found["answer"], found["question"]) == (14 * 7, 3 * 2, 40)
    assert (longest["tokens"], longest["squares"], longest["answer"]) == (12, 144, 4 * 2)


@pytest.mark.parametrize(
    ("prompt", "answer", "n_maps", "known", "edges"),
    [
        (5, 3, 4, {}, 4 + 5 + 6 + 7 + 4),  # rows 4 to 7 attend to as many, half a token more
        (1000, 9, 2, {}, 10 * 40),
        (5, 3, 6, {"edges": 2.5}, 2),
    ],
)
def test_edges_are_bounded_by_pairs_and_by_the_threshold(prompt, answer, n_maps, known, edges):
    """All earlier tokens of few, at most 20 a map of many; a sample's mean replaces the bound."""
    found, _ = items([prompt], [answer], n_maps, **known)
    assert found["edges"] == edges
