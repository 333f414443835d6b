"""Principal components against an independent computation."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from store.transform import projection
from store.transform.projection import fit_pca, mask_finite, sample_rows


def states(n, width, seed=0):
    """Rows with a falling spectrum, and a mean far from 0."""
    rng = np.random.default_rng(seed)
    scales = np.exp(-np.arange(width) / 4) + 0.01
    rotation, _ = np.linalg.qr(rng.normal(size=(width, width)))
    return (rng.normal(size=(n, width)) * scales) @ rotation + 1000


@pytest.mark.parametrize("n_blocks", [1, 3, 200])
@pytest.mark.parametrize("dimensions", [1, 2, 12])
def test_components_are_those_of_scikit_learn(n_blocks, dimensions):
    """However the rows are cut into blocks; each component up to its sign."""
    rows = states(200, 12)
    found = fit_pca(np.array_split(rows, n_blocks), 12, dimensions)
    expected = PCA(dimensions, svd_solver="full").fit(rows)
    assert found.n_rows == 200
    assert np.allclose(found.mean, expected.mean_)
    assert np.allclose(found.explained, expected.explained_variance_ratio_)
    cosines = (found.components * expected.components_).sum(axis=1)
    assert np.allclose(np.abs(cosines), 1)
    points = found.project(rows)
    assert np.allclose(np.abs(points), np.abs(expected.transform(rows)), atol=1e-6)


def test_signs_do_not_depend_on_the_blocks():
    """The largest entry of a component is positive."""
    rows = states(100, 9)
    for n_blocks in (1, 7):
        components = fit_pca(np.array_split(rows, n_blocks), 9, 3).components
        largest = np.abs(components).argmax(axis=1)
        assert (components[np.arange(3), largest] > 0).all()


def test_wide_states_are_iterated_to_the_same_components(monkeypatch):
    rows = states(300, 60)
    dense = fit_pca([rows], 60, 2)
    monkeypatch.setattr(projection, "DENSE_WIDTH", 1)
    iterated = fit_pca([rows], 60, 2)
    assert np.allclose(iterated.components, dense.components, atol=1e-7)
    assert np.allclose(iterated.explained, dense.explained)


@pytest.mark.parametrize("width", [4, 40])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_rows_that_are_equal_lie_at_the_origin(monkeypatch, width, n):
    monkeypatch.setattr(projection, "DENSE_WIDTH", 1)
    rows = np.full((n, width), 7.0)
    pca = fit_pca([rows], width, 2)
    assert pca.n_rows == n
    assert np.array_equal(pca.explained, [0, 0])
    assert np.allclose(pca.project(rows), 0)
    assert np.allclose(pca.components @ pca.components.T, np.eye(2))


@pytest.mark.parametrize(("n", "size", "expected"), [(0, 5, 0), (3, 5, 3), (100, 10, 10)])
def test_a_sample_is_of_different_rows_and_the_same_each_time(n, size, expected):
    rows = sample_rows(n, size, seed=1)
    assert len(set(rows.tolist())) == len(rows) == expected
    assert (np.diff(rows) > 0).all()
    assert np.array_equal(rows, sample_rows(n, size, seed=1))
    if expected < n:
        assert not np.array_equal(rows, sample_rows(n, size, seed=2))


def test_rows_that_are_not_finite_are_found():
    rows = np.zeros((5, 3))
    rows[[0, 1, 3], [2, 0, 1]] = [np.nan, np.inf, -1e200]
    assert mask_finite(rows).tolist() == [False, False, True, False, True]
