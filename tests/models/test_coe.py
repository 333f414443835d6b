"""Chain-of-Embedding against loops over the layers."""

import cmath
import math
from itertools import pairwise

import numpy as np

from models.coe import chain_scores


def angle(a, b):
    return math.acos(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_both_scores_by_loops_over_layers(pack, traces):
    """Real, then complex; negated, since the paper's are larger for right answers."""
    for trace, found in zip(traces, chain_scores(pack(traces)), strict=True):
        states = trace["hs_mean"].double().numpy()
        whole_length = np.linalg.norm(states[-1] - states[0])
        whole_angle = angle(states[0], states[-1])
        steps = list(pairwise(states))
        lengths = [np.linalg.norm(b - a) / whole_length for a, b in steps]
        angles = [angle(a, b) / whole_angle for a, b in steps]
        real = np.mean(lengths) - np.mean(angles)
        total = sum(m * cmath.exp(1j * t) for m, t in zip(lengths, angles, strict=True))
        np.testing.assert_allclose(found[:, 0], [-real, -abs(total) / len(steps)], rtol=1e-5)


def test_layers_without_a_difference_have_no_score(pack, traces):
    """A chain that ends where it began is divided by nothing: NaN, not infinity."""
    states = traces[0]["hs_mean"].clone()
    states[-1] = states[0]
    assert chain_scores(pack([traces[0] | {"hs_mean": states}])).isnan().all()
