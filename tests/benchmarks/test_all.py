"""All benchmarks with one command."""

from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import all as every

MODULES = sorted({job.split()[0] for job in every.JOBS})


@pytest.fixture
def run(monkeypatch):
    """Runs these jobs with these options; the exit status."""

    def run_jobs(*options, jobs):
        monkeypatch.setattr("sys.argv", ["/benchmarks/all.py", *options])
        monkeypatch.setattr(every, "JOBS", jobs)
        return every.main()

    return run_jobs


def test_a_failure_does_not_stop_the_others(run, capfd):
    """It is named at the end."""
    assert run("--epochs", "1", jobs=("no_such --a", "figures")) == 1
    assert capfd.readouterr().out.endswith("failed: no_such --a\n")


def test_every_benchmark_is_in_it():
    """But for the one that compares two revisions."""
    folder = Path(every.__file__).parent
    scripts = {path.stem for path in folder.glob("*.py") if "    run(main, " in path.read_text()}
    assert set(MODULES) == scripts - {"revisions"}


@pytest.mark.parametrize("module", MODULES)
def test_a_benchmark_imports_what_is_there(module):
    """No other test imports it, so a name that has gone would be missed by nobody but its user."""
    assert import_module(f"benchmarks.{module}").main
