"""What an installation has: console commands, type information, and no benchmarks."""

import configparser
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HIDING = ("train.py", "store.py", "models/__init__.py")  # names of our packages in a user's folder


@pytest.fixture
def config():
    """What setup.cfg says."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


@pytest.fixture
def folder(tmp_path):
    """A folder whose modules have the names of our packages, and fail when they are imported."""
    for name in HIDING:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('the module of the user was imported')\n")
    return tmp_path


def run_python(arguments, folder, path=ROOT):
    """Run Python in a folder, with another one on its path."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )


def run_command(name, arguments, folder, path=ROOT):
    """Run a command as it is installed: without the current folder on the path (`-P`)."""
    return run_python(["-P", ROOT / name.removeprefix("trace-") / name, *arguments], folder, path)


def is_installed():
    """Whether Python finds this package without a path that names it."""
    found = run_python(["-P", "-c", "import store; print(store.__file__)"], "/", "")
    return found.stdout.strip() == str(ROOT / "store" / "__init__.py")


def test_the_commands_are_installed(config):
    scripts = config["options"]["scripts"].split()
    assert scripts == ["store/trace-store", "train/trace-train"]
    for script in scripts:
        assert (ROOT / script).read_text().startswith("#!python\n")  # which pip replaces


@pytest.mark.parametrize("name", ["trace-store", "trace-train"])
@pytest.mark.parametrize("path", [str(ROOT), ".", "{}", "elsewhere:{}"])
def test_commands_ignore_modules_of_the_folder_and_on_the_path(folder, name, path):
    """Neither of our names nor of Python's: a `train.py` of the user hides nothing from them."""
    if path != str(ROOT) and not is_installed():
        pytest.skip("expected an installation of this checkout")
    (folder / "argparse.py").write_text("raise SystemExit('the module of the user was imported')")
    done = run_command(name, ["--help"], folder, path.format(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


@pytest.mark.slow
def test_processes_of_a_command_ignore_modules_on_the_path(folder):
    """A launch starts parts as processes of their own."""
    if not is_installed():
        pytest.skip("expected an installation of this checkout")
    for name in "ab":
        (folder / f"{name}.jsonl").write_text(json.dumps({"id": name, "hs": [[1.0]]}) + "\n")
    launch = ["launch", "--engine", "processes", "--parts", "2", "--", "import", "out.zarr"]
    done = run_command(
        "trace-store", [*launch, "a.jsonl", "b.jsonl", "--map", "hs_last=hs"], folder, "."
    )
    assert "the module of the user" not in done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_console_command_trains_beside_modules_of_the_current_folder(folder):
    """The whole of it, with every import on the way."""
    arguments = ["--max-traces", "300", "--epochs", "1", "--models", "lstm_solo", "--force-cpu"]
    done = run_command("trace-train", arguments, folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "runs" / "example" / "results.json").is_file()
    done = run_command("trace-store", ["verify", "data/example.zarr"], folder)
    assert done.returncode == 0, done.stderr


def test_console_commands_call_themselves_by_their_name(folder):
    """So that what a message advises to run works where it was typed."""
    done = run_command("trace-store", ["info", "nowhere"], folder)
    assert done.returncode == 2
    assert done.stderr.startswith("trace-store info: nowhere: ")


def test_every_package_has_its_types_installed(config):
    """PEP 561: without py.typed a type checker ignores the annotations."""
    include = config["options.packages.find"]["include"].split()
    assert include == ["store*", "models*", "train*"]
    for package in ("store", "models", "train"):
        assert (ROOT / package / "py.typed").is_file()
        assert "py.typed" in config["options.package_data"][package]
