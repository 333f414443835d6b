"""Merging by reference under faults: power cuts, disks that cannot link, parts that grow."""

import errno
import os
import random
from contextlib import suppress

import pytest
from damage import assert_store
from faults import Quick, Recorder, Stop, lay_out
from oracle import SCHEMA, make_rows, write_store

from store import StoreWriter, TraceStore
from store.transform.merge import merge_stores

ROWS = make_rows(SCHEMA, 9, seed=3)
PARTS = (ROWS[:4], ROWS[4:5], ROWS[5:])
SLOW = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def parts(tmp_path):
    return [
        TraceStore.open(write_store(tmp_path / f"{i}.zarr", SCHEMA, rows), check=True)
        for i, rows in enumerate(PARTS)
    ]


def merge(path, parts, files=None):
    """What was merged, and the reports of it: none if it was there."""
    reports = []
    options = {"files": files or Quick(), "report": reports.append}
    store = merge_stores(path, parts, lambda _: None, **options)
    return store, reports


@pytest.fixture
def recorded(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    return base, Recorder()


def assert_survives(log, base, target, parts, keeps):
    """After a power cut, the same merge ends with the right store."""
    lay_out(log, base, target, keeps)
    merge(target / "m.zarr", parts)
    assert_store(target / "m.zarr", ROWS)


@pytest.mark.parametrize("step", [311, pytest.param(7, marks=SLOW)])
def test_a_power_cut_loses_nothing(tmp_path, parts, recorded, step):
    """With all that was done, with only what was durable, and with any part of the rest."""
    base, recorder = recorded
    merge(base / "m.zarr", parts, recorder)
    rng = random.Random(0)  # noqa: S311 - to be repeated
    keeping = (lambda: True, lambda: False, lambda: rng.random() < 0.5)
    renamed, synced = recorder.log[-2:]  # of the whole directory, which lay_out does not know
    assert (renamed[0], synced[0]) == ("rename", "sync_dir")
    log = recorder.log[:-2]
    for i, n in enumerate([*range(0, len(log), step), len(log)]):
        assert_survives(log[:n], base, tmp_path / f"cut{i}", parts, keeping[i % 3])


@pytest.mark.parametrize("n_cuts", [8, pytest.param(300, marks=SLOW)])
def test_a_power_cut_brings_no_file_of_another_merge_back(tmp_path, parts, recorded, n_cuts):
    """One was stopped where this one works now; what it linked is not taken for a file of this."""
    base, recorder = recorded
    recorder.stop = 100
    with suppress(Stop):
        merge(base / "m.zarr", parts[::-1], recorder)
    recorder.stop = None
    merge(base / "m.zarr", parts, recorder)
    for seed in range(n_cuts):
        rng = random.Random(seed)  # noqa: S311 - to be repeated
        cut = recorder.log[: rng.randrange(100, len(recorder.log) - 1)]
        share = rng.random()
        keeps = lambda rng=rng, share=share: rng.random() < share  # noqa: E731
        assert_survives(cut, base, tmp_path / f"cut{seed}", parts, keeps)


class Unlinkable(Quick):
    """A file system without hard links."""

    def link(self, source, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link", str(source))


def test_what_cannot_be_linked_is_copied(tmp_path, parts):
    """The store is the same; the report says why. What a symbolic link points to is no file of a
    store, and may change."""
    store, (done,) = merge(tmp_path / "m.zarr", parts, Unlinkable())
    assert (done.n_linked, done.reason) == (0, "Invalid cross-device link")
    assert done.n_copied == done.n_files > 0
    assert_store(store.path, ROWS)
    assert store.manifest.segments
    shard, elsewhere = parts[0].path / "tokens/c/0", tmp_path / "elsewhere"
    shard.rename(elsewhere)
    shard.symlink_to(elsewhere)
    store, (done,) = merge(tmp_path / "n.zarr", parts)
    assert (done.n_copied, done.reason) == (1, "symbolic links")
    assert os.stat(elsewhere).st_nlink == 1
    assert_store(store.path, ROWS)


def test_stores_that_share_files_go_separate_ways(tmp_path, parts):
    """Appending to either, replacing a column, or removing one changes nothing in the others."""
    merged, _ = merge(tmp_path / "m.zarr", parts)
    assert os.stat(parts[2].path / "tokens/c/0").st_nlink == 2
    more = [(f"more {i}", row) for i, (_, row) in enumerate(ROWS)]
    for store in (merged, parts[2]):
        with StoreWriter.open(store.path) as writer:
            for trace_id, row in more:
                writer.append(trace_id, row)
    assert_store(merged.path, [*ROWS, *more])
    assert_store(parts[2].path, [*PARTS[2], *more])
    assert_store(parts[0].path, PARTS[0])
    for part in parts:
        Quick().remove_tree(part.path)
    assert_store(merged.path, [*ROWS, *more])
    assert [trace.id for trace in merged] == [trace_id for trace_id, _ in ROWS]
