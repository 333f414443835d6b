"""The loop: any detector, the best epoch, early stopping, the same numbers from the same seed."""

import dataclasses

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from models import Detector, Outputs
from store import TraceStore
from train.config import Config
from train.data import TrainingData, read_split
from train.errors import DataError
from train.loop import fit, predict

FABRIC = Fabric(accelerator="cpu", devices=1)


class Linear(Detector):
    """A detector that nothing but this test knows."""

    columns = ("hs_last",)
    options = ()

    def __init__(self, hidden_size):
        super().__init__()
        self.weights = nn.Linear(hidden_size, 1)

    def forward(self, batch):
        return Outputs(self.weights(batch["hs_last"].float().mean(1)).squeeze(1))


@pytest.fixture
def data(store_path):
    store = TraceStore.open(store_path)
    return TrainingData(store, read_split(store, Config()))


def run(data, detector=None, config=None, **callbacks):
    """Train a `Linear`; give its history, the epochs that were best, and the detector."""
    torch.manual_seed(0)
    detector, best = detector or Linear(8), []
    history = fit(
        FABRIC,
        FABRIC.setup_module(detector),
        data,
        config or Config(epochs=4, lr=0.05),
        on_best=lambda epoch, weights: best.append((epoch, {name: w.clone() for name, w in weights.items()})),
        **callbacks,
    )
    return history, best, detector


def test_an_unknown_detector_learns(data):
    """A detector that is in no registry is trained like the others."""
    history, best, _ = run(data, config=Config(epochs=30, lr=0.05, patience=30))
    assert history[-1].loss < history[0].loss
    assert best[-1][0].val_auroc > 0.9


def test_best_epochs_rise_and_end_at_the_best(data):
    """on_best is called for the first epoch and for each that beats all before it, with that epoch's weights."""
    history, best, detector = run(data, config=Config(epochs=12, lr=0.3, patience=12))
    areas = [epoch.val_auroc for epoch, _ in best]
    assert best[0][0] == history[0]
    assert areas == sorted(set(areas))
    assert areas[-1] == max(e.val_auroc for e in history)
    detector.load_state_dict(best[-1][1])
    labels, scores = (
        data.split.labels[data.split.val],
        predict(FABRIC, detector, data, "val", Config()),
    )
    assert np.mean(scores[labels == 1][:, None] > scores[labels == 0]) == pytest.approx(areas[-1])


@pytest.mark.parametrize("batch_size, together", [(1, 8), (2, 4), (4, 2)])
def test_small_batches_together_move_the_weights_like_a_large_one(data, batch_size, together):
    """Also at the end of an epoch, where they are fewer."""
    weights = {}
    for size, n in ((8, 1), (batch_size, together)):
        rows = len(data.split.train) // 8 * 8  # whole batches of both sizes
        split = dataclasses.replace(data.split, train=data.split.train[:rows])
        config = Config(epochs=3, lr=0.05, batch_size=size, grad_accum=n)
        weights[size] = run(TrainingData(data.store, split), config=config)[2].weights.weight.detach().clone()
    assert torch.allclose(weights[8], weights[batch_size], rtol=1e-3, atol=1e-5)


def test_patience_stops_early(data):
    """Without progress the loop stops `patience` epochs after the best one."""

    class Stuck(Linear):
        def loss(self, outputs, labels):
            return super().loss(outputs, labels) * 0.0

    history, _, _ = run(data, Stuck(8), Config(epochs=50, patience=3, lr=1e-9))
    assert len(history) == 4


def test_steps_cover_every_training_row_each_epoch(data):
    """Each epoch visits every row of the training side once, the last short batch too."""
    rows = []
    run(data, config=Config(epochs=3, batch_size=16), on_step=lambda n_rows, loss: rows.append(n_rows))
    assert sum(rows) == 3 * len(data.split.train)


def test_same_seed_same_numbers(data):
    """Two trainings agree bit for bit."""
    (first, _, one), (second, _, two) = run(data), run(data)
    assert first == second
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_gradients_are_clipped(data):
    """A huge loss moves the weights no further than a small one: the gradient's norm is cut to 1."""

    class Steep(Linear):
        def loss(self, outputs, labels):
            return 1e4 * super().loss(outputs, labels)

    norms = []
    detector = Steep(8)
    detector.weights.weight.register_post_accumulate_grad_hook(lambda p: norms.append(p.grad.norm()))
    optimizer_sees = []
    fabric = Fabric(accelerator="cpu", devices=1)
    clip = fabric.clip_gradients

    def clip_and_record(module, *args, **kwargs):
        clip(module, *args, **kwargs)
        optimizer_sees.append(torch.stack([p.grad.norm() for p in detector.parameters()]).norm())

    fabric.clip_gradients = clip_and_record
    fit(fabric, fabric.setup_module(detector), data, Config(epochs=1), on_best=lambda epoch, weights: None)
    assert max(norms) > 10
    assert max(optimizer_sees) <= 1.001


def test_loss_that_is_not_finite_names_the_traces(make_store):
    """NaN in the states is an error with the ids of the batch, not a detector of NaN."""

    def poison(number, row):
        if number == 30:
            row["hs_last"][:] = np.nan

    store = TraceStore.open(make_store(np.arange(120) // 2 % 2, change=poison))
    data = TrainingData(store, read_split(store, Config()))
    assert 30 in data.split.train
    with pytest.raises(DataError, match=r"training loss of traces 't\d+', .*: expected a finite number, found nan"):
        run(data, config=Config(batch_size=200))


def test_confident_scores_do_not_tie(data):
    """Logits beyond the resolution of float32 probabilities still rank."""

    class Loud(Linear):
        def forward(self, batch):
            return Outputs(20.0 + batch["hs_last"].float().mean((1, 2)))

    scores = predict(FABRIC, Loud(8), data, "val", Config())
    assert scores.dtype == np.float64
    assert len(np.unique(scores)) > len(scores) / 2


def test_score_that_is_not_finite_names_the_trace(make_store):
    """NaN on the validation side is an error with the id of the trace."""
    store = TraceStore.open(make_store(np.arange(120) // 2 % 2))
    row = int(read_split(store, Config()).val[3])

    class Blind(Linear):
        def forward(self, batch):
            logits = super().forward(batch).logits
            return Outputs(torch.where(batch.rows == row, torch.nan, logits))

    data = TrainingData(store, read_split(store, Config()))
    with pytest.raises(DataError, match=rf"score of traces 't{row}': expected a finite number, found nan"):
        predict(FABRIC, Blind(8), data, "val", Config())
