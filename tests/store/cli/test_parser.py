"""The help of the commands stands alone."""

import sys

import pytest

from store.cli.command import Option
from store.cli.main import COMMANDS, find_command, main
from store.sources.huggingface.kept import build_schema


@pytest.fixture
def help_of(monkeypatch, capsys):
    """The help of a command, in a window of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")

    def show(*command):
        with pytest.raises(SystemExit, match="0"):
            main([*command, "--help"])
        return capsys.readouterr().out

    return show


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_argument_is_explained(name, help_of):
    """With a description, examples, and no line that a window of 100 columns would break."""
    text = help_of(name)
    assert find_command(name).__doc__ in text
    assert f"examples:\n  python -m store {name} " in text
    assert max(map(len, text.splitlines())) <= 100
    for option in vars(find_command(name)).values():
        if isinstance(option, Option) and type(option.default) in (int, float, str):
            assert "(default: " in option.settings["help"]


def test_extract_lists_the_columns_that_there_are(help_of):
    """All of them, in its help."""
    _, _, listed = help_of("extract").partition("columns (")
    for name in build_schema(1, 1, 1, 1).columns:
        assert name in listed, name


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_the_installed_command_gives_examples_of_itself(command, help_of, monkeypatch):
    """Which work in a folder with a store.py or a train.py of its own; Python's tools stay."""
    monkeypatch.setattr(sys, "argv", ["/bin/trace-store"])
    text = " ".join(help_of(*command).split())
    assert f"examples: trace-store {''.join(command)}" in text
    assert "python -m store" not in text
    assert "python -m train" not in text
    assert "is the same program" not in text
