"""Device, threads, precision and compilation: what is chosen, what is refused, what is set back."""

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from splitting import split_data

from train.config import Config
from train.data.splits import Splits
from train.errors import ConfigError, ResourceError
from train.fit import device
from train.fit.device import build_fabric, choose_precision
from train.fit.loop import Hooks, Training, predict
from train.run.detectors import build_criterion, build_detector

MODELS = ("lstm_solo", "gnn_det_lstm", "gvae_lstm", "drift", "halunet", "clap", "token_sequence")
MODELS += ("los_net", "charm", "charm_edges")
SMALL = {"lstm_hidden": 8, "gnn_hidden": 8, "latent_dim": 8, "epochs": 2, "force_cpu": True}


def train(store_path, name, **settings):
    """Train a detector; give the training and its data."""
    data = split_data(store_path, **SMALL | settings)
    torch.manual_seed(0)
    detector = build_detector(name, data)
    training = Training(build_fabric(data.config), detector, data, Hooks())
    training.run_epoch()
    training.run_epoch()
    return training, data


@pytest.mark.parametrize(
    "precision, capability, chosen",
    [
        ("auto", (9, 0), "bf16-mixed"),
        ("auto", (8, 0), "bf16-mixed"),
        ("auto", (7, 5), "32"),
        ("32", (9, 0), "32"),
        ("16-mixed", (7, 5), "16-mixed"),
    ],
)
def test_precision_on_a_gpu(precision, capability, chosen, monkeypatch):
    """bf16 where the GPU computes in it, unless another is asked for."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert choose_precision(Config(precision=precision), "cuda") == chosen


def test_precision_on_a_cpu(monkeypatch):
    """32 unless asked for; half precision needs a GPU."""
    assert choose_precision(Config(), "cpu") == "32"
    half = Config(precision="bf16-mixed")
    monkeypatch.setattr("train.fit.device._cpu_has_bf16", lambda: True)
    assert choose_precision(half, "cpu") == "bf16-mixed"
    monkeypatch.setattr("train.fit.device._cpu_has_bf16", lambda: False)
    only = "--precision: expected 32 on this CPU"
    either = "--precision: expected 32 or bf16-mixed on a CPU, found '16-mixed'"
    for config, message in ((half, only), (Config(precision="16-mixed"), either)):
        with pytest.raises(ConfigError, match=message):
            choose_precision(config, "cpu")


@pytest.mark.parametrize("name", MODELS)
def test_mixed_precision_trains_in_it_and_scores_in_float32(name, store_path):
    """The weights stay float32, losses are near those of float32, not the same; scores differ."""
    try:
        choose_precision(Config(precision="bf16-mixed"), "cpu")
    except ConfigError as error:
        pytest.skip(str(error))
    full, data = train(store_path, name)
    mixed, _ = train(store_path, name, precision="bf16-mixed")
    assert all(p.dtype == torch.float32 for p in mixed.detector.parameters())
    losses = [epoch.loss for epoch in mixed.history]
    assert losses == pytest.approx([epoch.loss for epoch in full.history], rel=0.02)
    assert losses != [epoch.loss for epoch in full.history]
    scores = predict(mixed.fabric, mixed.detector, data, "val")
    assert len(set(scores)) == len(scores)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler warns while it traces
@pytest.mark.parametrize("name", MODELS)
def test_compiled_detectors_learn_the_same(name, store_path):
    """Compilation changes the losses by rounding only."""
    plain, _ = train(store_path, name, dropout=0.0)
    compiled, _ = train(store_path, name, dropout=0.0, compile=True)
    first, second = ([epoch.loss for epoch in one.history] for one in (plain, compiled))
    assert first == pytest.approx(second, rel=0.05)  # the encoder's own dropout draws other numbers


def test_a_full_memory_says_what_to_lower():
    """GPU and CPU raise different errors for it; other errors pass."""
    cpu = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."
    message = "gnn: out of memory for a batch of 64 traces; lower --batch-size"
    batch = device.for_a_batch(Config(batch_size=64))
    for error in (torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError(cpu)):
        with pytest.raises(ResourceError, match=message), device.memory_enough("gnn", batch):
            raise error
    with pytest.raises(RuntimeError, match="shapes"), device.memory_enough("gnn", batch):
        raise RuntimeError("shapes do not match")


def test_rows_of_several_processes_are_put_in_order(monkeypatch):
    """Rows are dealt out in turn, so the last process may have one less."""
    values = torch.tensor([[0.0, 3, 6], [1, 4, 7], [2, 5, 0]])

    def all_gather(parts, mine):
        assert mine.tolist() == [2, 5, 0]
        for part, value in zip(parts, values, strict=True):
            part.copy_(value)

    class Third(Fabric):
        world_size = 3

    monkeypatch.setattr(torch.distributed, "all_gather", all_gather)
    found = device.gather_rows(Third(accelerator="cpu", devices=1), torch.tensor([2.0, 5]), 8)
    assert found.tolist() == list(range(8))


def test_classes_of_equal_weight():
    """Both classes of train add up to half of its rows, whatever their numbers."""
    labels = np.array([1, 0, 0, 0, 1, -1, 0])
    rows = np.arange(4)
    splits = Splits(rows, rows[:0], rows[:0], labels, np.arange(7), 0)
    assert build_criterion(Config(), splits.labels_of("train")).class_weights is None
    weighted = build_criterion(Config(class_weights=True), splits.labels_of("train"))
    of_0, of_1 = weighted.class_weights
    assert (3 * of_0, 1 * of_1) == pytest.approx((2, 2))


def test_inside_denormals_are_zero_and_outside_they_are_not():
    """The process is left as it was, also when training fails."""
    tiny = torch.tensor([1e-40])  # denormal in float32
    with device.cpu_arithmetic(1):
        assert torch.get_num_threads() == 1
        assert (tiny * 1.0).item() == 0.0
    with pytest.raises(ZeroDivisionError), device.cpu_arithmetic(1):
        raise ZeroDivisionError
    assert (tiny * 1.0).item() > 0.0
    assert np.float32(1e-40) * np.float32(1.0) > 0


def test_narrow_models_get_one_thread():
    """Small layers lose by sharing; large ones get all cores."""
    assert device.default_threads(128) == 1
    assert device.default_threads(4096) == torch.get_num_threads()
