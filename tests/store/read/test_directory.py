"""The directory that a store was opened from, and another one in its place."""

import dataclasses
import pickle
import shutil
from pathlib import Path

import pytest
from oracle import SCHEMA, write_store

from store import CorruptError, StoreWriter, TraceStore
from store.read import directory
from store.read import source as reading
from store.read.directory import StoreDirectory


def test_an_equal_inode_on_another_device_is_another_directory(tmp_path):
    directory = StoreDirectory.at(tmp_path)
    elsewhere = dataclasses.replace(directory, device=directory.device + 1)
    with pytest.raises(CorruptError, match=r"taken the place .*; open it again"):
        elsewhere.check()


@pytest.mark.parametrize("check", [False, True])
def test_a_reader_never_mixes_two_stores(tmp_path, rows, check):
    """Not in what it opens after the exchange, and not when it has been sent to a worker."""
    write_store(tmp_path / "s.zarr", SCHEMA, rows[:20])
    write_store(tmp_path / "other.zarr", SCHEMA, rows[20:])
    store = TraceStore.open(tmp_path / "s.zarr", check=check)
    before = store.read(range(20), ["label"])["label"]
    (tmp_path / "s.zarr").rename(tmp_path / "old.zarr")
    (tmp_path / "other.zarr").rename(tmp_path / "s.zarr")
    assert store.read(range(20), ["label"])["label"].equal(before)
    for reader in (store, pickle.loads(pickle.dumps(store))):  # noqa: S301 - our own bytes
        for use in (lambda r=reader: r.read([3], ["tokens"]), lambda r=reader: r[rows[3][0]]):
            with pytest.raises(CorruptError, match="another store has taken the place"):
                use()


@pytest.mark.parametrize("in_place", [False, True])
def test_a_reader_never_mixes_a_store_with_one_copied_over_it(tmp_path, rows, in_place):
    """Its files written anew, as rsync does, or in place, as cp does; an append is none."""
    path = write_store(tmp_path / "s.zarr", SCHEMA, rows[:20])
    write_store(tmp_path / "other.zarr", SCHEMA, rows[20:])
    store = TraceStore.open(path)
    with StoreWriter.open(path) as writer:
        writer.append(*rows[20])
    store.read([3], ["label"])

    def copy(source, target):
        if not in_place:
            Path(target).unlink(missing_ok=True)
        shutil.copyfile(source, target)

    shutil.copytree(tmp_path / "other.zarr", path, copy_function=copy, dirs_exist_ok=True)
    for reader in (store, pickle.loads(pickle.dumps(store))):  # noqa: S301 - our own bytes
        with pytest.raises(CorruptError, match="another store has taken the place"):
            reader.read([3], ["tokens"])
    assert store.refresh().ids[0] == rows[20][0]


def test_a_store_that_was_moved_is_not_called_damaged(tmp_path, rows):
    """Whatever is read first; what was read before stays good."""
    write_store(tmp_path / "s.zarr", SCHEMA, rows[:20])
    reads = (
        lambda store: store.read([3]),
        lambda store: store[3]["tokens"],
        lambda store: store.column("label"),
        lambda store: store.ids[0],
    )
    stores = [TraceStore.open(tmp_path / "s.zarr") for _ in reads]
    (tmp_path / "s.zarr").rename(tmp_path / "moved.zarr")
    for store, read in zip(stores, reads, strict=True):
        with pytest.raises(CorruptError, match=r"s\.zarr: the store is gone; open it") as caught:
            read(store)
        assert "Errno" not in str(caught.value)


@pytest.mark.parametrize("when", ["before the manifest is read", "after it"])
@pytest.mark.parametrize("reopen", [False, True])
def test_an_exchange_while_a_store_is_opened_is_seen(tmp_path, rows, monkeypatch, when, reopen):
    """A manifest is never paired with shards of another store: the directory is noted first."""
    write_store(tmp_path / "s.zarr", SCHEMA, rows[:20])
    write_store(tmp_path / "other.zarr", SCHEMA, rows[20:])
    earlier = TraceStore.open(tmp_path / "s.zarr")
    with StoreWriter.open(tmp_path / "s.zarr") as writer:
        writer.append(*rows[20])
    read_manifest = reading.read_manifest

    def exchange():
        (tmp_path / "s.zarr").rename(tmp_path / "old.zarr")
        (tmp_path / "other.zarr").rename(tmp_path / "s.zarr")

    def read_and_exchange(path):
        if when == "after it":
            manifest = read_manifest(path)
            exchange()
            return manifest
        exchange()
        return read_manifest(path)

    monkeypatch.setattr(reading, "read_manifest", read_and_exchange)
    store = earlier.refresh() if reopen else TraceStore.open(tmp_path / "s.zarr")
    monkeypatch.undo()
    with pytest.raises(CorruptError, match="another store has taken the place"):
        store.read([0], ["tokens"])


@pytest.mark.parametrize("module", [reading, directory])
def test_a_build_that_is_finished_as_its_manifest_is_read_is_followed(
    tmp_path, rows, monkeypatch, module
):
    """By `refresh`, and by what opens a file."""
    whole, partial = tmp_path / "s.zarr", tmp_path / "s.zarr.partial"
    write_store(partial, SCHEMA, rows[:20])
    store = TraceStore.open(partial)
    read_manifest = module.read_manifest

    def finish_and_read(path):
        if partial.exists():
            partial.rename(whole)
        return read_manifest(path)

    monkeypatch.setattr(module, "read_manifest", finish_and_read)
    if module is reading:
        store = store.refresh()
    assert store.read([3], ["label"])["label"].tolist() == [rows[3][1]["label"]]
    assert store.location == str(whole)
