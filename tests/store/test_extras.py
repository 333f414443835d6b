"""Without a package of an extra a command says so in one line, with a `pip install` that works as
it stands."""

import configparser
import re
import shlex
import subprocess
import sys
from importlib.metadata import Distribution, version
from pathlib import Path

import pytest

from store import extras
from store.cli import main as cli
from store.extras import find_checkout, missing_package, version_text

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "train": ("train.commands.main", ["--store", "none.zarr"], None, "rich"),
    "compare": ("train.commands.main", ["compare", "none"], None, "rich"),
    "predict": (
        "train.commands.main",
        ["predict", "--run", "none", "--store", "none.zarr"],
        None,
        "lightning_fabric",
    ),
    "extract": (
        "store.cli.main",
        ["extract", "t.zarr", "--model", "m", "--questions", "q.jsonl"],
        "extract",
        "transformers",
    ),
}


def requirements_of(extra):
    """What setup.cfg says of an extra; None for what needs none."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    if extra is None:
        return config["options"]["install_requires"].split()
    return config["options.extras_require"][extra].split()


def advised(line):
    """The packages that a line advises to install."""
    command = shlex.split(line.partition("; run ")[2])
    assert command[:4] == ["python", "-m", "pip", "install"]
    return command[4:]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_without_its_packages_says_what_to_install(name, tmp_path):
    """One line, exit status 2, and a requirement of what it needs."""
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
    assert f"the package {module} is not installed; run python -m pip install " in line
    requirements = advised(line)
    assert set(requirements) <= set(requirements_of(extra))
    assert any(requirement.startswith(module.replace("_", "-")) for requirement in requirements)


class Installed(Distribution):
    """A distribution of these requirements; no file of it exists."""

    def __init__(self, *requires):
        self.lines = [f"Requires-Dist: {line}" for line in requires]

    def read_text(self, filename):
        return "\n".join(
            ["Metadata-Version: 2.1", "Name: trace-store", "Version: 7.1", *self.lines]
        )

    def locate_file(self, path):
        raise NotImplementedError


@pytest.fixture
def installed(monkeypatch):
    """Let only the distributions given be installed."""

    def install(**distributions):
        monkeypatch.setattr(
            extras, "_distribution", lambda name: distributions.get(name.replace("-", "_"))
        )

    return install


OURS = Installed(
    "numpy>=2.0",
    'jinja2>=3.1; extra == "extract"',
    "rich[all]>=13.9 ; extra == 'extract'",
    'pylance>=0.20; python_version >= "3.10" and extra == "peers"',
)


def test_everything_that_is_missing_is_installed_at_once(installed):
    """Requirements of the extra and of the core, and none that is there."""
    installed(trace_store=OURS, numpy=Installed())
    line = missing_package(ModuleNotFoundError("x", name="rich.console"), "extract")
    assert line == (
        "the package rich is not installed; "
        "run python -m pip install 'jinja2>=3.1' 'rich[all]>=13.9'"
    )
    installed(trace_store=OURS, jinja2=Installed(), rich=Installed())
    assert advised(missing_package(ModuleNotFoundError("x", name="numpy"), "extract")) == [
        "numpy>=2.0"
    ]
    assert "lance is not installed" in missing_package(
        ModuleNotFoundError("x", name="lance"), "peers"
    )
    assert (
        advised(missing_package(ModuleNotFoundError("x", name="lance"), "peers"))[-1]
        == "pylance>=0.20"
    )


def test_without_an_extra_only_the_core_is_named(installed):
    """What needs no extra is a requirement of the core; packages of an extra are bugs there."""
    installed(trace_store=OURS)
    line = missing_package(ModuleNotFoundError("x", name="numpy"))
    assert line == "the package numpy is not installed; run python -m pip install 'numpy>=2.0'"
    assert missing_package(ModuleNotFoundError("x", name="rich")) is None
    installed()
    line = missing_package(ModuleNotFoundError("x", name="rich"))
    assert advised(line) == [str(ROOT)]


@pytest.mark.parametrize(
    "name", ["train.reprot", "store", "models.mine", "benchmarks.x", "markupsafe", None]
)
def test_other_imports_are_bugs(installed, name):
    """Of our own modules, and of packages that are none of ours to install: their traceback
    stays."""
    installed(trace_store=OURS)
    assert missing_package(ModuleNotFoundError("x", name=name), "extract") is None


def test_a_checkout_that_is_not_installed_is_named_by_its_path(installed, monkeypatch):
    """The same where another distribution has the name."""
    for distributions in ({}, {"trace_store": Installed("requests")}):
        installed(**distributions)
        line = missing_package(ModuleNotFoundError("x", name="rich"), "extract")
        assert advised(line) == [f"{ROOT}[extract]"]
        assert missing_package(ModuleNotFoundError("x", name="train.reprot"), "extract") is None
        assert missing_package(ModuleNotFoundError("x"), "extract") is None
    assert "'" in line  # a shell would take the brackets for a pattern
    monkeypatch.setattr(extras, "find_checkout", lambda: None)
    line = missing_package(ModuleNotFoundError("x", name="lightning_fabric"), "extract")
    assert advised(line) == ["lightning-fabric"]


def test_no_message_installs_from_an_index_by_our_name():
    """There is no such distribution in one."""
    for path in ROOT.glob("*/**/*.py"):
        if path.is_relative_to(ROOT / "tests") or ".venv" in path.parts:
            continue
        assert not re.search(r"pip install '?trace-store", path.read_text()), path


def test_the_checkout_is_found(monkeypatch, tmp_path):
    """Site-packages is none."""
    assert find_checkout() == ROOT
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site-packages" / "store" / "extras.py"))
    assert find_checkout() is None


def test_the_version(installed, capsys):
    """That of the distribution and of the format; a checkout that is not installed has none."""
    assert version_text() == f"trace-store {version('trace-store')} (format 2)"
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"{version_text()}\n"
    installed()
    assert version_text() == "trace-store unknown (a checkout, format 2)"
