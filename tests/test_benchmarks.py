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
SHARED += ("object_server", "program", "revision_worker", "signals", "tables")
# tables of questions that nobody asks any more; the command is that of their commit
SETTLED = ("cache_sizes", "decode", "graphs", "images", "imports", "launch", "legacy")
SETTLED += ("long_prompts", "training")
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
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


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
    finish("speed", args.results, ROWS)


def test_a_benchmark_only_prints_its_table(benchmark, tmp_path, capsys):
    """And clears its data, of which it says where it is."""
    assert benchmark(measure) == 0
    assert not list(tmp_path.iterdir())
    captured = capsys.readouterr()
    assert "theirs     1.5" in captured.out
    assert "written" not in captured.out
    assert re.search(r"^test data: data/benchmarks/speed-\w+, removed in the end", captured.err)


@pytest.mark.parametrize("flag", ["--output", "--results"])
def test_results_go_where_the_user_says(benchmark, tmp_path, capsys, flag):
    """The paths are printed, and the table names the command without the places of files."""
    assert benchmark(measure, "--epochs", 2, flag, "out", "--dir=elsewhere", "--keep") == 0
    assert "written: out/speed.csv" in capsys.readouterr().out
    lines = (tmp_path / "out" / "speed.csv").read_text().splitlines()
    assert lines[0] == "# python -m benchmarks.speed --epochs 2"
    assert re.fullmatch(r"# commit (\w+\+?), took \d+ s", lines[1])
    assert lines[4] == "# rows named by: contender"
    assert lines[5:] == ["contender,GB_per_s", "ours,2.5", "theirs,1.5"]


def test_committed_results_are_replaced_with_save_only(benchmark, tmp_path, monkeypatch, capsys):
    """Not with --output, even where it names their directory."""
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    assert benchmark(measure, "--output", "results/../results") == 2
    assert "results/../results holds the committed results; use --save" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert benchmark(measure, "--save") == 0
    assert (tmp_path / "results" / "speed.csv").exists()


def test_save_is_refused_in_an_installed_copy(benchmark, tmp_path, monkeypatch, capsys):
    """In one line, before anything is measured or made."""
    monkeypatch.setattr(harness, "find_checkout", lambda: None)
    assert benchmark(measure, "--save") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "an installed copy and has no committed results to replace; use --output DIR" in line
    assert not list(tmp_path.iterdir())


def test_kept_data_is_used_again(benchmark, tmp_path):
    """It lies in the directory itself, and a run without --keep leaves it alone."""
    for _ in range(2):
        assert benchmark(measure, "--dir", "kept", "--keep") == 0
    assert benchmark(measure, "--dir", "kept") == 0
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["data.bin"]


def interrupted(args):
    measure(args)
    raise KeyboardInterrupt


def terminated(args):
    measure(args)
    signal.raise_signal(signal.SIGTERM)


def without_space(args):
    measure(args)
    raise OSError(28, "No space left", "data.bin")


@pytest.mark.parametrize(
    ("main", "status", "said"),
    [
        (interrupted, 130, "python -m benchmarks.speed: interrupted"),
        (terminated, 143, ""),
        (without_space, 2, "python -m benchmarks.speed: [Errno 28] No space left: 'data.bin'"),
    ],
)
def test_data_is_cleared_whatever_ends_a_benchmark(benchmark, tmp_path, capsys, main, status, said):
    """And no more than a line is said."""
    assert benchmark(main) == status
    assert capsys.readouterr().err.splitlines()[1:] == ([said] if said else [])
    assert not list(tmp_path.iterdir())


def test_a_bug_in_a_benchmark_is_a_traceback(benchmark, tmp_path):
    """Its data is cleared as well."""

    def broken(args):
        measure(args)
        raise AssertionError("expected the rows that were written")

    with pytest.raises(AssertionError):
        benchmark(broken)
    assert not list(tmp_path.iterdir())


def test_help_says_where_data_and_results_go(benchmark, capsys):
    assert benchmark(measure, "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for sentence in (
        "make test data below DIR and remove it in the end (default data/benchmarks)",
        "leave it there, and use what an earlier --keep left",
        "into DIR (default: only print it)",
        "over the committed one in benchmarks/results of this checkout",
    ):
        assert sentence in text


def test_a_mistake_on_the_command_line_is_one_line(benchmark, capsys):
    assert benchmark(measure, "--sise-mb", 1) == 2
    assert capsys.readouterr().err == (
        "python -m benchmarks.speed: unrecognized arguments: --sise-mb 1; "
        "see python -m benchmarks.speed --help\n"
    )
