"""Clusters of one meaning, their entropies, and contradictions, against loops over pairs."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.transform.samples.agreement import (
    Inference,
    Samples,
    cluster_meanings,
    contradicted,
    entropy_of_likelihoods,
    entropy_of_numbers,
)


class Asked:
    """A classifier that looks pairs up, and counts them."""

    def __init__(self, says):
        self.says, self.pairs, self.n_calls = says, [], 0

    def __call__(self, pairs):
        self.pairs += pairs
        self.n_calls += 1
        return [self.says(*pair) for pair in pairs]


def by_relation(entailed):
    """A classifier of answers behind the question "Q", by a set of (premise, hypothesis)."""

    def says(premise, hypothesis):
        pair = premise.removeprefix("Q "), hypothesis.removeprefix("Q ")
        return Inference(pair in entailed, 0.0)

    return Asked(says)


def clusters_by_hand(answers, entailed):
    """The algorithm of the paper, answer by answer."""
    clusters = []
    found = []
    for answer in answers:
        for number, cluster in enumerate(clusters):
            first = cluster[0]
            both = {(first, answer), (answer, first)} <= entailed and first and answer
            if first == answer or both:
                cluster.append(answer)
                found.append(number)
                break
        else:
            clusters.append([answer])
            found.append(len(clusters) - 1)
    return found


LETTERS = ["", "a", "b", "c", "d", "e"]
ANSWERS = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=8)
RELATION = st.sets(st.tuples(st.sampled_from(LETTERS), st.sampled_from(LETTERS)))


@given(st.lists(ANSWERS, max_size=4), RELATION)
def test_clusters_are_those_of_the_paper(questions, entailed):
    """Whatever follows from what, transitive or not, for several questions at once."""
    infer = by_relation(entailed)
    found = cluster_meanings([Samples("Q", answers) for answers in questions], infer)
    assert found == [clusters_by_hand(answers, entailed) for answers in questions]


def test_the_model_is_asked_once_a_round_and_not_of_equal_or_blank_answers():
    """Answers behind their questions, of all questions together."""
    infer = by_relation(set())
    samples = [Samples("Q", ["a", "a", "b", ""]), Samples("R", ["a", "c", "d"])]
    assert cluster_meanings(samples, infer) == [[0, 0, 1, 2], [0, 1, 2]]
    assert infer.n_calls == 3
    texts = [("Q a", "Q b"), ("R a", "R c"), ("R a", "R d"), ("R c", "R d")]
    assert sorted(infer.pairs) == sorted([*texts, *(pair[::-1] for pair in texts)])
    assert cluster_meanings([], infer) == []


def entropy_by_hand(clusters, log_likelihoods):
    """The probability of each cluster added up, then its logarithm."""
    mass = Counter()
    for cluster, log_likelihood in zip(clusters, log_likelihoods, strict=True):
        mass[cluster] += math.exp(log_likelihood)
    total = sum(mass.values())
    return -sum(part / total * math.log(part / total) for part in mass.values())


@given(st.lists(st.integers(0, 4), min_size=2, max_size=12), st.integers(0, 9))
def test_entropies_are_those_of_the_shares(clusters, seed):
    """Of numbers, and of likelihoods; with equal likelihoods both are one."""
    logs = -np.random.default_rng(seed).exponential(3, size=len(clusters))
    found = entropy_of_likelihoods(clusters, logs)
    assert found == pytest.approx(entropy_by_hand(clusters, logs), abs=1e-12)
    same = np.full(len(clusters), -700.0)
    by_number = entropy_by_hand(clusters, [0.0] * len(clusters))
    assert entropy_of_numbers(clusters) == pytest.approx(by_number, abs=1e-12)
    assert entropy_of_likelihoods(clusters, same) == pytest.approx(by_number, abs=1e-12)


def test_entropy_at_its_ends():
    """0 where all mean the same, without a minus; log K where no two do."""
    assert math.copysign(1, entropy_of_numbers([0, 0, 0])) == 1
    assert entropy_of_numbers([0, 0, 0]) == 0
    assert entropy_of_numbers([2, 0, 1]) == pytest.approx(math.log(3))
    assert entropy_of_likelihoods([0, 1], np.array([0.0, -5000.0])) == 0


def test_samples_without_a_likelihood_do_not_count():
    """Of fewer than two there is no entropy."""
    logs = np.array([-1.0, np.nan, -2.0, -np.inf])
    found = entropy_of_likelihoods([0, 1, 1, 2], logs)
    assert found == pytest.approx(entropy_by_hand([0, 1], [-1.0, -2.0]))
    assert math.isnan(entropy_of_likelihoods([0, 1], np.array([-1.0, np.nan])))


def p_of(premise, hypothesis):
    """Some number that depends on both texts, and on their order."""
    return Inference(False, (7 * len(premise) + 3 * len(hypothesis) + ord(premise[0])) % 11 / 11)


def test_contradictions_are_the_mean_over_sentences_and_other_samples():
    """Sentences of the answer against whole samples, which are the premises."""
    sentences = {
        "Dr. Who is 3.5 years old. No!": ["Dr. Who is 3.5 years old.", "No!"],
        "He is\nold": ["He is", "old"],
        "...": [],
        "": [],
        "Yes": ["Yes"],
    }
    answers = [*sentences, "Yes"]
    (found,) = contradicted([Samples("", answers)], Asked(p_of))
    for i, answer in enumerate(answers):
        others = [text for j, text in enumerate(answers) if j != i and text]
        by_sentence = [
            np.mean([p_of(other, sentence).contradiction for other in others])
            for sentence in sentences[answer]
        ]
        expected = np.mean(by_sentence) if by_sentence else float("nan")
        assert found[i] == pytest.approx(expected, nan_ok=True)


def test_contradictions_of_several_questions_are_asked_in_one_call():
    """Each pair once, also that of a text with its equal; of blank texts nothing."""
    infer = Asked(p_of)
    samples = [Samples("", ["a", "a", "b"]), Samples("", ["a", ""]), Samples("", ["", " "])]
    found = contradicted(samples, infer)
    assert infer.n_calls == 1
    assert sorted(infer.pairs) == [("a", "a"), ("a", "b"), ("b", "a")]
    assert found[0][0] == found[0][1]
    assert [math.isnan(number) for number in found[1] + found[2]] == [True] * 4
