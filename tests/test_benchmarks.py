"""Every benchmark runs, on little data, and leaves its CSV."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SIZES = {
    "peers": ["--size-mb", "40"],
    "legacy": ["--size-mb", "100"],
    "cache_sizes": ["--size-mb", "4"],
    "codecs": ["--size-mb", "1"],
    "decode": ["--size-mb", "8"],
    "cold": ["--size-mb", "40"],
    "workers": ["--size-mb", "40"],
    "small_records": ["--size-mb", "2"],
    "partial": ["--size-mb", "60"],
    "imports": ["--size-mb", "100"],
    "write": ["--size-mb", "20"],
    "verify": ["--size-mb", "40"],
    "checked": ["--size-mb", "40"],
    "index": ["--max-ids", "10000"],
    "graphs": ["--traces", "3", "--tokens", "10", "--layers", "2", "--hidden-size", "16"],
    "scale": ["--size-mb", "500"],
    "training": ["--size-mb", "1", "--threads", "1"],
}


def test_every_benchmark_is_tried():
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"__init__", "harness"}
    assert names == set(SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_benchmark_runs(name, tmp_path):
    command = [
        sys.executable,
        "-m",
        f"benchmarks.{name}",
        "--dir",
        tmp_path / "data",
        "--results",
        tmp_path,
        "--epochs",
        "1",
    ]
    done = subprocess.run([*command, *SIZES[name]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / f"{name}.csv").read_text().splitlines()
    assert lines[0].startswith(f"# python -m benchmarks.{name}")
    assert len(list(csv.DictReader(line for line in lines if not line.startswith("#")))) >= 1
