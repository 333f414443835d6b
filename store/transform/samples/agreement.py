"""How much the samples of one question agree: from their states, their words and their meanings.

Clusters of one meaning, and contradictions, are what a model of natural language inference makes of
the samples. Nothing here runs a model: what asks it is an argument, and is asked for many questions
at once.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from store.labels.answer_scores import sentences_of

__all__ = [
    "ALPHA",
    "Inference",
    "Nli",
    "Pair",
    "Samples",
    "cluster_meanings",
    "contradicted",
    "eigen_score",
    "entropy_of_likelihoods",
    "entropy_of_numbers",
    "lexical_similarity",
    "rouge_l",
    "words_of",
]

ALPHA = 1e-3  # the paper's
# a sign belongs to its number, and so do the signs within: -1,234.5
_WORD = re.compile(r"(?<!\w)-?\d+(?:[.,]\d+)*(?!\w)|\w+")


def eigen_score(states: NDArray[np.floating], alpha: float = ALPHA) -> float:
    """EigenScore: how far the samples' states are spread (INSIDE, Chen et al. 2024).

    arXiv:2402.03744, equation 6: 1/K log det(Z^T J Z + alpha I), where Z (d, K) are the states, and
    J subtracts from each state the mean over its d numbers. The authors' code divides the matrix by
    d - 1, and takes the logarithm to base 10.

    `states` are `(K, d)`, one sample a row. Returns nats; the higher, the less the samples agree.
    NaN if a state is not finite.
    """
    z = np.asarray(states, np.float64)
    if not np.isfinite(z).all():
        return float("nan")
    centred = z - z.mean(axis=1, keepdims=True)
    covariance = centred @ centred.T  # (K, K); J is idempotent
    n_samples = len(z)
    _, log_determinant = np.linalg.slogdet(covariance + alpha * np.eye(n_samples))
    return float(log_determinant) / n_samples


def lexical_similarity(texts: Sequence[str]) -> float:
    """Mean ROUGE-L F1 over all pairs of samples, 0 to 1 (a baseline of arXiv:2302.09664).

    Words are runs of letters and digits, in lower case, and numbers with their sign; they are not
    stemmed. Two answers without a word are alike, which the package rouge_score takes for 0.
    """
    pairs = combinations(map(words_of, texts), 2)
    return float(np.mean([rouge_l(one, other) for one, other in pairs]))


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text, as `lexical_similarity` compares them."""
    plain = text.casefold().replace("−", "-")
    return tuple(_WORD.findall(plain))


def rouge_l(one: Sequence[str], other: Sequence[str]) -> float:
    """F1 of the longest common subsequence of two texts' words (Lin 2004); 1 if both are empty."""
    n_words = len(one) + len(other)
    if not n_words:
        return 1.0
    return 2 * _common_length(one, other) / n_words


def _common_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence, a row of the table at a time (Hyyrö 2004).

    Bit i of `row` is 0 where the length grows at word i of `one`.
    """
    places: dict[str, int] = {}
    for i, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << i
    full = (1 << len(one)) - 1
    row = full
    for word in other:
        matches = row & places.get(word, 0)
        row = ((row + matches) | (row - matches)) & full
    return len(one) - row.bit_count()


Pair = tuple[str, str]  # premise, hypothesis


class Samples(NamedTuple):
    """A question and its answers."""

    question: str
    answers: Sequence[str]


class Inference(NamedTuple):
    """What a classifier says of a premise and a hypothesis."""

    entails: bool  # entailment is its most probable label
    contradiction: float  # P(contradiction) among entailment and contradiction: without neutral


Infer = Callable[[Sequence[Pair]], Sequence[Inference]]


class Nli(Protocol):
    """A classifier of natural language inference."""

    n_pairs: int  # that it was given so far
    n_cut: int  # those of them that were too long and were cut

    def infer(self, pairs: Sequence[Pair]) -> list[Inference]:
        """Classify pairs; equal ones are asked once."""

    def describe(self) -> dict[str, object]:
        """The model and its settings, JSON-able."""


def cluster_meanings(samples: Sequence[Samples], infer: Infer) -> list[list[int]]:
    """Cluster the answers to questions by bidirectional entailment.

    Algorithm 1 of arXiv:2302.09664: an answer joins the first cluster whose first answer entails it
    and is entailed by it, else it is the first of a new one. Each is read behind its question.
    (The authors' code lets an answer that is in a cluster move to a later one.) Equal answers
    are of one cluster, and a blank one entails no other: the model is not asked.

    `infer` classifies pairs; it is called once for all first answers, once for all second clusters,
    and so on. Returns of each question the number of each answer's cluster, from 0 on, in the order
    of their first answers.
    """
    waiting = [list(dict.fromkeys(one.answers)) for one in samples]
    clusters: list[dict[str, int]] = [{} for _ in samples]
    n_founded = 0  # clusters of each question whose answers are not all in one
    while any(waiting):
        pairs: list[Pair] = []
        for one, texts in zip(samples, waiting, strict=True):
            pairs += _pairs(one.question, texts)
        said = infer(pairs)
        entailed = {pair for pair, inference in zip(pairs, said, strict=True) if inference.entails}
        for i, texts in enumerate(waiting):
            members = set(_members(samples[i].question, texts, entailed))
            clusters[i] |= dict.fromkeys(members, n_founded)
            waiting[i] = [text for text in texts if text not in members]
        n_founded += 1
    numbers = []
    for one, cluster_of in zip(samples, clusters, strict=True):
        numbers.append([cluster_of[text] for text in one.answers])
    return numbers


def _pairs(question: str, texts: Sequence[str]) -> Iterator[Pair]:
    """The first text with each other one, in both directions; none with a blank text."""
    spoken = [f"{question} {text}" for text in texts if text.strip()]
    if not texts or not texts[0].strip():
        return
    for other in spoken[1:]:
        yield spoken[0], other
        yield other, spoken[0]


def _members(question: str, texts: Sequence[str], entailed: set[Pair]) -> Iterator[str]:
    """The first text, and those that are equivalent to it."""
    yield from texts[:1]
    for other in texts[1:]:
        both = set(_pairs(question, [texts[0], other]))
        if both and both <= entailed:
            yield other


def entropy_of_numbers(clusters: Sequence[int]) -> float:
    """Discrete semantic entropy: of the clusters' shares of the samples, in nats.

    Farquhar et al. 2024 (doi:10.1038/s41586-024-07421-0).
    """
    shares = np.array([*Counter(clusters).values()]) / len(clusters)
    return _entropy(shares)


def entropy_of_likelihoods(clusters: Sequence[int], log_likelihoods: NDArray[np.floating]) -> float:
    """Semantic entropy: of the clusters' shares of the likelihood, in nats.

    As Farquhar et al. 2024 compute it: a cluster's probability is the sum of its samples'
    likelihoods, divided by that of all samples. (arXiv:2302.09664 takes the mean of the negative
    logarithms over the clusters instead.)

    `log_likelihoods` `(K,)` are the mean log-probabilities of each sample's tokens: normalised by
    length. Samples with NaN do not count; returns NaN where fewer than two do.
    """
    counted = np.isfinite(log_likelihoods)
    if counted.sum() < 2:
        return float("nan")
    logs = np.asarray(log_likelihoods, np.float64)[counted]
    weights = np.exp(logs - logs.max())
    _, number = np.unique(np.asarray(clusters)[counted], return_inverse=True)
    shares = np.bincount(number, weights=weights) / weights.sum()
    return _entropy(shares[shares > 0])


def _entropy(shares: NDArray[np.float64]) -> float:
    # not -0.0 where one cluster has everything
    return max(0.0, float(-(shares * np.log(shares)).sum()))


def contradicted(samples: Sequence[Samples], infer: Infer) -> list[list[float]]:
    """SelfCheck-NLI: how much the other samples contradict each answer (arXiv:2303.08896).

    The mean over the answer's sentences of the mean over the other samples of P(contradiction),
    with the sample as the premise, as in the paper (the authors' code has it as the hypothesis).
    The paper's sentences are spaCy's. What the questions ask is not read.

    Returns of each question a number for each answer, 0 to 1: NaN for an answer without a sentence,
    and where all others are blank.
    """
    checks = [list(_checks(one.answers)) for one in samples]
    of_answers = chain.from_iterable(checks)
    pairs = list(dict.fromkeys(chain.from_iterable(of_answers)))
    said = infer(pairs)
    p = {pair: inference.contradiction for pair, inference in zip(pairs, said, strict=True)}
    return [[_mean_of(check, p) for check in of_question] for of_question in checks]


def _checks(answers: Sequence[str]) -> Iterator[list[Pair]]:
    """Of each answer the pairs of another sample and a sentence."""
    sentences = {text: _sentences(text) for text in answers}
    for i, answer in enumerate(answers):
        others = [text for j, text in enumerate(answers) if j != i and text.strip()]
        yield [(other, sentence) for sentence in sentences[answer] for other in others]


def _sentences(text: str) -> list[str]:
    """Sentences with a letter or a digit."""
    return [one for one in sentences_of(text) if any(map(str.isalnum, one))]


def _mean_of(check: Sequence[Pair], p: Mapping[Pair, float]) -> float:
    if not check:
        return float("nan")
    # each sentence has as many others: the mean of the means is the mean of all
    numbers = [p[pair] for pair in check]
    return float(np.mean(numbers))
