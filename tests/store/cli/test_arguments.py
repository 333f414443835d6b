"""Arguments that are paths mean what they mean in a shell."""

import json
from pathlib import Path

import pytest
from small import one_column

from store.cli import main as cli
from store.cli.arguments import expand, path
from store.cli.command import Option
from store.cli.main import COMMANDS, find_command, parse


@pytest.fixture
def home(monkeypatch, tmp_path):
    """A home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_tilde_is_the_home_directory(home):
    """At the start alone, and of users that exist, as in a shell; all else stays."""
    assert path("~/a.zarr") == home / "a.zarr"
    assert path("~") == home
    assert path("a/~/b") == Path("a/~/b")
    assert path("~nobody-of-this-name/a") == Path("~nobody-of-this-name/a")
    assert expand("~/traces/*.pkl") == f"{home}/traces/*.pkl"
    assert expand("~nobody-of-this-name/a") == "~nobody-of-this-name/a"
    assert expand("runs/~") == "runs/~"
    assert expand("meta-llama/Llama-2-7b-chat-hf") == "meta-llama/Llama-2-7b-chat-hf"
    assert expand("./traces//") == "./traces//"


def test_every_path_of_a_command_expands_it():
    """No argument of `python -m store` is a bare Path."""
    bare = [
        (name, attribute)
        for name in COMMANDS
        for attribute, option in vars(find_command(name)).items()
        if isinstance(option, Option) and option.settings.get("type") is Path
    ]
    assert bare == []


def test_commands_find_what_lies_in_the_home_directory(home, capsys):
    """A store to read, a store to make and a file of ids; a library call takes a path as it is."""
    one_column(home / "a.zarr", "label", "int8", [0, 0, 0])
    (home / "ids.txt").write_text("t2\n")
    assert cli.main(["info", "~/a.zarr", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 3
    assert cli.main(["subset", "~/few.zarr", "~/a.zarr", "--ids=~/ids.txt"]) == 0
    assert (home / "few.zarr" / "zarr.json").is_file()


def test_a_model_and_sources_may_be_in_the_home_directory(home):
    """Which are no paths always: a name on the Hub, a pattern."""
    typed = ["extract", "o", "--model", "~/model", "--questions", "~/q"]
    assert parse(typed).model == f"{home}/model"
    assert parse(["import", "o", "~/old/*.pkl", "new/"]).sources == [f"{home}/old/*.pkl", "new/"]
