"""`StoreWriter.close` commits, an exception does not; no row is lost without a word."""

from contextlib import closing

import pytest
from faults import Faulty, full_disk, start, wait

from store import Column, IncompleteError, Schema, StoreWriter, TraceStore
from store.check.verify import verify_store

SCHEMA = Schema({"x": Column("float64", axis="t", chunk_items=4, shard_items=8)})


def filling():
    """A disk that is full once `begin` is called."""
    return Faulty(0, full_disk, lasting=True, only="write")


def append(writer, *rows):
    for row in rows:
        writer.append(f"t{row}", {"x": [row] * 5})


@pytest.fixture
def path(tmp_path):
    """A store of three rows."""
    with StoreWriter.create(tmp_path / "s.zarr", SCHEMA) as writer:
        append(writer, 0, 1, 2)
    return tmp_path / "s.zarr"


def assert_rows(path, n):
    """The first rows are there, and nothing else; the next writer can write."""
    StoreWriter.open(path).close()
    found = [(trace.id, trace["x"].tolist()) for trace in TraceStore.open(path, check=True)]
    assert found == [(f"t{row}", [row] * 5) for row in range(n)]
    assert verify_store(path).leftovers == []


def test_close_commits_what_was_appended(path):
    """And the provenance; a second call does nothing, nor does the end of a block after it."""
    with StoreWriter.open(path) as writer:
        append(writer, *range(3, 13))
        writer.provenance = {"model": "tiny"}
        writer.close()
        writer.close()
    assert_rows(path, 13)
    assert TraceStore.open(path).provenance == {"model": "tiny"}


def interrupt(path, *lost):
    """Leave the block of a writer by an exception, a commit and these rows later."""
    with StoreWriter.open(path) as writer:
        append(writer, 3)
        writer.commit()
        append(writer, *lost)
        raise KeyboardInterrupt


def test_an_exception_discards_and_says_how_many_rows(path):
    """The warning points at the block, and nothing is left for the next writer."""
    discarded = "2 rows appended since the last commit are discarded"
    with pytest.warns(RuntimeWarning, match=discarded) as caught, pytest.raises(KeyboardInterrupt):
        interrupt(path, 4, 5)
    assert caught[0].filename == __file__
    assert verify_store(path).leftovers == []
    assert_rows(path, 4)


def test_an_exception_without_new_rows_warns_of_nothing(path):
    with pytest.raises(KeyboardInterrupt):  # a warning would be an error
        interrupt(path)
    assert_rows(path, 4)


def test_discard_releases_without_a_commit_or_a_warning(path):
    writer = StoreWriter.open(path)
    append(writer, *range(3, 40))
    writer.discard()
    writer.discard()
    writer.close()
    assert verify_store(path).leftovers == []
    assert_rows(path, 3)


def test_close_after_a_failed_append_says_how_many_rows_are_lost(path):
    """The lock is released whatever happens."""
    writer = StoreWriter.open(path, filling())
    append(writer, 3, 4)
    writer.files.begin()
    with pytest.raises(OSError, match="No space left"):
        writer.append("long", {"x": [0.5] * 10**6})
    discarded = "2 rows appended since the last commit are discarded"
    expected = f"appending trace 'long' stopped half-way, and {discarded}; append"
    with pytest.raises(IncompleteError, match=expected):
        writer.close()
    writer.close()
    assert_rows(path, 3)


@pytest.mark.parametrize("in_block", [False, True])
def test_close_on_a_full_disk_is_an_error(path, in_block):
    writer = StoreWriter.open(path, filling())
    append(writer, 3)
    writer.files.begin()
    with pytest.raises(OSError, match="No space left"), writer if in_block else closing(writer):
        pass
    assert_rows(path, 3)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_close_in_a_forked_child_leaves_the_rows_to_its_parent(path):
    writer = StoreWriter.open(path)
    append(writer, 3)

    def close():
        writer.close()
        assert len(TraceStore.open(path)) == 3

    assert wait(start(close)) == 0
    writer.close()
    assert_rows(path, 4)


def test_a_writer_that_nobody_closes_says_what_is_lost(path):
    lost = "the writer was not closed; 1 row appended since the last commit is"
    with pytest.warns(RuntimeWarning, match=lost):
        append(StoreWriter.open(path), 3)
    assert_rows(path, 3)
