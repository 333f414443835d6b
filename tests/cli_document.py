"""docs/cli.md, the help of every command: `make docs` writes it, a test compares it."""

import io
import os
from contextlib import redirect_stdout, suppress
from pathlib import Path
from unittest.mock import patch

from store.cli.main import main as store_main
from store.cli.parser import build_parser
from train.commands.main import COMMANDS
from train.commands.main import main as train_main

DOCUMENT = Path(__file__).parent.parent / "docs" / "cli.md"
WIDTH = 100  # columns
HEAD = """\
# Commands

The `--help` of every command, written by `make docs`: edit the help texts, not this file.

`python -m store` and `python -m train` are also installed as `trace-store` and `trace-train`. These
do not look for modules in the current folder, so that they work in a folder that has a `train.py`,
a `store.py` or a `models/` of its own.
"""


def render():
    """Return the text of the document."""
    store_commands = build_parser()._subparsers._group_actions[0].choices
    sections = [HEAD, _section("python -m store", store_main)]
    sections += [_section("python -m store", store_main, name) for name in store_commands]
    sections.append(_section("python -m train", train_main))
    sections += [_section("python -m train", train_main, name) for name in COMMANDS]
    return "\n".join(sections)


def _section(program, main, *command):
    """A heading and the help of a command, laid out for a fixed width."""
    out = io.StringIO()
    with patch.dict(os.environ, COLUMNS=str(WIDTH)), redirect_stdout(out), suppress(SystemExit):
        main([*command, "--help"])
    return f"## {' '.join([program, *command])}\n\n```text\n{out.getvalue().rstrip()}\n```\n"


if __name__ == "__main__":
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(render())
    print(f"written: {DOCUMENT}")
