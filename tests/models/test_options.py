"""Options that a detector declares for itself."""

import copy
import pickle

import pytest
import torch
from plain import reload

from models import Detector, Option, Outputs


class Wide(Detector):
    """A detector with an option that detectors share, and one of its own."""

    columns = ("hs_last",)
    options = ("dropout", Option("width", 16, "width of the hidden layer", low=1))

    def __init__(self, hidden_size, dropout, width):
        super().__init__()
        self.dropout = dropout
        self.head = torch.nn.Linear(hidden_size, width)

    def encode(self, batch):
        return self.head(batch.fixed("hs_last").float())

    def classify(self, features):
        return Outputs(features.mean((1, 2)))


def test_an_option_is_its_name():
    """Wherever names of settings are expected; the rest is beside it."""
    option = Option("width", 16, "width", low=1, high=9)
    assert {"width": 3}[option] == 3
    assert (option.default, option.kind, option.low, option.high) == (16, int, 1, 9)
    assert type(str(option)) is str


def test_the_constructor_takes_it_by_its_name():
    detector = Wide.build({"hs_last": (2, 8)}, {"dropout": 0.1, "width": 5, "epochs": 3})
    assert (detector.head.in_features, detector.head.out_features) == (8, 5)


@pytest.mark.parametrize("name", ["a-b", "", "1a", "_a", "größe"])
def test_names_are_identifiers(name):
    with pytest.raises(ValueError, match="expected a name of letters"):
        Option(name, 1)


@pytest.mark.parametrize("default", [None, (1, 2), 1j])
def test_the_kind_is_one_of_four(default):
    """That of the default; of None it has to be said."""
    with pytest.raises(ValueError, match="a bool, int, float or str"):
        Option("width", default)
    assert Option("width", None, kind=int).kind is int


def test_a_copy_is_the_same_option():
    """As in the settings that processes send to each other; a checkpoint has plain text of it."""
    option = Option("width", None, "width", low=1, high=9, kind=int)
    copies = copy.copy(option), copy.deepcopy(option), pickle.loads(pickle.dumps(option))  # noqa: S301
    for found in copies:
        assert type(found) is Option
        assert found == option
        assert vars(found) == vars(option)
    assert reload({str(option): 1}) == {"width": 1}
