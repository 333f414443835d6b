"""Trainings of images: the cache, resuming and augmentation change no bit that they should not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from loops import Saver, load
from splitting import split_data
from tuning_stores import write_states

from train.config import Config
from train.fit.loop import fit
from train.run.detectors import build_detector

FABRIC = Fabric(accelerator="cpu", devices=1)
IMAGE_BYTES = 2 * 6 * 8 * 2  # of one trace
SMALL = {"image_tokens": 6, "image_width": 8, "epochs": 2, "batch_size": 32}


def train(data, state=None, name="act_conv", **settings):
    """Train from fixed weights; give the training and its saved states."""
    data = replace(data, config=Config(**SMALL | settings))
    torch.manual_seed(0)
    saver = Saver()
    detector = build_detector(name, data)
    return fit(FABRIC, detector, data, saver, state and load(state)), saver.states


def assert_same(one, two):
    """Equal histories, and equal bits of weights and moments."""
    assert one.history == two.history
    weights = (training.detector.state_dict().values() for training in (one, two))
    assert all(map(torch.equal, *weights))


@pytest.mark.parametrize("n_fit, num_workers", [(1, 0), (50, 2), (10_000, 0)])
def test_the_cache_changes_no_bit(data, n_fit, num_workers):
    """Of a training with augmentation and mixtures, whatever share of the images fits."""
    random = {"augment": "rand", "mixup": 0.4}
    without, _ = train(data, image_cache=0, **random)
    cached, _ = train(data, image_cache=n_fit * IMAGE_BYTES, num_workers=num_workers, **random)
    assert_same(without, cached)
    n_visited = len(data.splits.train) + len(data.splits.val)
    assert without.kept is None
    assert len(cached.kept) == min(n_fit, n_visited)


@pytest.mark.parametrize("name", ["act_conv", "act_vit"])
def test_going_on_with_an_empty_cache_gives_the_same_bits(data, name):
    """From saved states within an epoch and at its end, the images being read again."""
    settings = {"save_every": "1", "augment": "rand", "name": name}
    whole, states = train(data, **settings)
    assert len(states) >= 6
    for state in states[1:-1:2]:
        resumed, _ = train(data, state, **settings)
        assert_same(whole, resumed)


def test_images_are_of_the_layers_that_are_read(tmp_path):
    """An image has no more layers than --layers names, and shows those."""
    states = np.arange(12, dtype=np.float16).reshape(1, 4, 3)
    traces = states + np.arange(100)[:, None, None, None]
    labels = [i % 2 for i in range(100)]
    path = write_states(tmp_path / "named.zarr", labels, traces, "hidden_states", "tokens")
    data = split_data(path, **SMALL, layers="2,4")
    detector = build_detector("act_conv", data)
    assert detector.size == (2, 6)
    images = detector.reduce(data.read([7], detector.columns))
    expected = torch.from_numpy(states[0, [1, 3]] + np.float16(7))[:, None].expand(2, 6, 3)
    assert torch.equal(images[0], expected)
