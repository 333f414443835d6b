"""The loop: any detector, the best epoch, early stopping, the same numbers from the same seed."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision import MixedPrecision
from loops import Linear, Saver, load
from splitting import split_data
from torch import nn

from models import Outputs
from train.config import Config
from train.errors import DataError
from train.fit.loop import Hooks, fit, predict, step_seed

FABRIC = Fabric(accelerator="cpu", devices=1)


class Stop(Exception):
    """Ends a training at a chosen step."""


class Recorder(Saver):
    """Keeps the arguments of its calls, and stops at a step."""

    def __init__(self, last=None):
        super().__init__()
        self.steps, self.best, self.last = [], [], last

    def on_step(self, step, n_rows, loss, lr):
        self.steps.append((step, n_rows, loss, lr))
        if step == self.last:
            raise Stop

    def on_save(self, training):
        super().on_save(training)
        self.best.append(training.best)


def run(data, detector=None, config=None, hooks=None, state=None):
    """Train a `Linear`; give its history, the epochs that were best, and the detector."""
    torch.manual_seed(0)
    detector, hooks = detector or Linear(8), hooks or Recorder()
    data = replace(data, config=config or Config(epochs=4, lr=0.05))
    training = fit(FABRIC, detector, data, hooks, state)
    return training.history, hooks.best, detector


class Scripted(Linear):
    """Knows the labels of validation, by epochs, with these log-odds; noise is drawn anew."""

    def __init__(self, strengths, labels):
        super().__init__(8)
        self.strengths, self.labels = iter(strengths), torch.from_numpy(labels)

    def train(self, mode=True):
        if self.training and not mode:
            self.strength = next(self.strengths)
        return super().train(mode)

    def forward(self, batch):
        outputs = super().forward(batch)
        if self.training:
            return outputs
        signs = 2 * self.labels[batch.rows] - 1
        return Outputs(self.strength * signs + torch.randn(len(signs)))


def test_the_best_is_the_latest_epoch_that_is_not_clearly_worse(data):
    """Than the one with the least loss; the weights of each best one are kept as it ends."""
    detector = Scripted([0.1, 3, 3.2, 0, 0.2], data.splits.labels)
    history, best, _ = run(data, detector, Config(epochs=5, lr=0.05))
    assert [epoch.epoch for epoch, _ in best] == [0, 1, 2]
    assert history[1].val_loss < 0.3 < history[3].val_loss
    weights = [one["weights.weight"] for _, one in best]
    assert not weights[1].equal(weights[2])


def test_small_batches_together_update_the_weights_like_a_large_one(data):
    """Also at the end of an epoch, where they are fewer: every row of a step counts the same."""
    assert len(data.splits.train) % 8
    weights = []
    for size, n in ((8, 1), (4, 2), (1, 8)):
        config = Config(epochs=2, lr=0.05, batch_size=size, grad_accum=n)
        weights.append(run(data, config=config)[2].weights.weight)
    for found in weights[1:]:
        assert torch.allclose(found, weights[0], rtol=1e-3, atol=1e-5)


class Noisy(Linear):
    """A detector with dropout: what is random must be repeated as well."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(8)

    def classify(self, features):
        return super().classify(nn.functional.dropout(features, 0.5, self.training))


@pytest.mark.parametrize(
    "settings",
    [
        {"grad_accum": 3, "mixup": 0.4, "save_every": "2"},
        *(pytest.param(one, marks=pytest.mark.slow) for one in ({}, {"schedule": "constant"})),
    ],
)
def test_going_on_from_any_saved_state_gives_the_same_bits(data, settings):
    """Stopped after each step in turn and begun again from the last saved state: weights and
    history do not differ."""
    config = Config(**{"epochs": 3, "lr": 0.05, "batch_size": 32, "save_every": "1"} | settings)
    whole, saver = Noisy(), Recorder()
    history, _, _ = run(data, whole, config, saver)
    n_steps = len(saver.steps)
    assert n_steps == 3 * 4
    for last in range(2, n_steps):
        stopped, resumed = Recorder(last), Recorder()
        with pytest.raises(Stop):
            run(data, Noisy(), config, stopped)
        # none was saved yet: begin again
        state = (stopped.states and load(stopped.states[-1])) or None
        detector = Noisy()
        torch.manual_seed(last)  # what was random in between does not matter
        training = fit(FABRIC, detector, replace(data, config=config), resumed, state)
        assert training.history == history
        for a, b in zip(whole.parameters(), detector.parameters(), strict=True):
            assert torch.equal(a, b)
        seen = {step: loss for step, _, loss, _ in stopped.steps + resumed.steps}
        assert seen == {step: loss for step, _, loss, _ in saver.steps}
        assert training.best.epoch == saver.best[-1].epoch


def test_states_are_saved_as_often_as_asked(data):
    """After so many steps, and at each new best epoch; never with a loss that was not looked at."""
    saver = Recorder()
    run(data, config=Config(epochs=2, batch_size=16, save_every="3", lr=1e-6), hooks=saver)
    states = map(load, saver.states)
    steps = [len(state["history"]) * 8 + state["batches"]["position"] // 16 for state in states]
    n_steps = -(-len(data.splits.train) // 16)
    assert n_steps == 8
    assert {3, 6} <= set(steps)
    assert 8 in steps
    assert {11, 14} <= set(steps)  # 3 and 6 after that, over the end of the epoch
    assert all(b - a <= 3 for a, b in itertools.pairwise([0, *steps]))


def test_random_steps_are_functions_of_their_place():
    """Another seed, epoch, batch or process draws other numbers."""
    seeds = {step_seed(*place) for place in itertools.product(range(3), repeat=4)}
    assert len(seeds) == 3**4


def test_patience_stops_early(data):
    """Without progress the loop stops `patience` epochs after the best one."""

    class Stuck(Linear):
        def loss(self, outputs, labels):
            return super().loss(outputs, labels) * 0.0

    history, _, _ = run(data, Stuck(8), Config(epochs=50, patience=3, lr=1e-9))
    assert len(history) == 4


def test_gradients_are_clipped(data):
    """The gradient of a huge loss has the norm 1."""

    class Steep(Linear):
        def loss(self, outputs, labels):
            return 1e4 * super().loss(outputs, labels)

    norms = []
    detector = Steep(8)
    weight = detector.weights.weight
    weight.register_post_accumulate_grad_hook(lambda p: norms.append(p.grad.norm()))
    optimizer_sees = []
    fabric = Fabric(accelerator="cpu", devices=1)
    clip = fabric.clip_gradients

    def clip_and_record(module, *args, **kwargs):
        clip(module, *args, **kwargs)
        optimizer_sees.append(torch.stack([p.grad.norm() for p in detector.parameters()]).norm())

    fabric.clip_gradients = clip_and_record
    fit(fabric, detector, data.with_settings(epochs=1), Hooks())
    assert max(norms) > 10
    assert max(optimizer_sees) <= 1.001


def test_numbers_that_are_not_finite_name_the_traces(make_store):
    """NaN in the states of train, or in a score of validation, is an error with the ids."""

    def poison(number, row):
        if number == 30:
            row["hs_last"][:] = np.nan

    data = split_data(make_store(np.arange(120) // 2 % 2, change=poison))
    assert 30 in data.splits.train
    message = "training loss of traces 't30': expected a finite number, found nan"
    with pytest.raises(DataError, match=message):
        run(data, config=Config(batch_size=200))
    row = int(data.splits.val[3])

    class Blind(Linear):
        def forward(self, batch):
            logits = super().forward(batch).logits
            return Outputs(torch.where(batch.rows == row, torch.nan, logits))

    message = rf"score of traces 't{row}': expected a finite number, found nan"
    with pytest.raises(DataError, match=message):
        predict(FABRIC, Blind(8), data, "val")


def test_scores_tie_where_traces_are_equal_alone(data):
    """Logits beyond the resolution of float32 probabilities still rank; equal traces tie, however
    their batch rounds them: here the last row of a batch has another last bit."""

    class Loud(Linear):
        def forward(self, batch):
            return Outputs(20.0 + batch["hs_last"].float().mean((1, 2)))

    class Rounding(Linear):
        def classify(self, features):
            last = torch.arange(len(features)) == len(features) - 1
            return Outputs(torch.where(last, 0.3, torch.tensor(0.3) + 1e-7))

    scores = predict(FABRIC, Loud(8), data, "val")
    assert scores.dtype == np.float64
    assert len(np.unique(scores)) > len(scores) / 2
    scores = predict(FABRIC, Rounding(8), data, "test")
    assert len(scores) > 1
    assert len(np.unique(scores)) == 1


def test_a_detector_adds_to_the_base_margin(data):
    """Loss and scores are of the sum of log-odds; with nothing to add, of the base margin."""

    class Silent(Linear):
        def classify(self, features):
            return Outputs(0.0 * super().classify(features).logits)

    margin = np.random.default_rng(0).normal(size=len(data.store))
    on_top = replace(data, base_margin=margin)
    history, _, detector = run(on_top, Silent(8), Config(epochs=1))
    train, val = data.splits.train, data.splits.val
    y, p = data.splits.labels[train], 1 / (1 + np.exp(-margin[train]))
    assert history[0].loss == pytest.approx(-np.mean(np.log(np.where(y == 1, p, 1 - p))), rel=1e-5)
    scores = predict(FABRIC, detector, on_top, "val")
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-margin[val])))
    learned, _, _ = run(on_top, config=Config(epochs=8, lr=0.05))
    assert learned[-1].loss < learned[0].loss


@pytest.mark.parametrize("schedule", ["one-cycle", "constant"])
def test_the_schedule_changes_the_learning_rate_only(data, schedule):
    """The betas of AdamW stay the usual ones in every step."""

    class Betas(Hooks):
        def on_save(self, training):
            found.add(training.optimizer.param_groups[0]["betas"])

    found = set()
    config = Config(epochs=2, schedule=schedule, save_every="1")
    fit(FABRIC, Linear(8), replace(data, config=config), Betas())
    assert found == {(0.9, 0.999)}


@pytest.mark.parametrize("sign", [1, -1])
def test_the_start_on_top_of_a_baseline_competes(data, sign):
    """Of offsets that know validation perfectly no epoch is better, and the weights that are kept
    add nothing; of offsets that rank it backwards the first better epoch wins. A training that
    continues from a saved state knows its start."""
    margin = sign * 20 * (2.0 * data.splits.labels - 1)
    on_top = replace(data, base_margin=margin).with_settings(epochs=3, lr=0.05, save_every="1")
    saver = Recorder()
    torch.manual_seed(0)
    training = fit(FABRIC, Linear(8), on_top, saver)
    start = (1 + sign) / 2
    assert training.start.val_auroc == start
    is_start = sign == 1
    assert (training.best.epoch.epoch == -1) == is_start
    kept = Linear(8)
    kept.load_state_dict(training.best.weights)
    if is_start:
        assert not kept.weights.weight.any()
    continued = fit(FABRIC, Linear(8), on_top, Hooks(), load(saver.states[-1]))
    assert continued.start.val_auroc == start
    assert continued.best.epoch.val_auroc == training.best.epoch.val_auroc
    for name, weight in continued.best.weights.items():
        assert torch.equal(weight, training.best.weights[name])


def test_half_precision_scales_clips_and_keeps_its_scale(data):
    """A training in float16 learns; its scaler is part of the state."""
    config = Config(epochs=4, lr=0.05, precision="16-mixed")
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", growth_interval=3))
    saver = Saver()
    fabric = Fabric(accelerator="cpu", devices=1, plugins=plugin)
    training = fit(fabric, Linear(8), replace(data, config=config), saver)
    assert training.history[-1].loss < training.history[0].loss
    assert training.best.epoch.val_auroc > 0.8
    assert load(saver.states[-1])["scaler"]["scale"] > 2**16


def test_weights_that_are_not_finite_are_not_saved(data):
    """The state before is the last one."""

    class Exploding(Linear):
        def loss(self, outputs, labels):
            loss = super().loss(outputs, labels)
            if torch.is_grad_enabled() and len(saver.states) == 2:
                self.weights.weight.data.fill_(torch.inf)
            return loss

    saver = Recorder()
    message = r"step 3: expected finite weights, found others in weights.weight; lower --lr"
    with pytest.raises(DataError, match=message):
        run(data, Exploding(8), Config(epochs=1, batch_size=16, save_every="1"), saver)
    assert len(saver.states) == 2
