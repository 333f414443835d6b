import math

import numpy as np
import pytest

from store import Column, Schema, StoreWriter, TraceStore
from store.feed.epoch_reads import VisitTimes, is_kept, kept_fraction
from store.feed.order import Batches, EpochOrder
from store.feed.prefetch import Readahead, row_bytes
from store.read.arrays.mapped_file import MappedFile
from store.read.row_reader import RowReader


@pytest.fixture
def asked(monkeypatch):
    """The rows that the kernel is asked for; all seem to be cold."""
    rows = []
    monkeypatch.setattr(RowReader, "is_cached", lambda *_: False)
    monkeypatch.setattr(
        RowReader, "advise", lambda self, plan, some, schedule=None: rows.extend(some.tolist())
    )
    return rows


def batches():
    return Batches(EpochOrder(40, 0, 0, shuffle=False), 4)


def read_through(store_path, budget_bytes):
    store = TraceStore.open(store_path)
    readahead = Readahead(store, store.plan(["tokens"]), batches(), budget_bytes)
    for i in range(10):
        readahead.advance(range(i, i + 1), i)
        readahead.wait(i)
    readahead.close()


def test_cold_rows_are_asked_for_once_and_in_order(store_path, asked):
    read_through(store_path, budget_bytes=1)
    assert asked == list(range(40))


def test_nothing_is_asked_for_without_budget(store_path, asked):
    read_through(store_path, budget_bytes=0)
    assert asked == []


def test_nothing_is_asked_for_what_is_cached(store_path, asked, monkeypatch):
    monkeypatch.setattr(RowReader, "is_cached", lambda *_: True)
    read_through(store_path, budget_bytes=10**9)
    assert asked == []


def test_advice_on_every_kind_of_column_is_harmless(store_path):
    store = TraceStore.open(store_path)
    plan = store.plan(select={"hidden_states": {"layers": 1}, "planes": {"layers": 0}})
    store.reader.advise(plan, np.arange(40))
    assert store.reader.is_cached(plan, np.arange(40))


def test_the_kernel_is_asked_for_the_layers_that_are_read(tmp_path, monkeypatch):
    """Where they lie so far apart that what is between them would cost more than a call."""
    states = Column("float16", (10, 4096), axis="t", axis_names=("layers", "hidden"))
    with StoreWriter.create(tmp_path / "long.zarr", Schema({"x": states})) as writer:
        for i in range(3):
            writer.append(f"t{i}", {"x": np.zeros((2, 10, 4096), np.float16)})
    asked = []
    monkeypatch.setattr(MappedFile, "advise", lambda _, start, stop, __: asked.append(stop - start))
    store = TraceStore.open(tmp_path / "long.zarr")
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
    assert kept_fraction(0, 0) == 0.0
    assert kept_fraction(10, 40) == 1.0
    assert kept_fraction(40, 40) == 0.5
    files = []
    for i in range(100):
        (tmp_path / str(i)).write_bytes(b"x")
        files.append(MappedFile(tmp_path / str(i)))
    for fraction, least, most in ((0.0, 0, 0), (0.5, 30, 70), (1.0, 100, 100)):
        assert least <= sum(is_kept(file, fraction) for file in files) <= most


def test_visit_times_reach_into_the_next_epoch():
    times = VisitTimes(3, np.array([2, 0, 1]), np.array([0, 2, 1]), n_rows=4)
    first, last = np.array([2, 0, 0, 3]), np.array([2, 1, 0, 3])
    # Row 2 was the first of this epoch, and is the second of the next; row 3 is visited in neither.
    assert times.after(0)(np.array([0, 0, 1, 0]), first, last).tolist() == [13, 10, 12, math.inf]
    assert times.after(0)(first[:0], first[:0], first[:0]).tolist() == []
