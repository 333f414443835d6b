"""`python -m store launch` on processes of this machine, and what is wrong with a launch."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import MAP, write_arrays
from small import refused

from store import TraceStore
from store.cli.launch import parse_job
from store.cli.main import main
from store.errors import SchemaError
from store.launch.driver import held
from store.launch.engine import Workers
from store.launch.job import parts_folder
from store.launch.on_processes import share_out
from store.launch.task import last_line


@pytest.fixture
def launch(arrays, tmp_path, forked):
    """Launch an import into `o.zarr`; return the exit status."""

    def run(*options, n_parts=2):
        job = ["import", str(tmp_path / "o.zarr"), str(arrays), "--map", MAP]
        parts = ["--parts", str(n_parts)]
        return main(["launch", "--engine", "processes", *parts, *options, "--", *job])

    return run


def test_a_launch_makes_what_the_parts_make_one_by_one(launch, make_part, tmp_path, capfd):
    """Whose labels are counted; and nothing, when it is repeated."""
    assert launch("--workers", "2") == 0
    assert "  labels: 4 hallucinations, 8 right\n" in capfd.readouterr().out
    names = [str(tmp_path / f"{k}.zarr") for k in (1, 2)]
    for k, name in enumerate(names, 1):
        make_part(name, f"{k}/2")
    assert main(["merge", str(tmp_path / "m.zarr"), *names]) == 0
    made, expected = (TraceStore.open(tmp_path / name) for name in ("o.zarr", "m.zarr"))
    assert list(made.ids) == list(expected.ids)
    assert (made.column("hs_last") == expected.column("hs_last")).all()
    capfd.readouterr()
    assert launch() == 0
    assert "it was there already" in capfd.readouterr().out


def test_a_full_disk_in_one_part_stops_no_other(launch, tmp_path, monkeypatch, capfd):
    """It is tried again, then shown with its log; the same command goes on with it alone."""
    from store.cli import import_

    build = import_.build_store

    def fill(path, *arguments, **options):
        if "0002-of" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return build(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr("store.launch.task.PAUSE_S", 0.0)
        patched.setattr(import_, "build_store", fill)
        assert launch("--retries", "1", n_parts=3) == 1
    captured = capfd.readouterr()
    log = parts_folder(tmp_path / "o.zarr") / "part-0002-of-0003.log"
    assert "part 2/3: exit status 75; given up; " in captured.err
    assert "No space left on device" in captured.err
    assert f"; see {log}\n" in captured.err
    assert "1 part failed (2), 2 of 3 are whole" in captured.out
    assert not (tmp_path / "o.zarr").exists()
    assert launch(n_parts=3) == 0
    assert len(TraceStore.open(tmp_path / "o.zarr")) == 12
    assert log.read_text().count("--- attempt") == 3
    assert log.with_name("part-0001-of-0003.log").read_text().count("--- attempt") == 1


def test_a_mistake_is_not_tried_again(launch, tmp_path, monkeypatch, capfd):
    """The next attempt would make it too."""

    def refuse(path, *arguments, **options):
        raise SchemaError(f"{path}: wrong")

    monkeypatch.setattr("store.cli.import_.build_store", refuse)
    assert launch("--retries", "5") == 1
    captured = capfd.readouterr()
    assert captured.err.count("exit status 2; given up; ") == 2
    log = parts_folder(tmp_path / "o.zarr") / "part-0001-of-0002.log"
    assert log.read_text().count("--- attempt") == 1


def test_a_part_of_unreadable_files_alone_is_an_empty_one(forked, tmp_path, capfd):
    """What is left out of it is told, as an import of all files would."""
    files = write_arrays(tmp_path / "x")
    whole = (files / "2.npz").read_bytes()
    (files / "2.npz").write_bytes(whole[: len(whole) // 2])
    job = ["import", str(tmp_path / "o.zarr"), str(files), "--map", MAP]
    assert main(["launch", "--engine", "processes", "--parts", "4", "--", *job]) == 1
    assert "  1 file or record left out; the logs of 1 part in" in capfd.readouterr().out
    assert len(TraceStore.open(tmp_path / "o.zarr")) == 9


def test_a_part_that_cannot_be_started_stops_no_other(launch, tmp_path, capfd):
    log = parts_folder(tmp_path / "o.zarr") / "part-0001-of-0002.log"
    log.mkdir(parents=True)
    assert launch("--retries", "0") == 1
    assert "part 1/2: [Errno 21] Is a directory" in capfd.readouterr().err
    assert log.with_name("part-0002-of-0002.zarr").is_dir()


def test_a_launch_that_is_stopped_ends_its_parts(launch, tmp_path, monkeypatch, capfd):
    """They commit what is whole; it says how to go on."""

    def hang(*_, **__):
        (tmp_path / str(os.getpid())).touch()
        time.sleep(60)

    def stop(*_):
        while len(list(tmp_path.glob("[0-9]*"))) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr("store.cli.import_.build_store", hang)
    monkeypatch.setattr("store.launch.driver.Parts.text", stop)
    monkeypatch.setattr("store.cli.progress.LOG_S", 0.0)
    assert launch("--workers", "2") == 130
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.endswith("launch: stopped; whole parts are kept; the same command goes on")
    for pid in map(int, (path.name for path in tmp_path.glob("[0-9]*"))):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    for log in parts_folder(tmp_path / "o.zarr").glob("*.log"):
        assert last_line(log) == ["python -m store import: stopped"]


def test_a_part_ends_with_the_process_that_started_it(tmp_path):
    """Also when that is killed."""
    code = (
        "import os, sys, time; from store.system import end_with_parent; parent = os.getpid()\n"
        "if not os.fork(): end_with_parent(parent); print(1, flush=True); time.sleep(60)\n"
        "os.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout.readline()  # it watches its parent
        parent.kill()
        assert parent.stdout.read() == ""  # the child, which has this pipe too, is gone


def test_a_second_launch_of_the_same_store_is_refused(launch, tmp_path, capfd):
    with held(parts_folder(tmp_path / "o.zarr")):
        assert launch() == 2
    assert "another launch makes these parts" in capfd.readouterr().err
    assert not parts_folder(tmp_path / "o.zarr").exists()


def test_another_command_does_not_go_on(launch, make_part, tmp_path, capfd):
    """Nor one with another number of parts; both name the part, and change nothing."""
    folder = parts_folder(tmp_path / "o.zarr")
    folder.mkdir()
    make_part(folder / "part-0001-of-0002.zarr", "1/2", "--columns", "label")
    assert launch() == 2
    assert "found part 1/2 of another command; move it away, repeat" in capfd.readouterr().err
    assert launch(n_parts=3) == 2
    assert len(list(folder.iterdir())) == 2


def test_changed_files_do_not_go_on(forked, tmp_path, monkeypatch, capfd):
    """Neither with the parts of the old ones, nor as if the store held the new ones."""
    monkeypatch.chdir(tmp_path)
    files = write_arrays(tmp_path / "x")
    command = ["launch", "--engine", "processes", "--parts", "2", "--", "import", "o.zarr", "x"]
    command += ["--map", MAP]
    assert main(command) == 0
    (files / "1.npz").write_bytes((files / "0.npz").read_bytes())
    for move in (lambda: None, lambda: Path("o.zarr").rename("old.zarr")):
        move()
        assert main(command) == 2
        assert "found part 1/2 of other inputs, or of inputs that were" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["judge.txt", "source_info.jsonl", "q.jsonl"])
def test_parts_know_every_file_that_decides_them(tmp_path, monkeypatch, name):
    """Also a template that is named, and the sources that RAGTruth has beside its responses."""
    monkeypatch.chdir(tmp_path)
    questions = [{"question_id": name, "question": "?", "answers": []} for name in "ab"]
    Path("q.jsonl").write_text("\n".join(map(json.dumps, questions)))
    Path("source_info.jsonl").write_text('{"source_id": "1"}\n')
    Path("judge.txt").write_text("{answer}: yes or no?")
    command = ["--", "extract", "o.zarr", "--model", "m", "--questions", "q.jsonl"]
    command += ["--labels", "judge", "--judge-model", "m", "--judge-template", "judge.txt"]
    key = parse_job(command, 2).key
    assert parse_job(command, 2).key == key
    Path(name).write_text(Path(name).read_text() + "\n")
    assert parse_job(command, 2).key != key


def test_a_mistake_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, golden_lines):
    """Before anything is made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "s.zarr").mkdir()
    (tmp_path / "s.zarr/zarr.json").touch()
    (tmp_path / "there").mkdir()
    write_arrays(tmp_path / "x")
    question = '{{"question_id": "{}", "question": "?", "answers": []}}\n'
    (tmp_path / "q").write_text("".join(map(question.format, "abc")))
    before = sorted(tmp_path.iterdir())
    engine = ["launch", "--engine", "processes", "--parts", "2"]

    def refuse(arguments):
        words = arguments.split()
        line = refused(capsys, *([] if "merge" in words[:1] else engine), *words)
        assert sorted(tmp_path.iterdir()) == before
        return line.removesuffix("\n").replace(str(tmp_path), "HERE")

    golden_lines("mistakes.txt", refuse)


def test_each_part_has_gpus_and_cores_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,GPU-a,7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    assert share_out(Workers(None, most=9, gpus_per_part=2)) == [
        {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "3,5"},
        {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "GPU-a,7"},
    ]
