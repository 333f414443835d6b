"""`python -m store launch --engine slurm`: the scripts, run by a cluster that is a script too."""

import json
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
# which refuses each part, once the test lets it
WAITING_STUB = """\
#!/bin/sh
while [ ! -e {go} ]; do sleep 0.02; done
echo "$@" >> {calls}
exit 2
"""


@pytest.fixture
def launch(tmp_path, arrays):
    """Launch an import of three parts; return the exit status."""

    def run(*options):
        (tmp_path / "it's here").mkdir(exist_ok=True)
        job = ["import", str(tmp_path / "it's here" / "100%.zarr"), str(arrays), "--map", MAP]
        return main(["launch", "--engine", "slurm", "--parts", "3", *options, "--", *job])

    return run


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Have a script run in place of Python, which writes its calls down; return their file."""

    def write(script):
        calls, path = tmp_path / "calls", tmp_path / "python"
        path.write_text(script.format(calls=calls, go=tmp_path / "go"))
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))
        return calls

    return write


def wait_for(path):
    end_s = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end_s, f"no {path}"
        time.sleep(0.02)


def test_parts_are_an_array_and_the_merge_is_behind_it(launch, slurm, stub, tmp_path, capsys):
    """A part is tried again, but not one that is whole; nothing is submitted twice."""
    calls = stub(STUB)
    assert launch("--retries", "1", "--workers", "2") == 0
    said = "3 parts submitted as job 100, the merge behind them as job 101"
    assert said in capsys.readouterr().out
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
    found = "0 of 3 parts are whole; in the queue: job 101 (the merge); nothing was submitted\n"
    assert capsys.readouterr().out == found
    assert len(list(slurm.iterdir())) == 2


def test_an_answer_of_sbatch_that_was_lost_submits_nothing_twice(
    launch, slurm, stub, tmp_path, capsys
):
    """Nor a launch that was killed before it: the queue knows, and only the merge is missing."""
    calls = stub(WAITING_STUB)
    sbatch = tmp_path / "bin" / "sbatch"
    works = sbatch.read_text()
    is_lost = (
        "for last; do :; done; case $last in *parts.sbatch*) echo timed out >&2; exit 1;; esac"
    )
    sbatch.write_text(works + is_lost)  # it is in the queue all the same
    assert launch() == 2
    assert "found 1: timed out\n" in capsys.readouterr().err
    sbatch.write_text(works)
    assert launch() == 0
    assert capsys.readouterr().out == (
        "0 of 3 parts are whole; in the queue: job 100 (parts); the merge was submitted behind "
        "them as job 101\n"
    )
    assert launch() == 0
    assert "job 100 (parts), job 101 (the merge); nothing was" in capsys.readouterr().out
    assert json.loads((slurm / "101" / "options").read_text())["dependency"] == "afterany:100"
    (tmp_path / "go").touch()
    wait_for(slurm / "101" / "ended")
    assert len(list(slurm.iterdir())) == 2
    made = calls.read_text().splitlines()  # of 1 attempt
    assert [line.split()[3] for line in made] == ["import"] * 3 + ["merge"]


@pytest.mark.parametrize(
    "script, found",
    [
        ("parts.sbatch", "sbatch: expected exit status 0, found 1: full"),
        (
            "merge.sbatch",
            "found 1: full; the parts are in the queue as job 100; the same command goes",
        ),
    ],
)
def test_what_sbatch_says_is_shown(launch, slurm, tmp_path, capsys, script, found):
    """In one line; without the merge it says which job the parts are."""
    sbatch = tmp_path / "bin" / "sbatch"
    refuses = f"#!/bin/sh\ncase $* in *{script}*) echo full >&2; exit 1;; esac\n"
    sbatch.write_text(refuses + sbatch.read_text())
    assert launch() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert found in line


def test_the_scripts_are_printed(launch, capsys):
    """With what was asked for, and nothing is submitted; bash can read them."""
    options = ("--gpus-per-part", "2", "--sbatch=--time=8:00:00", "--workers", "5")
    options += ("--sbatch=--comment=two words", "--sbatch=-p gpu", "--sbatch=--exclusive")
    assert launch("--print", *options) == 0
    printed = capsys.readouterr().out
    assert "#SBATCH --array=1-3%5\n" in printed
    assert "#SBATCH --gres=gpu:2\n" in printed
    for line in ("--time=8:00:00", "--comment='two words'", "-p gpu", "--exclusive"):
        assert printed.count(f"#SBATCH {line}\n") == 2
    assert '--part "$SLURM_ARRAY_TASK_ID/3" "$part" ' in printed
    subprocess.run(["bash", "-n"], input=printed, text=True, check=True)
