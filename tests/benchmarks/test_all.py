"""All benchmarks with one command: what fails, what is skipped, what changed."""

from importlib import import_module

import pytest

from benchmarks import all as every
from benchmarks import harness
from benchmarks.all import JOBS, Job, is_there
from benchmarks.tables import read_table

HEAD = "# python -m benchmarks.{}\n# main figures: x\n# rows named by: contender\ncontender,x\n"
QUICK = """
import sys
from pathlib import Path
folder = Path(sys.argv[sys.argv.index("--output") + 1])
(folder / "quick.csv").write_text({!r})
(folder / "quick.png").write_text("a picture")
"""
PROGRAMS = {
    "broken": "raise SystemExit(3)",
    "slow": "import time\ntime.sleep(60)",
    "silent": "",
    "quick": QUICK.format(HEAD.format("quick") + "ours,3\ntheirs,1\n"),
}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with four benchmarks, one of which has a committed table."""
    folder = tmp_path / "benchmarks"
    (folder / "results").mkdir(parents=True)
    for name, text in PROGRAMS.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "results" / "quick.csv").write_text(HEAD.format("quick") + "ours,2\ntheirs,1\n")
    monkeypatch.setattr(every, "ROOT", tmp_path)
    monkeypatch.setattr(harness, "RESULTS", folder / "results")
    return tmp_path


def run(monkeypatch, *options, jobs=None):
    """The exit status of these benchmarks, with these options."""
    monkeypatch.setattr("sys.argv", ["/benchmarks/all.py"])
    args = every.options().parse_args(options)
    return every.main(args, jobs or [Job(name) for name in PROGRAMS])


def test_a_failure_does_not_stop_the_others(checkout, monkeypatch, capsys):
    """It is told at the end, after what changed; nothing is written."""
    assert run(monkeypatch, "--limit-s", "2") == 1
    out, err = capsys.readouterr()
    assert "quick      ours  x       2       3    +50.0%" in out
    assert "theirs" not in out
    assert err.splitlines()[-4:-1] == [
        "broken: failed: exit status 3",
        "slow: failed: stopped after 2 s, its limit",
        "silent: failed: wrote no table silent.csv",
    ]
    assert "1 of 4 benchmarks in" in err
    assert "ours,2" in (checkout / "benchmarks" / "results" / "quick.csv").read_text()


def test_what_misses_something_is_skipped(checkout, monkeypatch, capsys):
    """In one word; that is no failure."""
    jobs = [Job("quick"), Job("broken", needs=("a_module_of_nobody",))]
    assert run(monkeypatch, jobs=jobs) == 0
    err = capsys.readouterr().err
    assert "broken: skipped: a_module_of_nobody" in err
    assert "1 of 2 benchmarks in" in err


def test_results_are_replaced_with_save_only(checkout, monkeypatch, capsys):
    """Then the figures of documents are written."""
    written = []
    monkeypatch.setattr(every, "write_figures", written.append)
    assert run(monkeypatch, "--save", jobs=[Job("quick")]) == 0
    assert read_table(harness.RESULTS / "quick.csv").rows[0]["x"] == "3"
    assert {path.name for path in harness.RESULTS.iterdir()} == {"quick.csv", "quick.png"}
    assert written == [every.say]


def test_every_benchmark_is_in_it(capsys, monkeypatch):
    """But for the one that compares two revisions."""
    scripts = {
        path.stem
        for path in (every.ROOT / "benchmarks").glob("*.py")
        if "    run(main, " in path.read_text()
    }
    assert {job.module for job in JOBS} == scripts - {"revisions"}
    assert len({job.name for job in JOBS}) == len(JOBS)
    with pytest.raises(SystemExit):
        run(monkeypatch, "--only", "peers,pears")
    assert "found 'pears'" in capsys.readouterr().err


@pytest.mark.parametrize("module", sorted({job.module for job in JOBS}))
def test_a_benchmark_imports_what_is_there(module):
    """No other test imports it, so a name that has gone would be missed by nobody but its user."""
    needs = {need for job in JOBS if job.module == module for need in job.needs}
    missing = [need for need in needs if not is_there(need)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    assert import_module(f"benchmarks.{module}").main
