"""Lay out the pages of the site in build/docs, for Zensical; `make docs` calls it.

The pages of docs/ are copied, with README, CONTRIBUTING and CHANGELOG beside them. What the code
knows is written from it: the `--help` of every command, the table of the columns, and what each
method computes. The tables of results and the scripts that pages link to come along.
"""

import inspect
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from itertools import groupby
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

from models import BASELINES, CONTROLS, DETECTORS, PROBES, find
from store.cli.main import COMMANDS as STORE_COMMANDS
from store.cli.main import main as store_main
from store.traces.columns import TRACE_COLUMNS
from train.commands.main import COMMANDS
from train.commands.main import main as train_main
from train.data.requirements import roles_of

ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "docs"
WIDTH = 100  # columns of the help
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
TABLE = "The site that `make docs` builds has the table of the columns here.\n"
TABLE_HEAD = """\
| column | shape | dtype | what it is | written by | read by |
|---|---|---|---|---|---|
| `trace_id` | () | utf8 | id of the row, unique in the store | all | - |
"""
METHODS = "The site that `make docs` builds has the table and a section for each method here.\n"
METHODS_HEAD = "| name | reads | what it is |\n|---|---|---|\n"
CLI_HEAD = """\
# Commands

`python -m store` and `python -m train` are also installed as `trace-store` and `trace-train`.
"""
PAPER = re.compile(r"arXiv:(\d{4}\.\d{5})")
NUMPY_SECTION = re.compile(r"^\w+\n-{4,}$", re.MULTILINE)
LINK = re.compile(r"(?<=\]\()(?!https://|#)([^)#\s]+)")


def readers() -> dict[str, list[str]]:
    """Column -> names of the detectors, probes, baselines and controls that read it."""
    found: dict[str, list[str]] = {}
    for name in [*DETECTORS, *PROBES, *BASELINES, *CONTROLS]:
        for column in dict.fromkeys(roles_of(find(name))):
            found.setdefault(column, []).append(name)
    return found


def columns_table() -> str:
    """The columns of a trace, from their registry."""
    names = readers()
    rows = []
    for name, column in TRACE_COLUMNS.items():
        read_by = listed(names.get(name, [])) or "-"
        shape = column.shape.replace("*", r"\*")
        cells = (f"`{name}`", shape, column.dtype, column.doc, ", ".join(column.made_by), read_by)
        rows.append(f"| {' | '.join(cells)} |\n")
    return TABLE_HEAD + "".join(rows)


def method_sections() -> str:
    """The detectors and probes: a table, then what each computes, from the docstrings."""
    methods = {name: find(name) for name in [*DETECTORS, *PROBES]}
    table, sections = METHODS_HEAD, ""
    for module, group in groupby(methods, key=lambda name: module_of(methods[name])):
        names = list(group)
        summary, _, details = prose(module).partition("\n\n")
        for name in names:
            table += f"| `{name}` | {listed(roles_of(methods[name]))} | {summary} |\n"
        classes = [name for name in names if inspect.isclass(methods[name])]  # a probe is a value
        parts = [f"### {listed(names)}", summary, details]
        parts += [f"**`{name}`**: {prose(methods[name])}" for name in classes]
        sections += "\n\n".join(part for part in parts if part) + "\n\n"
    return f"{table}\n{sections}"


def listed(names: Iterable[str]) -> str:
    """Names as code, with commas between them."""
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def module_of(method: object) -> ModuleType:
    """The module of `models` that defines a method."""
    modules = [module for name, module in sys.modules.items() if name.startswith("models.")]
    return next(one for one in modules if any(each is method for each in vars(one).values()))


def prose(described: object) -> str:
    """A docstring before its sections of parameters and shapes."""
    text = NUMPY_SECTION.split(inspect.getdoc(described) or "")[0].strip()
    return PAPER.sub(r"[\g<0>](https://arxiv.org/abs/\1)", text)


def commands_page() -> str:
    """The help of every command."""
    sections = [CLI_HEAD, help_section("python -m store", store_main)]
    sections += [help_section("python -m store", store_main, name) for name in STORE_COMMANDS]
    sections.append(help_section("python -m train", train_main))
    sections += [help_section("python -m train", train_main, name) for name in COMMANDS]
    return "\n".join(sections)


def help_section(program: str, main: Callable[[list[str]], int], *command: str) -> str:
    """A heading and the help of a command, laid out for a fixed width."""
    out = io.StringIO()
    with patch.dict(os.environ, COLUMNS=str(WIDTH)), redirect_stdout(out), suppress(SystemExit):
        main([*command, "--help"])
    return f"## {' '.join([program, *command])}\n\n```text\n{out.getvalue().rstrip()}\n```\n"


def site_path(target: Path) -> str:
    """Where a file of the checkout lies in the site."""
    path = target.relative_to(ROOT).as_posix()
    return PAGES.get(path, path.removeprefix("docs/").removeprefix("benchmarks/"))


def lay_out(page: Path) -> None:
    """Copy a page and the files that it links to; links lead to their places in the site."""

    def moved(link: re.Match[str]) -> str:
        target = (page.parent / link[1]).resolve()
        place = site_path(target)
        if target.is_file() and target.suffix != ".md":
            (SITE / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(target, SITE / place)
        return place

    text = page.read_text()
    for place, section in ((TABLE, columns_table), (METHODS, method_sections)):
        if place in text:
            text = text.replace(place, section())
    (SITE / site_path(page)).write_text(LINK.sub(moved, text))


def main() -> None:
    """Lay out all pages, anew."""
    shutil.rmtree(SITE, ignore_errors=True)
    SITE.mkdir(parents=True)
    (SITE / "cli.md").write_text(commands_page())
    for page in [*(ROOT / name for name in PAGES), *sorted((ROOT / "docs").glob("*.md"))]:
        lay_out(page)


if __name__ == "__main__":
    main()
