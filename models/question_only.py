"""The control that reads the text of the question, and nothing of the answer.

A logistic regression on the TF-IDF of character 1- to 5-grams and of words, and on a few counts.
Where it ranks as well as a detector, the labels may say which questions are hard, not which answers
are wrong. The vocabulary, its weights and the scaling are of the training rows; C is chosen on
validation, as that of the probes is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack
from scipy.special import expit
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from models.probe import check_numbers
from models.regularisation import choose_strength

__all__ = ["QUESTION_ONLY", "FittedTextProbe", "TextProbe", "count_features"]

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Texts = Sequence[str] | NDArray[np.object_]

N_COUNTS = 5
ANALYSERS: dict[str, dict[str, Any]] = {  # of scikit-learn
    "characters": {"analyzer": "char", "ngram_range": (1, 5), "max_features": 20_000},
    "words": {"token_pattern": r"\w+", "ngram_range": (1, 2), "max_features": 10_000},
}


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The n-grams of one kind that training texts hold, and their inverse document frequencies."""

    kind: str  # of `ANALYSERS`
    terms: list[str]  # (n_terms,)
    idf: Floats  # float64 (n_terms,)

    @classmethod
    def of_texts(cls, kind: str, texts: Texts) -> Vocabulary:
        """The vocabulary of training texts, which may be empty."""
        vectorizer = TfidfVectorizer(**ANALYSERS[kind], sublinear_tf=True)
        if not any(map(vectorizer.build_analyzer(), texts)):
            return cls(kind, [], np.zeros(0))
        vectorizer.fit(texts)
        return cls(kind, vectorizer.get_feature_names_out().tolist(), vectorizer.idf_)

    def transform(self, texts: Texts) -> csr_matrix:
        """TF-IDF of texts, (n, n_terms) float64; each row has length 1, or 0 without a term."""
        if not self.terms:
            return csr_matrix((len(texts), 0))
        vectorizer = TfidfVectorizer(
            **ANALYSERS[self.kind], sublinear_tf=True, vocabulary=self.terms
        )
        vectorizer.idf_ = self.idf
        return vectorizer.transform(texts)


def count_features(texts: Texts) -> Floats:
    """Characters, words, digits, numbers and the longest number's digits of each text, (n, 5)."""
    return np.array([count_in(text) for text in texts], dtype=np.float64).reshape(-1, N_COUNTS)


def count_in(text: str) -> tuple[int, ...]:
    is_digit = [character.isdigit() for character in text]
    numbers = "".join(
        character if digit else " " for character, digit in zip(text, is_digit, strict=True)
    ).split()
    longest = max(map(len, numbers), default=0)
    return len(text), len(text.split()), sum(is_digit), len(numbers), longest


@dataclass(frozen=True, eq=False)
class FittedTextProbe:
    """A fitted control: probability = sigmoid(features(text) @ weight + bias)."""

    vocabularies: tuple[Vocabulary, ...]  # of characters and of words
    # float64 (5,): of the counts on train
    mean: Floats
    scale: Floats
    weight: Floats  # float64 (k,): of the n-grams, then of the counts
    bias: float
    val_auroc: tuple[float, ...]  # (1,): AUROC on the validation rows
    strength: float  # C of the regression, the inverse of its penalty

    def features(self, texts: Texts) -> csr_matrix:
        """TF-IDF of the n-grams, and the scaled counts, (n, k) float64."""
        counts = (count_features(texts) - self.mean) / self.scale
        parts = [vocabulary.transform(texts) for vocabulary in self.vocabularies]
        return hstack([*parts, csr_matrix(counts)], format="csr")

    def predict(self, texts: Texts) -> Floats:
        """Probability of hallucination (n,) of questions."""
        return expit(self.logits(texts))

    def logits(self, texts: Texts) -> Floats:
        """Log-odds of hallucination (n,)."""
        return self.features(texts) @ self.weight + self.bias

    def n_parameters(self) -> int:
        """Number of fitted parameters: the weights and the bias."""
        return len(self.weight) + 1

    def to_dict(self) -> dict[str, Any]:
        """Texts, numbers and tensors that `torch.load(weights_only=True)` accepts."""
        return {
            "vocabularies": {
                one.kind: {"terms": list(one.terms), "idf": torch.from_numpy(one.idf.copy())}
                for one in self.vocabularies
            },
            **{
                name: torch.from_numpy(getattr(self, name).copy())
                for name in ("mean", "scale", "weight")
            },
            "bias": self.bias,
            "val_auroc": list(self.val_auroc),
            "strength": self.strength,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> FittedTextProbe:
        """The control that `to_dict` was called on; its scores are the same bit for bit.

        Raises KeyError, TypeError, ValueError or AttributeError for anything else.
        """
        vocabularies = tuple(
            Vocabulary(kind, [str(term) for term in one["terms"]], one["idf"].double().numpy())
            for kind, one in saved["vocabularies"].items()
        )
        fitted = cls(
            vocabularies=vocabularies,
            mean=saved["mean"].double().numpy(),
            scale=saved["scale"].double().numpy(),
            weight=saved["weight"].double().numpy(),
            bias=float(saved["bias"]),
            val_auroc=tuple(float(area) for area in saved["val_auroc"]),
            strength=float(saved["strength"]),
        )
        fitted.check()
        return fitted

    def check(self) -> None:
        """Raise ValueError unless its parts fit each other, and all numbers are finite."""
        kinds = [one.kind for one in self.vocabularies]
        if kinds != list(ANALYSERS):
            raise ValueError(f"vocabularies: expected {list(ANALYSERS)}, found {kinds}")
        for one in self.vocabularies:
            if len(set(one.terms)) != len(one.terms):
                raise ValueError(f"vocabulary of {one.kind}: expected each term once")
            check_numbers(f"idf of {one.kind}", one.idf, (len(one.terms),))
        n_terms = sum(len(one.terms) for one in self.vocabularies)
        check_numbers("weight", self.weight, (n_terms + N_COUNTS,))
        check_numbers("mean", self.mean, (N_COUNTS,))
        check_numbers("scale", self.scale, (N_COUNTS,))
        check_numbers("bias", np.array(self.bias), ())
        if not (self.scale > 0).all():
            raise ValueError("scale: expected positive numbers, found others")


@dataclass(frozen=True)
class TextProbe:
    """A control that reads a column of text; it is fitted, saved and asked as a `Probe` is."""

    columns: tuple[str]
    otherwise: None = None
    targets: ClassVar[tuple[str, ...]] = ()  # it learns from labels of traces alone

    def fit(
        self, train: Texts, train_labels: Labels, val: Texts, val_labels: Labels
    ) -> FittedTextProbe:
        """Fit on the texts of train (n,); those of validation choose C."""
        unfitted = prepare(train)
        features = unfitted.features(train)
        strength = choose_strength(
            features.astype(np.float32),
            train_labels,
            unfitted.features(val).astype(np.float32),
            val_labels,
        )
        fitted = regress(replace(unfitted, strength=strength), features, train_labels)
        area = float(roc_auc_score(val_labels, fitted.predict(val)))
        return replace(fitted, val_auroc=(area,))

    def load(self, saved: Mapping[str, Any]) -> FittedTextProbe:
        """What `fit` returned, from its `to_dict`; raises as `FittedTextProbe.from_dict` does."""
        return FittedTextProbe.from_dict(saved)

    def refit(self, fitted: FittedTextProbe, train: Texts, labels: Labels) -> FittedTextProbe:
        """Fit on other texts (n,), with the penalty of a fitted control."""
        unfitted = replace(prepare(train), strength=fitted.strength, val_auroc=fitted.val_auroc)
        return regress(unfitted, unfitted.features(train), labels)


def prepare(train: Texts) -> FittedTextProbe:
    """The vocabularies and the scaling of training texts, with weights of 0."""
    vocabularies = tuple(Vocabulary.of_texts(kind, train) for kind in ANALYSERS)
    counts = count_features(train)
    spread = counts.std(axis=0)
    n_terms = sum(len(one.terms) for one in vocabularies)
    return FittedTextProbe(
        vocabularies=vocabularies,
        mean=counts.mean(axis=0),
        scale=np.where(spread > 0, spread, 1.0),
        weight=np.zeros(n_terms + N_COUNTS),
        bias=0.0,
        val_auroc=(),
        strength=1.0,
    )


def regress(unfitted: FittedTextProbe, features: csr_matrix, labels: Labels) -> FittedTextProbe:
    """The regression on features (n, k), with the penalty that is set."""
    regression = LogisticRegression(C=unfitted.strength, max_iter=10_000)
    regression.fit(features, labels)
    return replace(
        unfitted, weight=regression.coef_[0].copy(), bias=float(regression.intercept_[0])
    )


QUESTION_ONLY = TextProbe(("question",))
