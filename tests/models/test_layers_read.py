"""Which layers methods read of models of few and of many."""

import pytest
import torch

from models import DETECTORS
from models.drift import question_layers
from models.layer_transitions import upper_layers
from models.rauq import middle_third
from models.state_sequence import StateSequence
from models.token_probe import TokenProbe
from models.token_sequence import middle_layers


def layer_of_saplma(n_layers):
    settings = {"saplma_layer": None, "input_scale": None}
    return DETECTORS["saplma"].build({"hs_last": (n_layers, 8)}, settings).layers_read


@pytest.mark.parametrize(
    "layers_of, expected",
    [
        (  # six up to three quarters; every fourth of 28, as published
            question_layers,
            {
                1: [0],
                2: [0, 1],
                4: [0, 1, 2],
                28: [0, 4, 8, 12, 16, 20],
                32: [0, 5, 9, 14, 18, 23],
            },
        ),
        (  # the upper half and the layer before it
            upper_layers,
            {1: [0], 2: [0, 1], 3: [0, 1, 2], 4: [1, 2, 3], 8: [*range(3, 8)]},
        ),
        (  # at 40, 60 and 80% of the depth, each once
            middle_layers,
            {1: [0], 2: [0, 1], 3: [0, 1], 4: [1, 2], 28: [10, 16, 21], 32: [12, 18, 25]},
        ),
        (  # as the authors' code has them, counted from 0
            lambda n_layers: middle_third(torch.arange(n_layers)[None])[0].tolist(),
            {1: [0], 2: [0, 1], 4: [1, 2, 3], 32: [*range(10, 23)]},
        ),
        (  # at 60% of the depth, the 20th of 32
            layer_of_saplma,
            {1: [0], 2: [1], 3: [1], 4: [2], 5: [2], 10: [5], 32: [19], 80: [47]},
        ),
        # at 95% of the depth, the 31st of 32
        (lambda n_layers: TokenProbe(8, n_layers).layers_read, {1: [0], 32: [30]}),
        (lambda n_layers: StateSequence(4, n_layers).layers_read, {10: [3, 5, 7], 2: [0, 1]}),
    ],
)
def test_layers_by_default(layers_of, expected):
    assert {n_layers: layers_of(n_layers) for n_layers in expected} == expected


@pytest.mark.parametrize(
    "layer, expected", [(4, [3, 4, 5]), (0, [0, 1, 2]), (9, [7, 8, 9]), (1, [0, 1, 2])]
)
def test_a_sequence_of_states_reads_a_layer_with_its_neighbours(layer, expected):
    assert StateSequence(4, 10, layer).layers_read == expected
    assert StateSequence(4, 2, min(layer, 1)).layers_read == [0, 1]
