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


@pytest.fixture(scope="module")
def stores(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("stores")
    write_store(folder / "other.zarr", SCHEMA, rows[20:28])
    write_store(folder / "s.zarr", SCHEMA, rows[:8])
    return folder


@pytest.fixture
def path(stores, tmp_path):
    """A store of eight rows, beside `other.zarr` with eight others."""
    shutil.copytree(stores, tmp_path, dirs_exist_ok=True)
    return tmp_path / "s.zarr"


def exchange(path):
    path.rename(path.with_name("old.zarr"))
    path.with_name("other.zarr").rename(path)


def assert_exchange_is_seen(store):
    """In what it opens now, and after it has been sent to a worker."""
    for reader in (store, pickle.loads(pickle.dumps(store))):  # noqa: S301 - our own bytes
        for use in (lambda r=reader: r.read([3], ["tokens"]), lambda r=reader: r.row_of("a")):
            with pytest.raises(CorruptError, match=r"another store has taken the place .*; open"):
                use()


def test_an_equal_inode_on_another_device_is_another_directory(tmp_path):
    directory = StoreDirectory.at(tmp_path)
    elsewhere = dataclasses.replace(directory, device=directory.device + 1)
    with pytest.raises(CorruptError, match=r"taken the place .*; open it again"):
        elsewhere.check()


@pytest.mark.parametrize("check", [False, True])
def test_a_reader_never_mixes_two_stores(path, check):
    store = TraceStore.open(path, check=check)
    before = store.read(range(8), ["label"])["label"]
    exchange(path)
    assert store.read(range(8), ["label"])["label"].equal(before)
    assert_exchange_is_seen(store)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_reader_never_mixes_a_store_with_one_copied_over_it(path, rows, in_place):
    """Its files written anew, as rsync does, or in place, as cp does; an append is none."""
    store = TraceStore.open(path)
    with StoreWriter.open(path) as writer:
        writer.append(*rows[20])
    store.read([3], ["label"])

    def copy(source, target):
        if not in_place:
            Path(target).unlink(missing_ok=True)
        shutil.copyfile(source, target)

    other = path.with_name("other.zarr")
    shutil.copytree(other, path, copy_function=copy, dirs_exist_ok=True)
    assert_exchange_is_seen(store)
    assert store.refresh().ids[0] == rows[20][0]


def test_a_store_that_was_moved_is_not_called_damaged(path):
    """Whatever is read first; what was read before stays good."""
    reads = (
        lambda store: store.read([3]),
        lambda store: store[3]["tokens"],
        lambda store: store.column("label"),
        lambda store: store.ids[0],
    )
    stores = [TraceStore.open(path) for _ in reads]
    path.rename(path.with_name("moved.zarr"))
    for store, read in zip(stores, reads, strict=True):
        with pytest.raises(CorruptError, match=r"s\.zarr: the store is gone; open it") as caught:
            read(store)
        assert "Errno" not in str(caught.value)


def around(monkeypatch, module, before=lambda: None, after=lambda: None):
    """Let something happen just before and after `module` reads a manifest."""
    read_manifest = module.read_manifest

    def read(path):
        before()
        manifest = read_manifest(path)
        after()
        return manifest

    monkeypatch.setattr(module, "read_manifest", read)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("reopen", [False, True])
def test_an_exchange_while_a_store_is_opened_is_seen(path, rows, monkeypatch, when, reopen):
    """A manifest is never paired with shards of another store: the directory is noted first."""
    earlier = TraceStore.open(path)
    with StoreWriter.open(path) as writer:
        writer.append(*rows[20])
    around(monkeypatch, reading, **{when: lambda: exchange(path)})
    store = earlier.refresh() if reopen else TraceStore.open(path)
    monkeypatch.undo()
    assert_exchange_is_seen(store)


@pytest.mark.parametrize("module", [reading, directory])
def test_a_build_that_is_finished_as_its_manifest_is_read_is_followed(
    path, rows, monkeypatch, module
):
    """By `refresh`, and by what opens a file."""
    partial = path.rename(path.with_name("s.zarr.partial"))
    store = TraceStore.open(partial)
    around(monkeypatch, module, before=lambda: partial.exists() and partial.rename(path))
    if module is reading:
        store = store.refresh()
    assert store.read([3], ["label"])["label"].tolist() == [rows[3][1]["label"]]
    assert store.location == str(path)
