"""The search: what decides is found, on validation; who chose each setting is recorded."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import tuning_stores
from kills import killed_at
from runs import SMALL, call, predict, train

from train.config import Config
from train.evaluate.results import Choice, Epoch
from train.run.plan import open_data
from train.run.search import N_TRACES, describe_settings, for_trials, search

SMALL_SEARCH = ["--tune=small", "--only=lstm_solo"]


def settings_of(results, name):
    """Setting -> (value, who chose it)."""
    (run,) = results["models"][name]["runs"]
    return {name: (one["value"], one["by"]) for name, one in run["settings"].items()}


def shown(capsys):
    return " ".join(capsys.readouterr().out.split())


def test_a_default_is_not_called_chosen(make_store, labels, tmp_path, capsys):
    """Nor is what the user gave: each is what its record says, in the table's sentence too."""
    flags = ["--only=halunet", "--halunet-layer=1", "--lr=0.002"]
    results = train(make_store(labels), tmp_path / "out", *flags)
    expected = {"halunet_layer": (1, "user"), "lr": (0.002, "user")}
    assert settings_of(results, "halunet") == expected | {"input_scale": ("standard", "default")}
    chosen, _, others = shown(capsys).partition("Chosen on validation: ")[2].partition(". Given: ")
    assert others.startswith("halunet layer 1, lr 0.002. Fixed: halunet scale standard.")
    assert "halunet" not in chosen


def test_the_training_is_that_of_what_was_chosen(store_path, tmp_path, capsys):
    """Of the candidates the one of the least loss, searched once for all seeds; with it given the
    trainings are the same."""
    tuned = train(store_path, tmp_path / "tuned", *SMALL_SEARCH, "--seeds=2")
    run, second = tuned["models"]["lstm_solo"]["runs"]
    assert run["settings"] == second["settings"]
    assert run["history"] != second["history"]
    scale, lr = run["settings"]["input_scale"], run["settings"]["lr"]
    assert scale["tried"] == ["raw", "standard", "norm"]
    assert lr["tried"] == pytest.approx([1e-3 / 3, 1e-3, 3e-3])
    for choice in (scale, lr):
        assert choice["by"] == "validation"
        assert choice["value"] == choice["tried"][np.argmin(choice["val_loss"])]
    assert f"lstm_solo scale {scale['value']}, lr {lr['value']:.2g}" in shown(capsys)
    assert len(list((tmp_path / "tuned").glob("lstm_solo*.pt"))) == 2  # none of a trial
    given = [f"--input-scale={scale['value']}", f"--lr={lr['value']!r}"]
    alone = train(store_path, tmp_path / "alone", "--only=lstm_solo", "--seeds=2", *given)
    for split in ("val", "test"):
        assert tuned["models"]["lstm_solo"][split] == alone["models"]["lstm_solo"][split]
    assert call(capsys, *predict(tmp_path / "tuned", store_path, "--models", "lstm_solo"))[0] == 0


def test_a_search_that_is_killed_goes_on(store_path, tmp_path):
    """The trials that have ended are not made again, and the scores are those of one go."""
    command = ["--store", str(store_path), *SMALL, *SMALL_SEARCH, "--save-every=2"]
    assert killed_at(25, [*command, "--output-dir", str(tmp_path / "out")])
    ended = [path for path in (tmp_path / "out").glob("*.pt") if "state" not in path.name]
    first = min(path for path in ended if "-try-raw-" in path.name)
    content = torch.load(first, weights_only=True)
    content["history"][0]["val_loss"] = -1.0  # it wins, unless it is made again
    torch.save(content, first)
    results = train(store_path, tmp_path / "out", *SMALL_SEARCH, "--save-every=2", "--resume")
    assert settings_of(results, "lstm_solo")["input_scale"] == ("raw", "validation")
    (run,) = results["models"]["lstm_solo"]["runs"]
    assert run["settings"]["input_scale"]["val_loss"][0] == -1.0


def choose(path, loss_of, area=1.0, **settings):
    """The choices for halunet where a trial has a loss; and the epochs of all trials."""
    data = open_data(Config(models="halunet", **settings), [path]).splits[0]
    lengths = []

    def try_out(tried, epochs):
        lengths.append(epochs)
        return Epoch(0, 0.5, area, loss_of(tried))

    return search("halunet", data, try_out), lengths


@pytest.mark.parametrize(
    "n_layers, best, expected",
    [(8, 4, [1, 2, 3, 4, 5, 6, 7, 8]), (20, 7, [1, 3, 4, 6, 7, 9, 11, 14, 17, 20])],
)
def test_a_layer_is_found_by_its_declaration(n_layers, best, expected, tmp_path):
    """All of 8 are tried, of more some and what is between those near the best; none if given."""
    path = tuning_stores.write_one_layer(tmp_path / "s.zarr", 60, n_layers)
    found, _ = choose(path, lambda tried: abs(tried["halunet_layer"] - best))
    assert (found["halunet_layer"].value, found["halunet_layer"].tried) == (best, expected)
    given, _ = choose(path, lambda tried: tried["lr"], halunet_layer=2)
    assert list(given) == ["input_scale", "lr"]
    assert choose(path, lambda tried: 1.0, halunet_layer=2, input_scale="raw", lr=1e-3) == ({}, [])


def test_layers_that_nobody_chose_are_not_recorded(tmp_path):
    """Without trials state_sequence reads three layers, which have no number."""
    path = tuning_stores.write_one_layer(tmp_path / "s.zarr", 60)
    data = open_data(Config(models="state_sequence"), [path]).splits[0]
    described = describe_settings("state_sequence", data, {})
    values = {name: one.value for name, one in described.items()}
    assert values == {"input_scale": "standard", "lr": 1e-3}


def test_trials_are_longer_where_nothing_is_learned(tmp_path):
    """One that diverges is never chosen, and has no loss in the record."""
    path = tuning_stores.write_one_layer(tmp_path / "s.zarr", 60)
    losses = {"raw": np.inf, "standard": 1.0, "norm": 2.0}
    flags = {"lr": 1e-3, "halunet_layer": 1}
    for area, lengths in ((0.9, [3] * 3), (0.55, [3] * 3 + [10] * 3)):
        found = choose(path, lambda tried: losses[tried["input_scale"]], area, **flags)
        scales = ["raw", "standard", "norm"]
        choice = Choice("standard", "validation", scales, [None, 1.0, 2.0])
        assert found == ({"input_scale": choice}, lengths)


def test_trials_are_of_few_traces(tmp_path):
    """Drawn by the seed from train and validation; test is not among them."""
    path = tuning_stores.write_large(tmp_path / "s.zarr", n=1600, width=4)
    data = open_data(Config(models="lstm_solo"), [path]).splits[0]
    few = for_trials(data)
    assert len(few.splits.train) == N_TRACES
    assert set(few.splits.train) <= set(data.splits.train)
    assert np.array_equal(few.splits.val, data.splits.val)
    assert not np.array_equal(few.splits.train, for_trials(data.with_settings(seed=1)).splits.train)


def test_many_traces_have_fewer_epochs(tmp_path):
    """So many that a training is not longer; a number that is given stays."""
    path = tuning_stores.write_large(tmp_path / "s.zarr", n=100, width=4)
    data = open_data(Config(models="lstm_solo"), [path]).splits[0]
    for n_rows, n_epochs in ((1, 10), (3500, 7), (100_000, 5)):
        splits = replace(data.splits, train=np.zeros(n_rows, int))
        assert replace(data, splits=splits).n_epochs == n_epochs
        assert replace(data, splits=splits).with_settings(epochs=2).n_epochs == 2
