"""The controls that read texts: `question_only` the question, and nothing of the answer.

It reads the TF-IDF of words and of character 1- to 5-grams (of a long text those of its ends), and
a few counts. It is a logistic regression, or where that is better on validation by more than a
standard error, one with squares,

    log-odds = x @ weight + bias + sum_r sign_r (n @ factors_r)^2

where x are all features and n the n-grams alone: a polynomial network of degree 2 (Blondel et al.,
2016, https://arxiv.org/abs/1607.08810). It learns what two parts of a question say together and
neither says alone, also of pairs that no training question has. The signs differ because squares
that are only added learn well that two parts are alike, and hardly that they are not.

Where it ranks as well as a detector, the labels may say which questions are hard, not which answers
are wrong. The vocabulary, its weights and the scaling are of the training rows; C of the regression
and the iterations of the network are chosen on validation.

`answer_text` reads the wording of the answer: words, signs and pairs of these, by the regression
alone. Where it ranks as well as a detector, right and wrong answers are worded differently.

`question_answer` reads both in one, with products of words: what is right to say to what. Where it
ranks as well as a detector, texts are enough to know, without any state.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, hstack
from scipy.special import expit
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from models.probe import Fitted, check_numbers
from models.reader import FeatureReader
from models.regularisation import choose_strength, rescaled_losses

__all__ = [
    "ANSWER_TEXT",
    "QUESTION_ANSWER",
    "QUESTION_ONLY",
    "SINGLE",
    "FittedTextProbe",
    "TextProbe",
    "Vocabulary",
    "count_features",
]

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Texts = Sequence[str] | NDArray[np.object_]

# What is dense here are vectors: two threads wait for each other, which takes seven times as long.
one_thread = threadpool_limits.wrap(limits=1, user_api="blas")
N_COUNTS = 5
SIGNS = np.tile([1.0, -1.0], 4)  # (8,): of the squares
START_SCALE = 0.1  # standard deviation of the factors before training
MAX_ITERATIONS = 60  # of L-BFGS
LEAST_GAIN = 1e-3  # nats of validation loss for which an iteration more is worth it
PATIENCE = 15  # iterations without such a gain after which none is expected
AT_AN_END = 100  # characters at either end of a text whose n-grams are read; of words all are
CJK = "\u3040-\u30ff\u3400-\u9fff"  # scripts without spaces, each sign of which is a word
NUMBERS = re.compile(r"\d+")
WORD = rf"[{CJK}]|[^\W{CJK}]+"
SINGLE = "single words"


def ends_of(text: str) -> str:
    """A text in lower case, whose middle is left out if it is long."""
    if len(text) > 2 * AT_AN_END:
        text = f"{text[:AT_AN_END]}\n{text[-AT_AN_END:]}"
    return text.lower()


ANALYSERS: dict[str, dict[str, Any]] = {  # of scikit-learn
    "characters": {
        "analyzer": "char",
        "ngram_range": (1, 5),
        "max_features": 20_000,
        "preprocessor": ends_of,
    },
    "words": {"token_pattern": r"\w+", "ngram_range": (1, 2), "max_features": 10_000},
    "wording": {
        "token_pattern": rf"{WORD}|[^\w\s]",
        "ngram_range": (1, 2),
        "max_features": 5_000,
    },
    SINGLE: {"token_pattern": WORD, "max_features": 20_000},
}


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The n-grams of one kind that training texts hold, and their inverse document frequencies."""

    kind: str  # of `ANALYSERS`
    terms: list[str]  # (n_terms,)
    idf: Floats  # float64 (n_terms,)

    @classmethod
    def of_texts(cls, kind: str, texts: Texts) -> tuple[Self, csr_matrix]:
        """The vocabulary of training texts, which may be empty, and what `transform` makes of them.

        Both at once, because counting n-grams takes most of the time.
        """
        vectorizer = TfidfVectorizer(**ANALYSERS[kind], sublinear_tf=True)
        if not any(map(vectorizer.build_analyzer(), texts)):
            return cls(kind, [], np.zeros(0)), csr_matrix((len(texts), 0))
        found = vectorizer.fit_transform(texts)
        return cls(kind, vectorizer.get_feature_names_out().tolist(), vectorizer.idf_), found

    def transform(self, texts: Texts) -> csr_matrix:
        """TF-IDF of texts, (n, n_terms) float64; each row has length 1, or 0 without a term."""
        if not self.terms:
            return csr_matrix((len(texts), 0))
        vectorizer = TfidfVectorizer(
            **ANALYSERS[self.kind], sublinear_tf=True, vocabulary=self.terms
        )
        vectorizer.idf_ = self.idf
        return vectorizer.transform(texts)

    def to_dict(self) -> dict[str, Any]:
        return {"terms": list(self.terms), "idf": torch.from_numpy(self.idf.copy())}

    @classmethod
    def from_dict(cls, kind: str, saved: Mapping[str, Any]) -> Self:
        return cls(kind, [str(term) for term in saved["terms"]], saved["idf"].double().numpy())

    def check(self) -> None:
        """Raise ValueError unless its parts fit each other."""
        if self.kind not in ANALYSERS:
            raise ValueError(f"vocabulary: expected one of {list(ANALYSERS)}, found {self.kind!r}")
        if len(set(self.terms)) != len(self.terms):
            raise ValueError(f"vocabulary of {self.kind}: expected each term once")
        check_numbers(f"idf of {self.kind}", self.idf, (len(self.terms),))


def count_features(texts: Texts) -> Floats:
    """Characters, words, digits, numbers and the longest number's digits of each text, (n, 5)."""
    return np.array([count_in(text) for text in texts], dtype=np.float64).reshape(-1, N_COUNTS)


def count_in(text: str) -> tuple[int, ...]:
    n_digits = list(map(len, NUMBERS.findall(text)))
    return len(text), len(text.split()), sum(n_digits), len(n_digits), max(n_digits, default=0)


@dataclass(frozen=True, eq=False)
class FittedTextProbe(Fitted):
    """A fitted control: its probability is the sigmoid of the log-odds that the module states."""

    vocabularies: tuple[Vocabulary, ...]  # one of each kind of terms
    # float64 (5,): of the counts on train
    mean: Floats
    scale: Floats
    weight: Floats  # float64 (k,): of the n-grams, then of the counts
    bias: float
    factors: Floats  # float64 (k - 5, 8): of the n-grams' squares; (k - 5, 0) of a regression
    val_auroc: tuple[float, ...]  # (1,): AUROC on the validation rows
    strength: float  # C, the inverse of the penalty
    iterations: int = 0  # of the training of the factors; 0 of a regression

    def features(self, texts: Texts) -> csr_matrix:
        """TF-IDF of the n-grams, and the scaled counts, (n, k) float64."""
        return self.join(texts, [vocabulary.transform(texts) for vocabulary in self.vocabularies])

    def join(self, texts: Texts, parts: Sequence[csr_matrix]) -> csr_matrix:
        """The scaled counts of texts behind their TF-IDF, of each vocabulary (n, n_terms)."""
        counts = (count_features(texts) - self.mean) / self.scale
        return hstack([*parts, csr_matrix(counts)], format="csr")

    def logits(self, texts: Texts) -> Floats:
        """Log-odds of hallucination (n,) of texts."""
        return self.logits_of(self.features(texts))

    def logits_of(self, features: csr_matrix) -> Floats:
        """Log-odds of hallucination (n,) of features (n, k)."""
        linear = features @ self.weight + self.bias
        if not self.factors.size:
            return linear
        return linear + (features[:, :-N_COUNTS] @ self.factors) ** 2 @ SIGNS

    def n_parameters(self) -> int:
        """Number of fitted parameters: the weights, the factors and the bias."""
        return len(self.weight) + self.factors.size + 1

    def to_dict(self) -> dict[str, Any]:
        vocabularies = {one.kind: one.to_dict() for one in self.vocabularies}
        return super().to_dict() | {"vocabularies": vocabularies}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        vocabularies = tuple(
            Vocabulary.from_dict(kind, one) for kind, one in saved["vocabularies"].items()
        )
        return super().from_dict({**saved, "vocabularies": vocabularies})

    def check(self) -> None:
        for one in self.vocabularies:
            one.check()
        n_terms = sum(len(one.terms) for one in self.vocabularies)
        check_numbers("weight", self.weight, (n_terms + N_COUNTS,))
        rank = len(SIGNS) if self.iterations else 0
        check_numbers("factors", self.factors, (n_terms, rank))
        check_numbers("mean", self.mean, (N_COUNTS,))
        check_numbers("scale", self.scale, (N_COUNTS,))
        check_numbers("bias", np.array(self.bias), ())
        if not (self.scale > 0).all():
            raise ValueError("scale: expected positive numbers, found others")


@dataclass(frozen=True)
class TextProbe(FeatureReader):
    """A control that reads columns of text as one; it is fitted, saved, asked as a `Probe` is."""

    columns: tuple[str, ...]
    sees: str  # as of `Probe`
    kinds: tuple[str, ...]  # of terms, of `ANALYSERS`
    has_products: bool = True  # whether it may take squares

    @one_thread
    def fit(
        self, train: Texts, train_labels: Labels, val: Texts, val_labels: Labels
    ) -> FittedTextProbe:
        """Fit on the texts of train (n,); those of validation choose the model and its settings.

        By the log-loss of rescaled scores, as C of the regression (`choose_strength`).
        """
        unfitted, features = prepare(train, self.kinds)
        val_features = unfitted.features(val)
        strength = choose_strength(
            features.astype(np.float32), train_labels, val_features.astype(np.float32), val_labels
        )
        linear = regress(replace(unfitted, strength=strength), features, train_labels)
        linear_losses = rescaled_losses(linear.logits_of(val_features), val_labels)
        network, losses = linear, linear_losses

        def keep_best(one: FittedTextProbe) -> None:
            nonlocal network, losses
            found = rescaled_losses(one.logits_of(val_features), val_labels)
            if network is linear or found.mean() < losses.mean() - LEAST_GAIN:
                network, losses = one, found
            elif one.iterations >= network.iterations + PATIENCE:
                raise StopIteration  # as SciPy has it, of its callbacks

        if self.has_products:
            factorise(unfitted, features, train_labels, MAX_ITERATIONS, keep_best)
        gains = linear_losses - losses
        is_better = gains.mean() > gains.std() / np.sqrt(len(gains))
        best = network if is_better else linear
        area = roc_auc_score(val_labels, expit(best.logits_of(val_features)))
        return replace(best, val_auroc=(float(area),))

    def load(self, saved: Mapping[str, Any]) -> FittedTextProbe:
        """What `fit` returned, from its `to_dict`; raises as `Fitted.from_dict` does."""
        return FittedTextProbe.from_dict(saved)

    @one_thread
    def refit(self, fitted: FittedTextProbe, train: Texts, labels: Labels) -> FittedTextProbe:
        """Fit on other texts (n,), with the penalty and the iterations of a fitted control."""
        unfitted, features = prepare(train, self.kinds)
        unfitted = replace(unfitted, strength=fitted.strength, val_auroc=fitted.val_auroc)
        if fitted.iterations:
            return factorise(unfitted, features, labels, fitted.iterations)
        return regress(unfitted, features, labels)


def prepare(train: Texts, kinds: tuple[str, ...]) -> tuple[FittedTextProbe, csr_matrix]:
    """The vocabularies and the scaling of training texts, with weights of 0, and their features."""
    vocabularies, parts = zip(*(Vocabulary.of_texts(kind, train) for kind in kinds), strict=True)
    counts = count_features(train)
    spread = counts.std(axis=0)
    n_terms = sum(len(one.terms) for one in vocabularies)
    unfitted = FittedTextProbe(
        vocabularies=vocabularies,
        mean=counts.mean(axis=0),
        scale=np.where(spread > 0, spread, 1.0),
        weight=np.zeros(n_terms + N_COUNTS),
        bias=0.0,
        factors=np.zeros((n_terms, 0)),
        val_auroc=(),
        strength=1.0,
    )
    return unfitted, unfitted.join(train, parts)


def regress(unfitted: FittedTextProbe, features: csr_matrix, labels: Labels) -> FittedTextProbe:
    """The regression on features (n, k), with the penalty that is set."""
    regression = LogisticRegression(C=unfitted.strength, max_iter=10_000)
    regression.fit(features, labels)
    return replace(
        unfitted, weight=regression.coef_[0].copy(), bias=float(regression.intercept_[0])
    )


def factorise(
    unfitted: FittedTextProbe,
    features: csr_matrix,
    labels: Labels,
    n_iterations: int,
    watch: Callable[[FittedTextProbe], None] | None = None,
) -> FittedTextProbe:
    """Train weights, bias and factors on features (n, k) by L-BFGS, with the penalty that is set.

    `watch` gets what every iteration has come to.
    """
    k, rank = features.shape[1], len(SIGNS)
    grams, transposed = features[:, :-N_COUNTS], features.T.tocsr()
    transposed_grams = transposed[:-N_COUNTS]
    signs = 2 * labels - 1
    done = 0

    def unpack(numbers: Floats) -> FittedTextProbe:
        bias, weight, factors = np.split(numbers, [1, 1 + k])
        return replace(
            unfitted,
            weight=weight,
            bias=float(bias[0]),
            factors=factors.reshape(k - N_COUNTS, rank),
            iterations=done,
        )

    def objective(numbers: Floats) -> tuple[float, Floats]:
        one = unpack(numbers)
        along = grams @ one.factors  # (n, rank)
        margins = signs * (features @ one.weight + one.bias + along**2 @ SIGNS)
        penalised = np.append(0.0, numbers[1:]) / unfitted.strength
        by_logit = -signs * expit(-margins)
        by_factors = transposed_grams @ (2 * by_logit[:, None] * along * SIGNS)
        gradient = np.concatenate([[by_logit.sum()], transposed @ by_logit, by_factors.ravel()])
        loss = np.logaddexp(0, -margins).sum() + numbers @ penalised / 2
        return loss, gradient + penalised

    def after(numbers: Floats) -> None:
        nonlocal done
        done += 1
        if watch is not None:
            watch(unpack(numbers.copy()))

    start = START_SCALE * np.random.default_rng(0).standard_normal(1 + k + (k - N_COUNTS) * rank)
    start[: 1 + k] = 0
    options = {"maxiter": n_iterations}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", callback=after, options=options)
    return unpack(found.x)


QUESTION_ONLY = TextProbe(("question",), "question", ("characters", "words"))
ANSWER_TEXT = TextProbe(("answer",), "wording", ("wording",), has_products=False)
QUESTION_ANSWER = TextProbe(("question", "answer"), "both", ("wording",))
