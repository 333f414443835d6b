"""The cache of features: what it holds is what would be computed, within its bound."""

import numpy as np
import pytest
import torch

from models.detector import REDUCED
from models.lstm import LstmSolo
from store import TraceStore
from store.read.row_reader import RowReader
from train.data.features import FeatureCache

ROW_BYTES = 2 * 8 * 2  # hs_last of the small store


class Counter:
    """Reduces states to their doubles, and counts the rows that it was given."""

    def __init__(self):
        self.rows = []

    def reduce(self, batch):
        self.rows += batch.rows.tolist()
        return 2 * batch["hs_last"]


def epochs_of(data, cache, n_epochs, num_workers=0):
    """Batches of epoch after epoch, as (rows, features)."""
    data = data.with_settings(batch_size=16, num_workers=num_workers)
    loader = data.loader("train", ["hs_last"], shuffle=True, kept=cache)
    for number in range(n_epochs):
        loader.set_epoch(number)
        yield [(batch.rows, batch.fixed(REDUCED)) for batch in loader]


@pytest.mark.parametrize("n_fit, num_workers", [(0, 0), (1, 3), (40, 0), (40, 3), (10_000, 0)])
def test_batches_are_the_same_for_any_bound(data, n_fit, num_workers):
    """In every epoch they hold the rows of the order, and what is computed of them, whatever was
    done to earlier ones. Rows that fit are read once; others in each epoch, and no row twice."""
    counter = Counter()
    cache = FeatureCache(counter, len(data.store), n_fit * ROW_BYTES)
    plain = data.with_settings(batch_size=16).loader("train", ["hs_last"], shuffle=True)
    for number, epoch in enumerate(epochs_of(data, cache, 3, num_workers=num_workers)):
        plain.set_epoch(number)
        for (rows, features), batch in zip(epoch, plain, strict=True):
            assert torch.equal(rows, batch.rows)
            assert torch.equal(features, 2 * batch["hs_last"])
            features.zero_()
    n_train = len(data.splits.train)
    assert len(cache) == min(n_fit, n_train)
    assert len(counter.rows) == n_train + 2 * max(0, n_train - n_fit)
    counts = np.bincount(counter.rows)
    assert set(counts[counts > 0]) <= {1, 3}


def test_nothing_is_asked_of_files_for_rows_that_are_kept(data, monkeypatch):
    """The kernel is not asked to read them ahead, and the store is not asked for them."""
    cache = FeatureCache(Counter(), len(data.store), 2**20)
    (first,) = epochs_of(data, cache, 1)
    reads = [(TraceStore, "read_batch"), (RowReader, "advise"), (RowReader, "is_cached")]
    for owner, name in reads:
        monkeypatch.setattr(owner, name, lambda *_: pytest.fail("asked"))
    (again,) = epochs_of(data, cache, 1)
    for (_, one), (_, two) in zip(first, again, strict=True):
        assert torch.equal(one, two)


def test_without_features_the_columns_stay(data):
    """Of a detector with nothing to keep every epoch is read."""
    cache = FeatureCache(LstmSolo(8), len(data.store), 2**20)
    loader = data.loader("train", ["hs_last"], kept=cache)
    for _ in range(2):
        assert all(batch.keys() == ["hs_last"] for batch in loader)
    assert len(cache) == 0
