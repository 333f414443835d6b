"""Settings: every flag parses, ranges are checked, messages are one line."""

import dataclasses

import pytest

from models import DETECTORS
from train.config import SWITCHES, Config, parse_config
from train.errors import ConfigError

FORMER_FLAGS = (
    "--epochs 3 --batch-size 4 --lr 0.01 --attn-threshold 0.1 --score-threshold 0.4 --max-traces 50 --gnn-hidden 8 "
    "--latent-dim 6 --lstm-hidden 7 --num-lstm-layers 1 --dropout 0.1 --kl-weight 0.5 --run-lstm --no-run-gnn-det "
    "--run-gvae --output-dir out --force-cpu --num-workers 2 --grad-accum 3 --focal-loss --label-smoothing 0.1 "
    "--cache-size 1000000"
)


def test_former_flags_parse():
    """The flags that users have in their scripts reach the settings of the same name."""
    config = parse_config(FORMER_FLAGS.split())
    assert (config.epochs, config.batch_size, config.lr, config.attn_threshold) == (3, 4, 0.01, 0.1)
    assert (config.score_threshold, config.max_traces, config.gnn_hidden, config.latent_dim) == (0.4, 50, 8, 6)
    assert (config.lstm_hidden, config.num_lstm_layers, config.dropout, config.kl_weight) == (7, 1, 0.1, 0.5)
    assert (config.output_dir, config.force_cpu, config.num_workers) == ("out", True, 2)
    assert (config.grad_accum, config.focal_loss, config.label_smoothing, config.cache_size) == (3, True, 0.1, 10**6)
    assert config.detectors == ["lstm_solo", "gvae_lstm"]


def test_no_flags_are_the_defaults():
    """An empty command line is `Config()`."""
    assert parse_config([]) == Config()


def test_switches_are_of_detectors_and_options_are_settings():
    """What can be switched off is a registered detector, and all options of any detector are settings."""
    assert SWITCHES.keys() <= DETECTORS.keys()
    names = {setting.name for setting in dataclasses.fields(Config)}
    assert all(set(detector.options) <= names for detector in DETECTORS.values())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--epochs 0", "--epochs: expected at least 1 and at most 1000000, found 0"),
        ("--lr 0", "--lr: expected above 0 and at most 10, found 0"),
        ("--lr inf", "--lr: expected above 0 and at most 10, found inf"),
        ("--attn-threshold 1.5", "--attn-threshold: expected at least 0 and at most 1, found 1.5"),
        ("--attn-threshold -0.1", "--attn-threshold: expected at least 0 and at most 1, found -0.1"),
        ("--score-threshold nan", "--score-threshold: expected a finite number, found nan"),
        ("--dropout 1", "--dropout: expected at least 0 and at most 0.99, found 1"),
        ("--top-k 0", "--top-k: expected at least 1 and at most 2147483647, found 0"),
        ("--threads 0", "--threads: expected at least 1 and at most 1024, found 0"),
        ("--seed -1", "--seed: expected at least 0"),
        ("--batch-size two", "argument --batch-size: invalid int value: 'two'"),
        ("--bach-size 2", "unrecognized arguments: --bach-size 2"),
        (
            "--no-run-lstm --no-run-gnn-det --no-run-gvae",
            "expected a detector to train, found all of them switched off",
        ),
    ],
)
def test_bad_settings_are_refused(flags, message):
    """A value out of range says which flag, the range and the value, in one line."""
    with pytest.raises(ConfigError) as caught:
        parse_config(flags.split())
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_help_shows_examples_and_defaults(capsys):
    """--help exits with 0 and names defaults and examples."""
    with pytest.raises(SystemExit) as caught:
        parse_config(["--help"])
    text = capsys.readouterr().out
    assert caught.value.code == 0
    assert "python -m train --store traces.zarr --seeds 3" in text
    assert "(default: 0.3)" in text
