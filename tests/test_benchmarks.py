"""Every benchmark runs, on little data, writes its table only where it is told to, and leaves no
data behind."""

import csv
import re
import shlex
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.object_server import find_nginx
from benchmarks.tables import finish

ROOT = Path(__file__).parent.parent
SIZES = {
    "peers": "--size-mb 40",
    "legacy": "--size-mb 100",
    "codecs": "--size-mb 1",
    "cold": "--size-mb 40",
    "row_sizes": "--size-mb 40",
    "tiny_rows": "--size-mb 1",
    "workers": "--size-mb 40",
    "small_records": "--size-mb 2",
    "tokens": "--size-mb 20",
    "partial": "--size-mb 60",
    "write": "--size-mb 20",
    "verify": "--size-mb 40",
    "checked": "--size-mb 40",
    "index": "--max-ids 10000",
    "scale": "--size-mb 500",
    "revisions": "HEAD --size-mb 4 --turn-ms 1 --questions 8",
    "coverage": "--simulations 20 --sizes 30+30",
    "known_signal": "--stores least_logprob --methods mean_logprob",
    "remote": "--size-mb 8",
    "mirrored": "--size-mb 8",
}
# no benchmarks
SHARED = ("__init__", "all", "data", "figures", "flat_copy", "harness")
SHARED += ("object_server", "revision_worker", "signals", "tables")
# tables of questions that nobody asks any more; the command is that of their commit
SETTLED = ("cache_sizes", "decode", "graphs", "images", "imports", "launch", "long_prompts")
SETTLED += ("training",)
SCRIPTS = [path for path in sorted((ROOT / "benchmarks").glob("*.py")) if path.stem not in SHARED]
COMMITTED = ROOT / "benchmarks" / "results"
ROWS = [{"contender": "ours", "GB_per_s": 2.5}, {"contender": "theirs", "GB_per_s": 1.5}]


def test_every_benchmark_is_tried():
    assert {path.stem for path in SCRIPTS} == set(SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_benchmark_runs(name, tmp_path):
    """It leaves its table where it is told to, and nothing else."""
    if name in ("remote", "mirrored") and not (find_nginx() and find_spec("obstore")):
        pytest.skip("nginx or obstore is not installed")
    data, out = tmp_path / "data", tmp_path / "out"
    command = [sys.executable, "-m", f"benchmarks.{name}", "--dir", data, "--output", out]
    command += ["--epochs", "1", *SIZES[name].split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = (out / f"{name}.csv").read_text().splitlines()
    assert lines[0].startswith(f"# python -m benchmarks.{name}")
    assert len(list(csv.DictReader(line for line in lines if not line.startswith("#")))) >= 1
    assert {path.name for path in out.iterdir()} - {f"{name}.png"} == {f"{name}.csv"}
    assert left_in(data) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_benchmark_is_run_by_the_harness(script):
    """Which clears its data and decides where results go."""
    text = script.read_text()
    assert re.search(
        r'^if __name__ == "__main__":\n    run\(main, (parser|options)\(', text, re.MULTILINE
    )
    assert "parse_args" not in text


@pytest.mark.parametrize("table", sorted(COMMITTED.glob("*.csv")), ids=lambda path: path.stem)
def test_committed_tables_name_a_command_that_exists(table):
    """The first line of a table is the command that measures it again."""
    lines = table.read_text().splitlines()
    command = shlex.split(lines[0].removeprefix("# "))
    assert command[:2] == ["python", "-m"]
    if table.stem in SETTLED:
        assert lines[1].startswith("# commit ")
        return
    assert command[2].removeprefix("benchmarks.") in SIZES


def left_in(folder):
    """The files that are left in a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def benchmark(monkeypatch, tmp_path):
    """Run `main` as the benchmark `speed` with the options given, in an empty directory; give its
    exit status."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(tmp_path)

    def run(main, *options):
        monkeypatch.setattr(sys, "argv", ["/benchmarks/speed.py", *map(str, options)])
        try:
            harness.run(main, harness.parser("Is it fast?", size_mb=3))
        except SystemExit as end:
            return end.code
        return 0

    yield run
    signal.signal(signal.SIGTERM, before)


def measure(args):
    """A benchmark that makes a file of data."""
    (args.dir / "data.bin").write_bytes(b"1")
    finish("speed", args.output, ROWS)


def test_a_benchmark_only_prints_its_table(benchmark, tmp_path, capsys):
    """And clears its data."""
    assert benchmark(measure) == 0
    assert left_in(tmp_path) == []
    captured = capsys.readouterr()
    assert "theirs     1.5" in captured.out
    assert "written" not in captured.out


def test_results_go_where_the_user_says(benchmark, tmp_path, capsys):
    """The paths are printed, and the table names the command without the places of files."""
    assert benchmark(measure, "--epochs", 2, "--output", "out", "--dir=elsewhere") == 0
    assert "written: out/speed.csv" in capsys.readouterr().out
    lines = (tmp_path / "out" / "speed.csv").read_text().splitlines()
    assert lines[0] == "# python -m benchmarks.speed --epochs 2"
    assert re.fullmatch(r"# commit (\w+\+?), took \d+ s", lines[1])
    assert lines[4] == "# rows named by: contender"
    assert lines[5:] == ["contender,GB_per_s", "ours,2.5", "theirs,1.5"]


def terminated(args):
    measure(args)
    signal.raise_signal(signal.SIGTERM)


def without_space(args):
    measure(args)
    raise OSError(28, "No space left", "data.bin")


@pytest.mark.parametrize(
    ("main", "status", "said"),
    [
        (terminated, 143, ""),
        (without_space, 2, "python -m benchmarks.speed: [Errno 28] No space left: 'data.bin'"),
    ],
)
def test_data_is_cleared_whatever_ends_a_benchmark(benchmark, tmp_path, capsys, main, status, said):
    """And no more than a line is said."""
    assert benchmark(main) == status
    assert capsys.readouterr().err.splitlines() == ([said] if said else [])
    assert left_in(tmp_path) == []
