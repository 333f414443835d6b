"""The help of the commands stands alone."""

import argparse
import sys

import pytest

from store.cli.parser import build_parser
from store.sources.huggingface.columns import build_schema


def commands():
    """Name -> parser of each command."""
    (action,) = (
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return action.choices


@pytest.mark.parametrize("name", commands())
def test_every_command_and_argument_is_explained(name, monkeypatch):
    """With a description, examples, and no line that a window of 100 columns would break."""
    monkeypatch.setenv("COLUMNS", "100")
    parser = commands()[name]
    assert parser.description
    assert f"examples:\n  python -m store {name} " in parser.epilog
    assert all(action.help for action in parser._actions)
    assert max(map(len, parser.format_help().splitlines())) <= 100


def test_extract_lists_the_columns_that_there_are():
    """All of them, in its help."""
    text = commands()["extract"].epilog
    _, _, listed = text.partition("columns (")
    for name in build_schema(1, 1, 1, 1).columns:
        assert name in listed, name


@pytest.mark.parametrize("name", [None, *commands()])
def test_the_installed_command_gives_examples_of_itself(name, monkeypatch):
    """Which work in a folder with a store.py or a train.py of its own; Python's tools stay."""
    monkeypatch.setattr(sys, "argv", ["/bin/trace-store"])
    parser = build_parser() if name is None else commands()[name]
    text = " ".join(parser.format_help().split())
    assert f"examples: trace-store {name or ''}" in text
    assert "python -m store" not in text
    assert "python -m train" not in text
    assert "is the same program" not in text
