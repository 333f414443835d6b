"""Which part is run next, how often one is tried, and how far all of them are."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from launching import MAP, write_arrays

from store.cli.launch import parse_job
from store.cli.main import main
from store.launch.driver import Launch, Standing

FAILED, MISTAKE, WHOLE = 1, 2, 0


class Attempts:
    """An engine whose attempts end at once, as they are told to; it knows when they began."""

    def __init__(self, clock, n_workers, ends):
        self.n_workers = n_workers
        self.begun = []
        self._clock = clock
        self._ends = ends

    def submit(self, task):
        self.begun.append((task.part, self._clock.now_s))
        status = self._ends.get(task.part, FAILED)
        if status == WHOLE:
            assert main(list(task.arguments)) == 0
        future = Future()
        future.set_result(status)
        return future


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run six parts by a clock that only sleep moves; when each began, and which failed."""
    arrays = write_arrays(tmp_path / "files", 6)
    clock = SimpleNamespace(now_s=0.0)
    time = SimpleNamespace(
        monotonic=lambda: clock.now_s,
        sleep=lambda seconds: setattr(clock, "now_s", clock.now_s + seconds),
    )
    monkeypatch.setattr("store.launch.driver.time", time)

    def run_parts(ends, *, retries, n_workers=1, n_parts=6):
        arguments = ["--", "import", str(tmp_path / "o.zarr"), str(arrays), "--map", MAP]
        engine = Attempts(clock, n_workers, ends)
        launch = Launch(parse_job(arguments, n_parts), engine, retries, print)
        launch.run(lambda *_: None)
        return engine.begun, launch.failed

    return run_parts


def test_a_part_that_fails_comes_again_behind_the_others(run):
    """Not before a pause, which grows; and no more often than was asked for."""
    begun, failed = run({}, retries=2, n_parts=2)
    assert [part for part, _ in begun] == [1, 2] * 3
    assert [time_s for part, time_s in begun if part == 1] == [0.0, 1.0, 3.0]
    assert failed == [1, 2]


def test_a_mistake_is_final(run):
    begun, failed = run({1: MISTAKE}, retries=1, n_parts=2)
    assert [part for part, _ in begun] == [1, 2, 2]
    assert failed == [1, 2]


def test_a_command_that_fails_in_each_part_is_not_tried_in_all(run):
    """Three parts are given up before one is whole."""
    begun, failed = run({}, retries=0)
    assert [part for part, _ in begun] == failed == [1, 2, 3]


def test_a_part_that_becomes_whole_shows_that_the_command_works(run):
    """It was started with the others that failed; what is left is tried then."""
    begun, failed = run({4: WHOLE}, retries=0, n_workers=4)
    assert [part for part, _ in begun] == [1, 2, 3, 4, 5, 6]
    assert sorted(failed) == [1, 2, 3, 5, 6]


@pytest.mark.parametrize(
    ("whole", "rows", "running", "share"),
    [(0, 0, (5,), 0.0), (1, 10, (), 0.25), (2, 20, (5, 30), (2 + 0.5 + 0.99) / 4), (4, 0, (), 1.0)],
)
def test_running_parts_count_by_their_traces(whole, rows, running, share):
    assert Standing(4, whole, len(running), 0, rows, running).share == share


def test_the_standing_in_words():
    standing = Standing(16, 3, 2, 1, 1200, (30, 4))
    assert standing.text() == "3 of 16 parts, 2 at work, 1 failed, 1,234 traces"
