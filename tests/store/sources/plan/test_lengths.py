"""Items of every axis from the lengths of traces, against counting them one by one."""

import numpy as np
import pytest

from store.sources.plan.lengths import AnswerLengths, TraceLengths, count_items, edges_at_most

PROMPTS = np.array([3, 5, 8, 2])
ANSWERS = np.array([1, 4, 2, 7])


def test_known_lengths_give_exact_items():
    """Tokens, pairs, squares, and the JSON of the tokens' texts."""
    lengths = TraceLengths(PROMPTS, ANSWERS, {"question": 40}, token_text_bytes=3)
    totals = (PROMPTS + ANSWERS).tolist()
    items = count_items(lengths, n_heads=2, n_layers=3)
    assert items["tokens"] == sum(totals)
    assert items["pairs"] == sum(n * (n + 1) // 2 for n in totals)
    assert items["squares"] == sum(n * n for n in totals)
    assert items["token_texts"] == sum(totals) * 7
    assert items["question"] == 40
    assert lengths.longest == 10
    assert lengths.n_rows == 4


def test_a_sample_gives_the_expected_items():
    """The mean over every way to pair prompts with the answers of the sample."""
    answers = AnswerLengths.of_sample(ANSWERS.tolist(), longest=9)
    items = count_items(TraceLengths(PROMPTS, answers), n_heads=2, n_layers=3)
    totals = PROMPTS[:, None] + ANSWERS
    assert items["tokens"] == totals.sum() / 4
    assert items["pairs"] == round((totals * (totals + 1) // 2).sum() / 4)
    assert items["squares"] == round((totals**2).sum() / 4)
    assert answers.error == pytest.approx(ANSWERS.std(ddof=1) / 2)
    assert TraceLengths(PROMPTS, answers).longest == 17


def test_edges_are_bounded_by_pairs_and_by_the_threshold():
    """All earlier tokens of few, at most 20 a map of many; a sample's mean replaces the bound."""
    few = edges_at_most(np.array([5.0]), np.array([3.0]), n_maps=4)
    assert few.tolist() == [4 + 5 + 6 + 7 + 4]  # rows 4 to 7 attend to as many, half a token more
    many = edges_at_most(np.array([1000.0]), np.array([9.0]), n_maps=2)
    assert many.tolist() == [10 * 40]
    seen = TraceLengths(PROMPTS, ANSWERS, edges=2.5)
    assert count_items(seen, n_heads=2, n_layers=3)["edges"] == 10
