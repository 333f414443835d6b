"""Progress in logs and on terminals."""

import io
from types import SimpleNamespace

import pytest

from store.cli import progress as module
from store.reports import count


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def lines_of(monkeypatch):
    """Function: what is shown on a stream of `(seconds, *done)`."""

    def show(events, stream, **settings):
        now_s = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
        monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=stream))
        with module.Progress(**settings) as progress:
            for seconds, *done in events:
                now_s = 1000.0 + seconds
                progress(*done)
        return stream.getvalue()

    return show


def test_a_log_gets_a_line_a_minute(lines_of):
    """The first after a minute: traces, per cent, speed and what is left."""
    events = [(second, 10 * second) for second in range(10, 200)]
    shown = lines_of(events, io.StringIO(), share=lambda done: done / 4000).splitlines()
    assert shown == [
        "600 traces, 10.0 traces/s, 15%, 0:05:40 left",
        "1,200 traces, 10.0 traces/s, 30%, 0:04:40 left",
        "1,800 traces, 10.0 traces/s, 45%, 0:03:40 left",
    ]


def test_the_speed_is_that_of_this_process(lines_of):
    """What a run before it did is no speed."""
    events = [(100, 9001), (130, 9031), (160, 9061)]
    shown = lines_of(events, io.StringIO(), share=lambda done: done / 10_000).splitlines()
    assert shown == ["9,001 traces, 90%", "9,061 traces, 1.0 traces/s, 91%, 0:15:39 left"]


def test_bytes_have_a_speed(lines_of):
    events = [(0, 0, 10**9), (60, 6 * 10**8, 10**9)]
    shown = lines_of(
        events,
        io.StringIO(),
        share=lambda done, n_bytes: done / n_bytes,
        text=lambda done, n_bytes: f"{done / 1e9} GB",
        unit="MB",
        unit_size=1e6,
    )
    assert shown == "0.6 GB, 10.0 MB/s, 60%, 0:00:40 left\n"


def test_a_short_command_prints_nothing(lines_of):
    assert lines_of([(1, 1), (59, 2)], io.StringIO(), share=lambda done: done / 2) == ""


def test_a_terminal_has_one_line_that_is_cleared(lines_of):
    """It changes a few times a second, and shows no speed."""
    shown = lines_of(
        [(0.1, 1), (0.3, 2), (0.4, 3), (0.6, 4)], Terminal(), share=lambda done: done / 8
    )
    assert shown == "\r\033[K2 traces, 25%, 0:00:01 left\r\033[K4 traces, 50%, 0:00:01 left\r\033[K"


@pytest.mark.parametrize(
    "n, expected", [(0, "0 stores"), (1, "1 store"), (2, "2 stores"), (12345, "12,345 stores")]
)
def test_counts_know_one_from_many(n, expected):
    assert count(n, "store") == expected
    assert count(n, "query", "queries") == expected.replace("stores", "queries").replace(
        "store", "query"
    )
