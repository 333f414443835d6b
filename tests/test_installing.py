"""What an installation has: console commands, type information, and no benchmarks."""

import configparser
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


def run_command(config, name, arguments, folder):
    """Run a console command as its script does: without the current folder on the path (`-P`)."""
    lines = config["options.entry_points"]["console_scripts"].split("\n")
    target = next(line.partition(" = ")[2] for line in lines if line.startswith(f"{name} = "))
    module, _, function = target.partition(":")
    script = folder / "bin" / name
    script.parent.mkdir(exist_ok=True)
    script.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    return subprocess.run(
        [sys.executable, "-P", script, *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["trace-store", "trace-train"])
def test_console_commands_ignore_modules_of_the_current_folder(config, folder, name):
    """A `train.py` of the user hides nothing from them."""
    done = run_command(config, name, ["--help"], folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


@pytest.mark.slow
def test_a_console_command_trains_beside_modules_of_the_current_folder(config, folder):
    """The whole of it, with every import on the way."""
    arguments = ["--max-traces", "60", "--epochs", "1", "--models", "lstm_solo", "--force-cpu"]
    done = run_command(config, "trace-train", arguments, folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "runs" / "example" / "results.json").is_file()
    done = run_command(config, "trace-store", ["verify", "data/example.zarr"], folder)
    assert done.returncode == 0, done.stderr


def test_console_commands_call_themselves_by_their_name(config, folder):
    """So that what a message advises to run works where it was typed."""
    done = run_command(config, "trace-store", ["info", "nowhere"], folder)
    assert done.returncode == 2
    assert done.stderr.startswith("trace-store info: nowhere: ")


def test_every_package_has_its_types_installed(config):
    """PEP 561: without py.typed a type checker ignores the annotations."""
    include = config["options.packages.find"]["include"].split()
    assert include == ["store*", "models*", "train*"]
    for package in ("store", "models", "train"):
        assert (ROOT / package / "py.typed").is_file()
        assert "py.typed" in config["options.package_data"][package]
