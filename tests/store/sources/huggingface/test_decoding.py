"""The settings of decoding."""

import pytest

from store.sources.huggingface.generation import Decoding


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_beams": 0}, "at least 1 beam"),
        ({"seed": -1}, "seed 0"),
        ({"temperature": 0.0}, "temperature: expected more than 0"),
        ({"top_p": 1.5}, "top_p: expected more than 0 and at most 1"),
        ({"num_beams": 2, "temperature": 1.0}, "found both"),
        ({"num_beams": 2, "num_samples": 3}, "num_samples: expected at most the 2 beams, found 3"),
    ],
)
def test_decodings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Decoding(**settings)


def test_what_is_recorded_of_a_sample():
    """Temperature, top_p and seed; greedy decoding has no seed."""
    described = Decoding(num_samples=3, top_p=0.5, seed=7).describe()
    assert described["do_sample"]
    assert (described["temperature"], described["top_p"], described["seed"]) == (1.0, 0.5, 7)
    assert "seed" not in Decoding(seed=7).describe()
