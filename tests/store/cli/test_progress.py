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

    def show(events, stream, make=module.Progress, **settings):
        now_s = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
        monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=stream))
        with make(**settings) as progress:
            for seconds, *done in events:
                now_s = 1000.0 + seconds
                progress(*done)
        return stream.getvalue()

    return show


@pytest.mark.parametrize(
    ("events", "n_all", "shown"),
    [
        pytest.param(
            [(second, 10 * second) for second in range(10, 200)],
            4000,
            "600 traces, 10.0 traces/s, 15%, 0:05:40 left\n"
            "1,200 traces, 10.0 traces/s, 30%, 0:04:40 left\n"
            "1,800 traces, 10.0 traces/s, 45%, 0:03:40 left\n",
            id="a line a minute, the first after a minute",
        ),
        pytest.param(
            [(100, 9001), (130, 9031), (160, 9061)],
            10_000,
            "9,001 traces, 90%\n9,061 traces, 1.0 traces/s, 91%, 0:15:39 left\n",
            id="what a run before this one did is no speed",
        ),
        pytest.param([(1, 1), (59, 2)], 2, "", id="a short command prints nothing"),
    ],
)
def test_a_log_gets_a_line_a_minute(lines_of, events, n_all, shown):
    """Traces, per cent, speed and what is left."""
    assert lines_of(events, io.StringIO(), share=lambda done: done / n_all) == shown


def test_bytes_have_a_speed(lines_of):
    events = [(0, 0, 10**9), (60, 6 * 10**8, 10**9)]
    of_bytes = module.Progress.of_bytes
    shown = lines_of(events, io.StringIO(), of_bytes, text=lambda done, _: f"{done / 1e9} GB")
    assert shown == "0.6 GB, 10.0 MB/s, 60%, 0:00:40 left\n"


def test_a_terminal_has_one_line_that_is_cleared(lines_of):
    """It changes a few times a second."""
    events = [(0.1, 1), (0.3, 2), (0.4, 3), (0.6, 4)]
    shown = lines_of(events, Terminal(), share=lambda done: done / 8)
    lines = [
        "2 traces, 5.0 traces/s, 25%, 0:00:01 left",
        "4 traces, 6.0 traces/s, 50%, 0:00:01 left",
    ]
    assert shown == "".join(f"\r\033[K{line}" for line in [*lines, ""])


@pytest.mark.parametrize(("n", "text"), [(0, "0 {}"), (1, "1 {}"), (12345, "12,345 {}")])
def test_counts_know_one_from_many(n, text):
    assert count(n, "store") == text.format("store" if n == 1 else "stores")
    assert count(n, "query", "queries") == text.format("query" if n == 1 else "queries")
