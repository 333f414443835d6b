"""Probes: what they are fitted on, that one affine map is the whole pipeline, and that they can be
saved."""

from functools import cache

import numpy as np
import pytest
import torch
from plain import reload
from sklearn.metrics import roc_auc_score

from models import FittedProbe, Probe
from models.probe import build_pipeline, to_numpy

NAN = float("nan")


def draw(n, n_alternatives=3, k=6, dtype=torch.float32):
    """Features (n, A, k) of different scales, a tenth of them missing, and labels that the last
    alternative tells."""
    rng = np.random.default_rng(n)
    labels = rng.integers(0, 2, n)
    signal = labels[:, None] * np.arange(n_alternatives)  # (n, A)
    features = (rng.normal(size=(n, n_alternatives, k)) + 0.5 * signal[:, :, None]) * 10.0 ** (
        np.arange(k) % 6 - 2
    ) + 3
    features[rng.random(features.shape) < 0.1] = NAN
    return torch.from_numpy(features).to(dtype), labels


def unchanged(features):
    pass


@cache
def fit(n_components=None, change=unchanged, penalty="l2", **sizes):
    """Fit on 200 rows and choose on 100; give the probe, what it was fitted on, and 50 rows it has
    not seen. Nobody changes them; `fit.__wrapped__` fits anew."""
    sides = [draw(n, **sizes) for n in (200, 100, 50)]
    for features, _ in sides:
        change(features)
    (train, labels), val, (test, _) = sides
    probe = Probe((), None, n_components, penalty=penalty)
    return probe.fit(train, labels, *val), train, labels, test


def pipeline_scores(fitted, n_components, train, labels, test, penalty="l2"):
    """What scikit-learn's own pipeline says, (n,)."""
    pipeline = build_pipeline(n_components, train[:, 0].shape, fitted.strength, penalty)
    pipeline.fit(to_numpy(train, fitted.alternative), labels)
    return pipeline.predict_proba(to_numpy(test, fitted.alternative))[:, 1]


@pytest.mark.parametrize("n_components", [None, 1, 4, 100])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"penalty": "l1"},
        *({"dtype": dtype} for dtype in (torch.float16, torch.bfloat16, torch.float64)),
    ],
    ids=str,
)
def test_one_affine_map_is_the_whole_pipeline(n_components, options):
    """Scores equal those of imputing, scaling, taking components and regression, one after the
    other."""
    fitted, train, labels, test = fit(n_components, **options)
    penalty = options.get("penalty", "l2")
    expected = pipeline_scores(fitted, n_components, train, labels, test, penalty)
    np.testing.assert_allclose(fitted.predict(test), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("n_components", "k"), [(512, 250), (5, 600)])
def test_many_features_of_few_rows(n_components, k):
    """Features that outnumber the rows have at most as many components as rows; a randomised solver
    is no exception."""
    fitted, train, labels, test = fit(n_components, k=k, n_alternatives=1)
    pca = build_pipeline(n_components, train[:, 0].shape)["pca"]
    assert pca.n_components == min(n_components, 200)
    expected = pipeline_scores(fitted, n_components, train, labels, test)
    np.testing.assert_allclose(fitted.predict(test), expected, rtol=0, atol=1e-9)


def test_validation_chooses_and_every_alternative_is_told():
    """The AUROC of each alternative on validation is kept, and the best of them is chosen; the
    first of equals."""
    fitted, *_ = fit()
    assert fitted.alternative == np.argmax(fitted.val_auroc) == 2
    val, labels = draw(100)
    assert roc_auc_score(labels, fitted.predict(val)) == fitted.val_auroc[2]
    features, labels = draw(200)
    twice = features[:, [2, 2]]
    assert Probe((), None).fit(twice, labels, twice, labels).alternative == 0


@pytest.mark.parametrize("n_components", [None, 2])
@pytest.mark.parametrize("penalty", ["l2", "l1"])
def test_validation_chooses_and_moves_nothing_else(n_components, penalty):
    """A fit without validation, with the alternative and the penalty that it chose, is the same bit
    for bit: scaling and components are of the training rows. So is the same fit again."""
    fitted, train, labels, _ = fit(n_components, penalty=penalty)
    again = Probe((), None, n_components, penalty=penalty).refit(fitted, train, labels)
    assert np.array_equal(fitted.weight, again.weight)
    assert np.array_equal(fitted.fill, again.fill)
    assert (fitted.bias, fitted.strength) == (again.bias, again.strength)
    anew = fit.__wrapped__(n_components, penalty=penalty)[0].to_dict()
    assert all(np.array_equal(anew[name], value) for name, value in fitted.to_dict().items())


def test_the_penalty_of_a_single_feature_is_not_chosen():
    """It changes no rank, and would move probabilities towards the base rate."""
    assert fit(k=1)[0].strength == 1.0


@pytest.mark.parametrize("n_components", [None, 3])
def test_features_that_tell_nothing(n_components):
    """A constant and a feature that no trace has weigh nothing; the others are as without them."""

    def spoil(features):
        features[:, :, 0], features[:, :, 1] = 7.0, NAN

    fitted, train, labels, test = fit(n_components, spoil)
    np.testing.assert_allclose(fitted.weight[:2], 0, atol=1e-12)
    assert fitted.fill[1] == 0
    changed = test.clone()
    changed[:, :, :2] = torch.tensor([NAN, 3.0])
    np.testing.assert_allclose(fitted.predict(changed), fitted.predict(test), rtol=0, atol=1e-12)
    without = Probe((), None, n_components).refit(fitted, train[:, :, 2:], labels)
    np.testing.assert_allclose(fitted.weight[2:], without.weight, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 7.0, NAN])
@pytest.mark.parametrize("n_components", [None, 3])
def test_nothing_but_constants(n_components, value):
    """Features that never vary, or that no trace has, give every trace the base rate."""
    fitted, _, labels, test = fit(n_components, lambda features: features.fill_(value))
    np.testing.assert_allclose(fitted.predict(test), labels.mean(), atol=1e-4)
    assert set(fitted.val_auroc) == {0.5}


def test_equal_traces_get_equal_scores_wherever_they_stand():
    """A score depends on no other row, bit for bit."""
    fitted, *_, test = fit(k=37)
    together = fitted.predict(test[torch.arange(1000) % 50])
    alone = np.concatenate([fitted.predict(row[None]) for row in test])
    assert np.array_equal(together, alone[np.arange(1000) % 50])


def test_saved_and_read_back():
    """A file keeps a probe without code, and its scores are the same bit for bit."""
    fitted, *_, test = fit(4)
    read = FittedProbe.from_dict(reload(fitted.to_dict()))
    assert np.array_equal(read.predict(test), fitted.predict(test))
    for name in ("alternative", "val_auroc", "bias", "strength"):
        assert getattr(read, name) == getattr(fitted, name)
    assert read.n_parameters() == fitted.n_parameters() == 7


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("alternative", 3, "alternative: expected one of 3, found 3"),
        ("alternative", -1, "alternative: expected one of 3"),
        ("weight", torch.ones(2, 3), r"weight: expected shape \(k,\)"),
        ("weight", torch.full((6,), np.nan), "weight: expected finite"),
        ("fill", torch.zeros(1), r"fill: expected shape \(6,\), found \(1,\)"),
        ("fill", torch.full((6,), np.inf), "fill: expected finite"),
        ("bias", np.nan, "bias: expected finite"),
    ],
)
def test_a_file_that_is_no_probe_is_refused(name, value, message):
    fitted, *_, test = fit()
    with pytest.raises(ValueError, match=message):
        FittedProbe.from_dict(fitted.to_dict() | {name: value})
    with pytest.raises(ValueError, match=r"expected shape \(n, 3, 6\), found \(50, 2, 6\)"):
        fitted.predict(test[:, 1:])
