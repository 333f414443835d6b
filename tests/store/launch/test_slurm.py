"""`python -m store launch --engine slurm`: the scripts, run by a cluster that is a script too."""

import subprocess
import sys
import time

import pytest
from launching import MAP

from store.cli.main import main
from store.launch.job import parts_folder

# what python does in the scripts: part 2 fails at first, part 3 always
STUB = """\
#!/bin/bash
echo "$@" >> {calls}
echo "says $5"
[ "$4" = merge ] && exit 1
[ "$6" = 3/3 ] && exit 9
[ "$6" = 2/3 ] && [ ! -e {calls}.tried ] && touch {calls}.tried && exit 9
touch "$7.part.json"
exit 1
"""


@pytest.fixture
def launch(tmp_path, arrays):
    """Launch an import of three parts; return the exit status."""

    def run(*options):
        (tmp_path / "it's here").mkdir(exist_ok=True)
        job = ["import", str(tmp_path / "it's here" / "100%.zarr"), str(arrays), "--map", MAP]
        return main(["launch", "--engine", "slurm", "--parts", "3", *options, "--", *job])

    return run


def wait_for(path):
    end_s = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end_s, f"no {path}"
        time.sleep(0.02)


def test_parts_are_an_array_and_the_merge_is_behind_it(
    launch, slurm, tmp_path, monkeypatch, capsys
):
    """A part is tried again, but not one that is whole; nothing is submitted twice."""
    calls = tmp_path / "calls"
    stub = tmp_path / "python"
    stub.write_text(STUB.format(calls=calls))
    stub.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", str(stub))
        assert launch("--retries", "1", "--workers", "2") == 0
    assert "3 parts submitted as job 100, the merge behind them as job 101" in (
        capsys.readouterr().out
    )
    wait_for(slurm / "101" / "ended")
    made = calls.read_text().splitlines()
    assert sorted(line.split()[5] for line in made[:-1]) == ["1/3", "2/3", "2/3", "3/3", "3/3"]
    assert made[-1].startswith("-P -m store merge ")
    folder = parts_folder(tmp_path / "it's here" / "100%.zarr")
    logs = {log.name: log.read_text().count("says") for log in folder.glob("*.log")}
    names = [f"part-000{k}-of-0003.log" for k in (1, 2, 3)]
    assert logs == {**dict(zip(names, (1, 2, 2), strict=True)), "merge.log": 1}

    (slurm / "101" / "ended").unlink()
    for record in folder.glob("*.part.json"):
        record.unlink()
    assert launch() == 0
    assert "0 of 3 parts are whole; jobs 101 are in the queue" in capsys.readouterr().out
    assert len(list(slurm.iterdir())) == 2


def test_the_scripts_are_printed(launch, capsys):
    """With what was asked for, and nothing is submitted; bash can read them."""
    options = ("--gpus-per-part", "2", "--sbatch=--time=8:00:00", "--workers", "5")
    assert launch("--print", *options) == 0
    printed = capsys.readouterr().out
    assert "#SBATCH --array=1-3%5\n" in printed
    assert "#SBATCH --gres=gpu:2\n" in printed
    assert printed.count("#SBATCH --time=8:00:00\n") == 2
    assert '--part "$SLURM_ARRAY_TASK_ID/3" "$part" ' in printed
    subprocess.run(["bash", "-n"], input=printed, text=True, check=True)


def test_without_slurm_it_says_so(launch, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    assert launch() == 2
    assert "sbatch: expected SLURM's command, found none; run this where" in capsys.readouterr().err


def test_what_sbatch_says_is_shown(launch, slurm, tmp_path, capsys):
    """In one line."""
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text("#!/bin/sh\necho error: Invalid partition >&2\nexit 1\n")
    assert launch() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("sbatch: expected exit status 0, found 1: error: Invalid partition")
