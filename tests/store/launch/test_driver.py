"""Which parts are run, when one is given up or tried again, and how far all of them are."""

import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from launching import MAP, write_arrays

from store.cli.launch import parse_job
from store.cli.main import main
from store.extras import version_text
from store.launch.driver import Parts
from store.launch.engine import Workers, open_engine
from store.launch.job import Task
from store.launch.task import AttemptError, run_task
from store.write.build import partial_path

FAILED, WHOLE, RUNNING = 1, 0, None


class Ended:
    """A process that has ended."""

    def __init__(self, status):
        self.status = status

    def wait(self, *_):
        return self.status

    poll = wait


class Ends:
    """An engine that ends each part at once, or when `end` is called, as it was told to."""

    def __init__(self, n_workers, ends):
        self.n_workers = n_workers
        self.begun = []
        self._ends = ends
        self._running = []

    def submit(self, task):
        number = int(task.store.name[5:9])
        self.begun.append(number)
        end = self._ends.get(number, FAILED)
        future = Future()
        if end is RUNNING:
            main(list(task.arguments))
            task.store.rename(partial_path(task.store))
            Path(f"{task.store}.part.json").unlink()
            self._running.append(future)
            return future
        if end == WHOLE:
            assert main(list(task.arguments)) == 0
        future.set_result(end)
        return future

    def end(self):
        while self._running:
            self._running.pop().set_result(FAILED)


@pytest.fixture
def run(tmp_path):
    """Run parts to given ends; the order in which they began, those given up, and reports."""

    def run_parts(ends, *, n_workers=1, n_parts=6):
        arrays = write_arrays(tmp_path / "files", n_parts)
        arguments = ["--", "import", str(tmp_path / "o.zarr"), str(arrays), "--map", MAP]
        engine = Ends(n_workers, ends)
        launch = Parts(parse_job(arguments, n_parts), engine, print)
        reports = []

        def report(n_rows, found):
            reports.append((n_rows, round(found.share, 4), found.text()))
            engine.end()

        launch.run(report)
        return engine.begun, launch.failed, reports

    return run_parts


def test_a_part_that_fails_stops_no_other(run):
    """Each is tried, whatever becomes of the others."""
    begun, failed, _ = run({4: WHOLE}, n_workers=2)
    assert begun == [1, 2, 3, 4, 5, 6]
    assert sorted(failed) == [1, 2, 3, 5, 6]


def test_running_parts_count_by_their_traces(run, monkeypatch):
    """But never as done, and not before one is whole."""
    monkeypatch.setattr("store.launch.driver.LOOK_S", 0.0)
    _, _, reports = run({1: WHOLE, 3: RUNNING, 4: WHOLE}, n_parts=4)
    assert reports == [
        (3, 0.25, "1 of 4 parts, 3 traces"),
        (3, 0.25, "1 of 4 parts, 1 failed, 3 traces"),
        (6, 0.4975, "1 of 4 parts, 1 running, 1 failed, 6 traces"),
        (3, 0.25, "1 of 4 parts, 2 failed, 3 traces"),
        (6, 0.5, "2 of 4 parts, 2 failed, 6 traces"),
    ]


@pytest.fixture
def attempts(tmp_path, monkeypatch):
    """A part whose attempts end with given statuses, and those that have not begun."""
    task = Task((), tmp_path / "p.zarr", Path.cwd(), version_text())

    def end_with(*statuses):
        left = list(statuses)
        monkeypatch.setattr("store.launch.task.start_command", lambda *_: Ended(left.pop(0)))
        return task, left

    return end_with


def test_an_engine_tries_again_what_failed(attempts, monkeypatch):
    """As often as was asked for; a pause ends with the engine."""
    monkeypatch.setattr("store.launch.task.PAUSE_S", 0.0)
    task, left = attempts(1, 1, -9, 1)
    with open_engine("processes", Workers(1, most=1, retries=2)) as engine:
        with pytest.raises(AttemptError, match="ended by signal 9"):
            engine.submit(task).result()
        assert len(left) == 1
        monkeypatch.setattr("store.launch.task.PAUSE_S", 60.0)
        future = engine.submit(task)
        while left:
            time.sleep(0.01)
    assert isinstance(future.exception(0), AttemptError)


@pytest.mark.parametrize("status", [2, 130, 143])
def test_a_mistake_is_final_and_so_is_a_stop(attempts, status):
    task, _ = attempts(status)
    assert run_task(task) == status


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({"version": "trace-store 0.0.1"}, "expected trace-store 0.0.1, found trace-store"),
        ({"folder": Path("/nowhere")}, "expected the folder /nowhere of the launch, found none"),
    ],
)
def test_a_worker_of_another_version_makes_no_part(attempts, other, found):
    """Nor one that lacks the folder; another worker may make it."""
    task, _ = attempts()
    with pytest.raises(AttemptError, match=f"worker .*: {found}"):
        run_task(Task(**vars(task) | other))
    assert not task.log.exists()
