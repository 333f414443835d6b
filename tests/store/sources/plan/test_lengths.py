"""Items of every axis from the lengths of traces, against counting them one by one."""

import numpy as np

from store.sources.plan.lengths import TraceLengths

PROMPTS = np.array([3, 5, 8, 2])
ANSWERS = np.array([1, 4, 2, 7])


def lengths(prompts=PROMPTS, answers=ANSWERS, **known):
    longest = int((prompts + answers).max())
    return TraceLengths(prompts, answers, longest, "given", {"question": 40}, **known)


def test_lengths_give_the_items_of_every_axis():
    """Tokens, pairs, squares, and the texts."""
    found = lengths(token_text_bytes=7, answer_token_bytes=2)
    totals = (PROMPTS + ANSWERS).tolist()
    items = found.count_items(n_maps=6)
    assert items["tokens"] == sum(totals)
    assert items["pairs"] == sum(n * (n + 1) // 2 for n in totals)
    assert items["squares"] == sum(n * n for n in totals)
    assert items["token_texts"] == sum(totals) * 7
    assert items["answer"] == ANSWERS.sum() * 2
    assert items["question"] == 40
    assert found.n_rows == 4


def test_the_longest_trace_has_the_longest_prompt():
    """And the longest answer to it that is possible."""
    items = lengths().longest_alone().count_items(n_maps=6)
    assert (items["tokens"], items["squares"]) == (10, 100)


def test_edges_are_bounded_by_pairs_and_by_the_threshold():
    """All earlier tokens of few, at most 20 a map of many; a sample's mean replaces the bound."""
    few = lengths(np.array([5]), np.array([3])).count_items(n_maps=4)
    assert few["edges"] == 4 + 5 + 6 + 7 + 4  # rows 4 to 7 attend to as many, half a token more
    many = lengths(np.array([1000]), np.array([9])).count_items(n_maps=2)
    assert many["edges"] == 10 * 40
    assert lengths(edges=2.5).count_items(n_maps=6)["edges"] == 10
