"""The help of the commands stands alone."""

import argparse

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
