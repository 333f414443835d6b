"""Which part comes next, and how far all of them are."""

import pytest

from store.launch.schedule import Schedule, Standing, share_done


def test_a_part_that_fails_comes_again_behind_the_others():
    """Not before a pause, which grows; and no more often than was asked for."""
    schedule = Schedule([1, 2], retries=2)
    assert schedule.next(0.0) == 1
    assert schedule.start(1) == 1
    assert schedule.end(1, 0.0, is_whole=False)
    assert schedule.next(0.0) == 2
    schedule.start(2)
    schedule.end(2, 0.5, is_whole=True)
    assert schedule.next(0.5) is None
    assert schedule.next(1.0) == 1
    assert schedule.start(1) == 2
    assert schedule.end(1, 1.0, is_whole=False)
    assert schedule.next(2.9) is None
    assert schedule.next(3.0) == 1
    schedule.postpone(1, 8.0)  # another process makes it: no attempt of ours
    assert schedule.next(8.0) == 1
    assert schedule.start(1) == 3
    assert schedule.is_open
    assert not schedule.end(1, 9.0, is_whole=False)
    assert schedule.failed == [1]
    assert not schedule.is_open


def test_a_command_that_fails_in_each_part_is_not_tried_in_all():
    """Three parts are given up before one is whole; one that becomes whole then changes it."""
    schedule = Schedule(range(1, 10), retries=0)
    for part in (1, 2, 3, 4):
        assert schedule.next(0.0) == part
        schedule.start(part)
    for part in (1, 2, 3):
        schedule.end(part, 0.0, is_whole=False)
    assert schedule.next(0.0) is None
    assert schedule.is_open
    schedule.end(4, 0.0, is_whole=True)
    assert schedule.next(0.0) == 5
    hopeless = Schedule([1, 2, 3, 4], retries=0)
    for part in (1, 2, 3):
        assert hopeless.next(0.0) == part
        hopeless.start(part)
        hopeless.end(part, 0.0, is_whole=False)
    assert not hopeless.is_open


@pytest.mark.parametrize(
    ("whole", "rows", "running", "share"),
    [(0, 0, (5,), 0.0), (1, 10, (), 0.25), (2, 20, (5, 30), (2 + 0.5 + 0.99) / 4), (4, 0, (), 1.0)],
)
def test_parts_at_work_count_by_their_traces(whole, rows, running, share):
    standing = Standing(4, whole, len(running), 0, rows, running)
    assert share_done(standing) == share


def test_the_standing_in_words():
    standing = Standing(16, 3, 2, 1, 1200, (30, 4))
    assert standing.text() == "3 of 16 parts, 2 at work, 1 failed, 1,234 traces"
