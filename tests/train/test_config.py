"""Settings: every flag parses, ranges are checked, messages are one line."""

import dataclasses
import json
import math

import pytest
from small import complaint

from models import DETECTORS
from store.extras import version_text
from store.traces.layers import parse_layers
from train.config import SWITCHES, Config, parse_arguments
from train.errors import ConfigError


def parse_config(argv):
    """The settings of a command line."""
    return parse_arguments(argv).config


FORMER_FLAGS = (
    "--epochs 3 --batch-size 4 --lr 0.01 --attn-threshold 0.1 --score-threshold 0.4 "
    "--max-traces 50 --gnn-hidden 8 --latent-dim 6 --lstm-hidden 7 --num-lstm-layers 1 "
    "--dropout 0.1 --kl-weight 0.5 --run-lstm --no-run-gnn-det --run-gvae --output-dir out "
    "--force-cpu --num-workers 2 --grad-accum 3 --focal-loss --label-smoothing 0.1 "
    "--cache-size 1000000 --no-amp --no-compile --use-gradient-checkpointing"
)
FORMER = Config(
    epochs=3,
    batch_size=4,
    lr=0.01,
    attn_threshold=0.1,
    score_threshold=0.4,
    max_traces=50,
    gnn_hidden=8,
    latent_dim=6,
    lstm_hidden=7,
    num_lstm_layers=1,
    dropout=0.1,
    kl_weight=0.5,
    run_lstm=True,
    run_gnn_det=False,
    run_gvae=True,
    output_dir="out",
    force_cpu=True,
    num_workers=2,
    grad_accum=3,
    focal_loss=True,
    label_smoothing=0.1,
    cache_size=10**6,
    precision="32",
    compile=False,
    use_gradient_checkpointing=True,
)


def test_former_flags_parse():
    """The flags that users have in their scripts reach the settings of the same name."""
    assert parse_config(FORMER_FLAGS.split()) == FORMER


def test_switches_are_of_detectors_and_options_are_settings():
    """What can be switched off is a registered detector; all options of any are settings."""
    assert SWITCHES.keys() <= DETECTORS.keys()
    names = {setting.name for setting in dataclasses.fields(Config)}
    assert all(set(detector.options) <= names for detector in DETECTORS.values())


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_what_is_shown_and_ends_with_0(flag, capsys):
    """Help names defaults and examples; the version is that of the store."""
    with pytest.raises(SystemExit, match=r"^0$"):
        parse_config([flag])
    out = capsys.readouterr().out
    if flag == "--version":
        assert out.strip() == version_text()
    else:
        assert "python -m train --store traces.zarr --seeds 5" in out
        assert "(default: 0.3)" in out


@pytest.mark.parametrize(
    "flags, names",
    [
        ("", ["lstm_solo", "gnn_det_lstm", "gvae_lstm", "saplma"]),
        ("--run-lstm", ["lstm_solo", "gnn_det_lstm", "gvae_lstm"]),
        ("--no-run-lstm", ["gnn_det_lstm", "gvae_lstm"]),
        ("--models saplma", ["saplma"]),
        ("--models saplma --run-lstm", ["saplma", "lstm_solo"]),
        ("--models saplma,lstm_solo --no-run-lstm", ["saplma"]),
        ("--models gvae_lstm,lstm_solo --no-run-gvae", ["lstm_solo"]),
        (FORMER_FLAGS, ["lstm_solo", "gvae_lstm"]),
        ("--models all --no-run-gvae", ["all"]),
    ],
)
def test_names_of_detectors(flags, names):
    """--models names them; the older switches add and take away, without it among the three that
    they were made for."""
    assert parse_config(flags.split()).detectors == names


@pytest.mark.parametrize(
    "text",
    ["5", "8,16,24", "8-16", "1,4-6, 9", "-1", "-2:", "8:24", "8:24:2", "::4", ":-1", ":", "0"],
)
def test_layers_are_written_as_everywhere(text):
    """Also those that begin with a minus; what the settings let pass can be read."""
    config = parse_config(["--layers", text])
    assert config.layers == text
    assert parse_layers(text)


def test_paths_begin_at_home(monkeypatch, tmp_path):
    """After a flag with an equals sign a shell does not expand the tilde."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run.json").write_text(json.dumps({"epochs": 3}))
    config = parse_config(["--config=~/run.json", "--store=~/a.zarr", "--output-dir=~/runs"])
    paths = f"{tmp_path}/a.zarr", f"{tmp_path}/runs"
    assert (config.store, config.output_dir, config.epochs) == (*paths, 3)


@pytest.mark.parametrize(
    "text, steps, seconds",
    [
        ("500", 500, math.inf),
        ("2.5min", math.inf, 150),
        ("500,10min", 500, 600),
        ("0min", math.inf, 0),
    ],
)
def test_save_every(text, steps, seconds):
    """Steps, minutes, or both."""
    config = parse_config(["--save-every", text])
    assert (config.save_steps, config.save_seconds) == (steps, seconds)


def test_settings_of_a_file(tmp_path):
    """They take the place of the defaults, and flags take theirs; a run's file has more in it."""

    def parse(settings, *flags):
        (tmp_path / "run.json").write_text(json.dumps(settings))
        return parse_config(["--config", str(tmp_path / "run.json"), *flags])

    recorded = {"epochs": 3, "lr": 1, "top_k": None, "compile": True}
    config = parse({"run": "x", "config": recorded}, "--epochs", "4")
    assert config == Config(epochs=4, lr=1, compile=True)
    assert parse(dataclasses.asdict(config)) == config
    assert parse({"epochs": 3}) == Config(epochs=3)  # of no run: the defaults of today
    recorded = {"readout": "answer", "aggregation": "attention"}
    assert parse({"config": recorded}).readout == "answer"


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "expected a JSON object of at most 1,000,000 bytes, found: Expecting property name"),
        ("[1]", "expected a JSON object of at most 1,000,000 bytes, found: list"),
        ('{"config": [1]}', "expected an object of settings, found list"),
        ('{"epoch": 3}', "expected settings of python -m train --help, found 'epoch'"),
        ('{"seeds": "3"}', "expected seeds: an integer, found '3'"),
        ('{"seeds": true}', "expected seeds: an integer, found True"),
        ('{"margin": 1}', "--margin: expected less than 0.5, by which a perfect AUROC is above"),
        ('{"lr": NaN}', "--lr: expected above 0 and at most 10, found nan"),
        (
            '{"schedule": "cosine"}',
            "--schedule: expected one of one-cycle, constant, found 'cosine'",
        ),
        ("[" * 100_000, "bytes, found: maximum recursion depth exceeded"),
        ('{"store": [3]}', "expected store[0]: a text, found 3"),
        ('{"outside": {"x": 3}}', "expected outside.x: an object, found 3"),
        (" " * 1_000_001, "at most 1,000,000 bytes, found: 1,000,001 bytes"),
    ],
)
def test_bad_files_of_settings(content, message, tmp_path):
    """One line that names the file or the setting."""
    (tmp_path / "a.json").write_text(content)
    assert message in complaint(ConfigError, parse_config, [f"--config={tmp_path}/a.json"])
