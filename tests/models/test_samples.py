"""Scores of a question over its samples: columns of one number each."""

import numpy as np
import pytest
import torch

from models import PROBES, FittedProbe
from models.samples import single_number
from store.transform.samples.names import NEEDS


def test_each_column_that_is_derived_has_a_probe_of_its_name():
    """And the other way round: the probe reads that column alone."""
    for name in NEEDS:
        assert PROBES[name].columns == (name,)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_regression_finds_the_sign_and_keeps_the_ranks(sign, pack, traces):
    """Of a score that rises and of one that falls with hallucination; without a value a trace gets
    the score of the mean, and the state survives a round trip."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    numbers = sign * (labels + rng.normal(size=60))
    rows = [traces[0] | {"eigenscore": torch.tensor(number).float()} for number in numbers]
    features = single_number(pack(rows), "eigenscore")
    fitted = PROBES["eigenscore"].fit(features, labels, features, labels)
    scores = fitted.predict(features)
    assert (np.argsort(scores) == np.argsort(sign * numbers)).all()
    again = FittedProbe.from_dict(fitted.to_dict())
    missing = torch.full((1, 1, 1), torch.nan)
    mean = features.double().mean(dim=0, keepdim=True)
    np.testing.assert_allclose(again.predict(missing), fitted.predict(mean), rtol=1e-9)
