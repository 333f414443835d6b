"""Without a package of an extra a command says so in one line, with a `pip install` that works as
it stands."""

import configparser
import re
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from store import extras
from store.cli import main as cli
from store.extras import find_checkout, missing_package, version_text

ROOT = Path(__file__).parents[2]
EXTRACT = ["extract", "t.zarr", "--model", "m", "--questions", "q.jsonl"]
COMMANDS = {
    "train": ("train.commands.main", ["--store", "none.zarr"], "train", "lightning_fabric"),
    "compare": ("train.commands.main", ["compare", "none"], "train", "scipy"),
    "extract": ("store.cli.main", EXTRACT, "extract", "transformers"),
    "serve": ("train.commands.main", ["serve", "--run", "r", "--model", "m"], "serve", "starlette"),
    "view": ("store.cli.main", ["view", "t.zarr"], "view", "uvicorn"),
}


@pytest.fixture
def config():
    """What setup.cfg says."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


@pytest.mark.parametrize(
    "name",
    ["extract", *(pytest.param(n, marks=pytest.mark.slow) for n in COMMANDS if n != "extract")],
)
def test_a_command_without_its_packages_says_what_to_install(name, tmp_path):
    """One line, exit status 2."""
    package, arguments, extra, module = COMMANDS[name]
    (tmp_path / "q.jsonl").write_text('{"question_id": "q", "question": "1+1", "answers": ["2"]}\n')
    without = f"import sys; sys.modules[{module!r}] = None"
    code = f"{without}; from {package} import main; sys.exit(main({arguments!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert missing_package(ModuleNotFoundError("x", name=module), extra) in line


def test_what_is_missing_is_in_the_extra_that_is_named(config):
    """And the core, what reads, writes, checks and imports, has no torch, and nothing of training
    or the page."""
    for _, _, extra, module in COMMANDS.values():
        said = missing_package(ModuleNotFoundError("x", name=f"{module}.part"), extra)
        assert said.startswith(f"the package {module} is not installed; run python -m pip install ")
        assert shlex.split(said)[-1] == f"{ROOT}[{extra}]"
        assert module.replace("_", "-") in config["options.extras_require"][extra]
    core = re.findall(r"^[\w-]+", config["options"]["install_requires"], re.MULTILINE)
    assert core == ["crc32c", "ml-dtypes", "numcodecs", "numpy", "rich", "zarr"]


@pytest.mark.parametrize("name", ["train.reprot", "store", "models.mine", "benchmarks.x", None])
def test_modules_of_our_own_are_bugs(name):
    """Their traceback stays."""
    assert missing_package(ModuleNotFoundError("x", name=name), "extract") is None


def test_the_checkout_is_found(monkeypatch, tmp_path):
    """Site-packages is none: the message leaves it to the user where theirs lies."""
    assert find_checkout() == ROOT
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site-packages" / "store" / "extras.py"))
    assert find_checkout() is None
    assert missing_package(ModuleNotFoundError("x", name="rich.console"), "view") == (
        "the package rich is not installed; run python -m pip install '.[view]' in the checkout"
    )


def test_the_version(monkeypatch, capsys):
    """That of the distribution and of the format; a checkout that is not installed has none."""

    def nothing_installed(name):
        raise PackageNotFoundError(name)

    assert version_text() == f"trace-store {version('trace-store')} (format 2)"
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"{version_text()}\n"
    monkeypatch.setattr(extras, "version", nothing_installed)
    assert version_text() == "trace-store unknown (a checkout, format 2)"
