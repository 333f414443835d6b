"""What the kernel is asked for ahead of the reads, and what stays in memory."""

import math

import numpy as np
import pytest
from small import one_column

from store import Column, TraceStore
from store.feed.epoch_reads import VisitTimes, is_kept, kept_fraction
from store.feed.order import Batches, EpochOrder
from store.feed.prefetch import Readahead, row_bytes
from store.read.arrays.mapped_file import MappedFile
from store.read.row_reader import RowReader


@pytest.mark.parametrize(
    "budget_bytes, is_cached, expected",
    [(1, False, range(40)), (0, False, []), (10**9, True, [])],
)
def test_cold_rows_are_asked_for_once_and_in_order(
    store_path, monkeypatch, budget_bytes, is_cached, expected
):
    """Nothing without a budget, nor of what is in memory."""
    asked = []
    monkeypatch.setattr(RowReader, "is_cached", lambda *_: is_cached)
    monkeypatch.setattr(
        RowReader, "advise", lambda self, plan, some, schedule=None: asked.extend(some.tolist())
    )
    store = TraceStore.open(store_path)
    batches = Batches(EpochOrder(40, 0, 0, shuffle=False), 4)
    readahead = Readahead(store, store.plan(["tokens"]), batches, budget_bytes)
    for i in range(10):
        readahead.advance(range(i, i + 1), i)
        readahead.wait(i)
    readahead.close()
    assert asked == list(expected)


def test_advice_on_every_kind_of_column_is_harmless(store_path):
    store = TraceStore.open(store_path)
    plan = store.plan(select={"hidden_states": {"layers": 1}, "planes": {"layers": 0}})
    store.reader.advise(plan, np.arange(40))
    assert store.reader.is_cached(plan, np.arange(40))


def test_the_kernel_is_asked_for_the_layers_that_are_read(tmp_path, monkeypatch):
    """Where they lie so far apart that what is between them would cost more than a call."""
    states = Column("float16", (10, 4096), axis="t", axis_names=("layers", "hidden"))
    store = one_column(tmp_path / "s.zarr", "x", states, [np.zeros((2, 10, 4096), "f2")] * 3)
    asked = []
    monkeypatch.setattr(MappedFile, "advise", lambda _, start, stop, __: asked.append(stop - start))
    for text, expected in (("2,5,9", [8192] * 18), ("2", [8192] * 6), ("1-9", [6 * 81920])):
        asked.clear()
        store.reader.advise(store.plan(["x"], {"x": {"layers": text}}), np.arange(3))
        assert asked == expected


def test_row_bytes_counts_what_is_read(store_path):
    store = TraceStore.open(store_path)
    whole = row_bytes(store, store.plan(["hidden_states"]))
    assert whole == store.n_items("hidden_states") * 30 / 40
    part = row_bytes(store, store.plan(["hidden_states"], {"hidden_states": {"layers": 1}}))
    assert math.isclose(part, whole / 3)


def test_what_fits_is_kept_and_of_more_a_part(tmp_path):
    assert [kept_fraction(*sizes) for sizes in ((0, 0), (10, 40), (40, 40))] == [0.0, 1.0, 0.5]
    (tmp_path / "x").write_bytes(b"x")
    files = [MappedFile(tmp_path / "x") for _ in range(100)]
    for i, file in enumerate(files):
        file.path = tmp_path / str(i)
    for fraction, least, most in ((0.0, 0, 0), (0.5, 30, 70), (1.0, 100, 100)):
        assert least <= sum(is_kept(file, fraction) for file in files) <= most


def test_visit_times_reach_into_the_next_epoch():
    times = VisitTimes(3, np.array([2, 0, 1]), np.array([0, 2, 1]), n_rows=4)
    first, last = np.array([2, 0, 0, 3]), np.array([2, 1, 0, 3])
    # Row 2 was the first of this epoch, and is the second of the next; row 3 is visited in neither.
    assert times.after(0)(np.array([0, 0, 1, 0]), first, last).tolist() == [13, 10, 12, math.inf]
    assert times.after(0)(first[:0], first[:0], first[:0]).tolist() == []
