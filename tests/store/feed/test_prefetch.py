import math

import numpy as np

from store import TraceStore
from store.feed.order import Batches, EpochOrder
from store.feed.prefetch import Readahead, row_bytes


class Recorder:
    """Stands in for a store whose rows are all cold, and writes down what is asked for."""

    def __init__(self, store, cached=False):
        self.store, self.cached, self.asked = store, cached, []

    def __getattr__(self, name):
        return getattr(self.store, name)

    def __len__(self):
        return len(self.store)

    def is_cached(self, plan, rows):
        return self.cached

    def advise(self, plan, rows, schedule=None):
        self.asked += rows.tolist()


def batches():
    return Batches(EpochOrder(40, 0, 0, shuffle=False), 4)


def test_cold_rows_are_asked_for_once_and_in_order(store_path):
    store = TraceStore.open(store_path)
    plan = store.plan(["tokens"])
    recorder = Recorder(store)
    readahead = Readahead(recorder, plan, batches(), budget_bytes=1)
    for i in range(10):
        readahead.advance(i)
    readahead.close()
    assert recorder.asked == sorted(recorder.asked)
    assert len(set(recorder.asked)) == len(recorder.asked)


def test_nothing_is_asked_for_what_is_cached_or_without_budget(store_path):
    store = TraceStore.open(store_path)
    for cached, budget in ((True, 10**9), (False, 0)):
        recorder = Recorder(store, cached)
        readahead = Readahead(recorder, store.plan(), batches(), budget)
        for i in range(10):
            readahead.advance(i)
        readahead.close()
        assert recorder.asked == []


def test_advice_on_every_kind_of_column_is_harmless(store_path):
    store = TraceStore.open(store_path)
    plan = store.plan(select={"hidden_states": {"layers": 1}, "planes": {"layers": 0}})
    store.reads.advise(plan, np.arange(40))
    assert store.reads.is_cached(plan, np.arange(40))


def test_row_bytes_counts_what_is_read(store_path):
    store = TraceStore.open(store_path)
    whole = row_bytes(store, store.plan(["hidden_states"]))
    assert whole == store.n_items("hidden_states") * 30 / 40
    part = row_bytes(store, store.plan(["hidden_states"], {"hidden_states": {"layers": 1}}))
    assert math.isclose(part, whole / 3)
