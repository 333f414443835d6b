"""Loaders against the list of what was written: order, values, exact resume; errors, forks, cold
files, and torch's own DataLoader."""

import json
import os
import signal
from itertools import islice, zip_longest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import SCHEMA, assert_batch, bits, make_rows
from small import complaint, one_column
from stopping import visits
from torch.utils.data import ConcatDataset, DataLoader

from store import (
    Batch,
    Column,
    CorruptError,
    NotFoundError,
    Schema,
    SchemaError,
    StoreWriter,
    TokenLoader,
    TraceDataset,
    TraceLoader,
    TraceStore,
    permutation,
)
from store.feed.order import BlockOrder, EpochOrder
from store.read.arrays.file_reads import FileReads
from store.read.arrays.mapped_file import MappedFile
from store.read.joined.joined_store import open_joined
from store.read.row_reader import RowReader

ROWS = make_rows(SCHEMA, 40, seed=0)  # those of the fixture `store_path`
SEED = 5
TOKEN_COLUMNS = ["tokens", "hidden_states", "zipped", "label", "states", "question", "flag"]
SLOW = pytest.mark.slow
# of fewer rows than ranks, and of rows taken one by one, some ranks get none in the last step
may_be_empty = pytest.mark.filterwarnings("ignore:.* get an empty last batch:RuntimeWarning")


def visited(kind, chosen):
    """What a loader visits without a shuffle: (row, row), or (row, position) of tokens."""
    if kind is TraceLoader:
        return [(row, row) for row in chosen]
    return [(row, at) for row in chosen for at in range(len(ROWS[row][1]["tokens"]))]


def assert_values(batch, rows=ROWS):
    """Bit for bit what was written, of rows or of tokens."""
    if batch.positions is None:
        expected = [rows[row][1] for row in batch.rows.tolist()]
        assert_batch(batch, [{name: row[name] for name in batch.columns} for row in expected])
        return
    for i, (row, at) in enumerate(visits(batch)):
        for name, values in batch.columns.items():
            wanted = rows[row][1][name]
            wanted = wanted[at] if SCHEMA.columns[name].axis else wanted
            assert bits(values[i]) == bits(wanted), (name, row, at)


HOP = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 9) | st.just(50),
        "num_workers": st.integers(0, 3),
        "arrays": st.sampled_from(["torch", "numpy"]),
    }
)
HOPS = st.lists(st.tuples(HOP, st.integers(1, 4), st.integers(1, 6)), max_size=3)


BLOCKS = {"shuffle": "blocks", "block": 3, "buffer": 20}
SHARED = ("read_options.SHARED_BYTES", "raw_array.SHARED_BYTES", "copies.WINDOWS_BYTES")


@may_be_empty
@pytest.mark.parametrize("kind", ["rows", "tokens", "blocks"])
@given(
    source=st.sampled_from(["written", "merged", "linked", "routed"]),
    columns=st.sampled_from([None, ["zipped", "question"], ["tokens", "label"]]),
    chosen=st.none() | st.lists(st.integers(0, 39), min_size=1, unique=True),
    shuffle=st.booleans(),
    window_rows=st.sampled_from([1, 4096]),
    cache_bytes=st.sampled_from([None, 0, 200]),
    is_cold=st.booleans(),
    shared_bytes=st.sampled_from([64, 2**20]),
    hops=HOPS,
)
def test_each_step_is_that_of_the_list(sources, kind, hops, **drawn):
    """Whatever is changed on the way: batch sizes, threads, ranks, kinds of arrays. Every state of
    every step goes on exactly there, and all ranks have as many batches. Of cold files, in windows,
    or in parts by several threads."""
    make = TraceLoader if kind == "rows" else TokenLoader
    shuffle, columns, chosen = (drawn[name] for name in ("shuffle", "columns", "chosen"))
    store = open_joined(sources[drawn["source"]], drawn["cache_bytes"])
    every = visited(make, range(40) if chosen is None else chosen)
    n = len(every)
    if not n:
        return

    def order_of(epoch):
        if kind == "blocks":
            return BlockOrder(n, SEED, epoch, 3, 20)
        return EpochOrder(n, SEED, epoch, shuffle, make.listed)

    order = [every[i] for epoch in range(len(hops) + 1) for i in order_of(epoch)[range(n)]]
    given = {"seed": SEED, "rows": chosen, "columns": columns}
    given |= BLOCKS if kind == "blocks" else {"shuffle": shuffle}
    if columns is None and make is TokenLoader:
        given["columns"] = TOKEN_COLUMNS
    found, state = [], None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("store.feed.windows.SMALL_WINDOW_ROWS", drawn["window_rows"])
        for name in SHARED:
            patch.setattr(f"store.read.arrays.{name}", drawn["shared_bytes"])
        if drawn["is_cold"]:
            patch.setattr(RowReader, "is_cached", lambda *_: False)
        for options, world_size, n_steps in [*hops, ({"batch_size": 7}, 1, 99)]:
            loaders = [
                make(store, **given, **options, **rank)
                for rank in ({"rank": i, "world_size": world_size} for i in range(world_size))
            ]
            for loader in loaders if state else ():
                loader.load_state_dict(json.loads(state))
                loader.set_epoch(loader.epoch)  # as a loop does: the position stays
            (length,) = set(map(len, loaders))
            n_left = n - len(found) % n
            assert length == -(-n_left // (world_size * options["batch_size"]))
            for batches in islice(zip(*loaders, strict=True), n_steps):
                for batch in batches:
                    assert_values(batch)
                    assert len(batch) <= options["batch_size"]
                turns = zip_longest(*map(visits, batches))
                found += [visit for turn in turns for visit in turn if visit is not None]
                (state,) = {json.dumps(loader.state_dict()) for loader in loaders}
                reached = json.loads(state)
                assert (reached["epoch"], reached["position"]) == divmod(len(found), n)
                assert {loader.epoch for loader in loaders} == {reached["epoch"]}
    assert found == order[: len(found)]
    assert not len(found) % n


def delivered(loader):
    return [row for batch in loader for row in batch.rows.tolist()]


def test_rows_are_chosen_by_number_or_by_a_filter(store_path):
    rows = [3, 30, 4, 17]
    assert delivered(TraceLoader(store_path, [], 3, rows=rows)) == rows
    chosen = TraceStore.open(store_path).where("label == 1").tolist()
    assert delivered(TraceLoader(store_path, ["label"], 3, where="label == 1")) == chosen
    with pytest.raises(ValueError, match="where: expected None with rows"):
        TraceLoader(store_path, ["label"], 3, rows=rows, where="label == 1")
    with pytest.raises(TypeError, match="columns: expected a sequence of names"):
        TraceLoader(store_path, "label")


def ranks(store, world_size, **options):
    """The loaders of all ranks."""
    store = TraceStore.open(store)
    return [
        TraceLoader(store, shuffle=True, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("num_workers, window_rows", [(0, 1), (2, 4096)])
@pytest.mark.parametrize(
    "n_rows, batch_size, n_empty, cure",
    [(3, 8, 1, "last 3 rows"), (5, 1, 3, "last 1 rows, batch_size=2 or more shares them")],
)
def test_a_rank_without_a_row_gets_an_empty_batch_and_a_warning(
    store_path, monkeypatch, num_workers, window_rows, n_rows, batch_size, n_empty, cure
):
    """Fewer rows than ranks: an empty batch has every column, and can be moved and padded. Where
    the warning is an error, the position is kept."""
    monkeypatch.setattr("store.feed.windows.SMALL_WINDOW_ROWS", window_rows)
    options = {"batch_size": batch_size, "num_workers": num_workers, "rows": range(n_rows)}
    last = []
    for loader in ranks(store_path, 4, **options):
        start = loader.state_dict()
        with pytest.raises(RuntimeWarning, match=r"empty last batch"):
            next(iter(loader))
        assert loader.state_dict() == start
        with pytest.warns(
            RuntimeWarning, match=rf"{n_empty} of 4 ranks get an empty last batch.*{cure}"
        ):
            *_, batch = loader
        last.append(batch)
    assert sum(len(batch) == 0 for batch in last) == n_empty
    empty = last[-1].to("cpu")
    assert repr(empty) == repr(TraceStore.open(store_path).read([]))
    for name, column in SCHEMA.columns.items():
        if column.axis:
            assert empty[name].offsets.tolist() == [0]
            assert empty.padded(name)[0].shape[:2] == (0, 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("num_workers, window_rows", [(0, 1), (2, 1), (2, 4096)])
def test_a_forked_child_is_refused_its_parents_iterator(
    store_path, monkeypatch, num_workers, window_rows
):
    """At once, as it has none of the threads that read; a new iteration of the loader goes well
    there, and the parent's goes on."""
    monkeypatch.setattr("store.feed.windows.SMALL_WINDOW_ROWS", window_rows)
    loader = TraceLoader(store_path, None, 3, True, num_workers=num_workers)
    batches = iter(loader)
    seen = next(batches).rows.tolist()
    child = os.fork()
    if not child:
        signal.alarm(20)
        is_whole = False
        try:
            next(batches)
        except RuntimeError as error:
            is_whole = "belongs to the parent process; make another: iter(loader)" in str(error)
            is_whole = is_whole and sorted(delivered(loader)) == list(range(40))
        finally:
            os._exit(0 if is_whole else 1)
    assert os.waitpid(child, 0)[1] == 0
    seen += [row for batch in batches for row in batch.rows.tolist()]
    assert seen == permutation(40, 0, 0).tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_before_the_damage_arrive(broken_path, rows, num_workers):
    """Reading ahead of a missing shard raises nothing; the read that needs it names the rows."""
    (broken_path / "tokens/c/1").unlink()
    lengths = np.cumsum([len(row["tokens"]) for _, row in rows])
    # rows that lie in the first shard of 16 items
    whole = int(np.searchsorted(lengths, 16, side="right"))
    batches = iter(TraceLoader(broken_path, ["tokens"], 1, num_workers=num_workers))
    for i in range(whole):
        assert_values(next(batches), rows)
        assert i < whole
    with pytest.raises(CorruptError, match=rf"shard 1: .*; rows? {whole}"):
        next(batches)


@pytest.fixture
def damaged_offsets(tmp_path):
    """A store of short rows of many shards; the offsets of row 40 are damaged."""
    column = Column("int32", axis="t", chunk_items=4, shard_items=8)
    store = one_column(tmp_path / "s.zarr", "x", column, [np.arange(row % 7) for row in range(60)])
    offsets = store.path / "_offsets/t/c/0"
    data = bytearray(offsets.read_bytes())
    data[40 * 8 : 41 * 8] = (2**40).to_bytes(8, "little")
    offsets.write_bytes(data)
    return store.path


@pytest.mark.parametrize("num_workers", [0, 2])
def test_damaged_offsets_are_an_error_of_their_own_batch(damaged_offsets, num_workers):
    """Batches are found many at a time; those before the damaged one are delivered all the same,
    and hold no rows but their own."""
    batches = iter(
        TraceLoader(damaged_offsets, ["x"], 5, num_workers=num_workers, prefetch_bytes=0)
    )
    for first in range(0, 35, 5):  # row 39 ends where row 40 begins
        batch = next(batches)
        assert batch.rows.tolist() == list(range(first, first + 5))
        assert batch["x"].lengths.tolist() == [row % 7 for row in batch.rows.tolist()]
        assert batch.rows.untyped_storage().nbytes() == 5 * 8
        assert batch["x"].offsets.untyped_storage().nbytes() == 6 * 8
    with pytest.raises(CorruptError, match="axis 't'"):
        next(batches)


@pytest.fixture
def cold(monkeypatch):
    """Nothing seems to be in the page cache; the ranges that are read from files."""
    monkeypatch.setattr(RowReader, "is_cached", lambda *_: False)
    monkeypatch.setattr(MappedFile, "is_cached", lambda *_: False)
    found = []
    fill = FileReads.read

    def read(files, ranges):
        found.append(ranges)
        fill(files, ranges)

    monkeypatch.setattr(FileReads, "read", read)
    return found


@pytest.mark.parametrize("num_workers, kept_fraction", [(0, 0.0), (2, 0.5), (2, 1.0)])
def test_cold_rows_are_the_same_read_from_files(
    tmp_path, monkeypatch, cold, num_workers, kept_fraction
):
    """Long rows beside short ones, over the ends of shards; some columns are advised instead. A
    rank without a row gets an empty batch of them."""
    rng = np.random.default_rng(0)
    columns = {
        "states": Column("float16", (1024,), axis="t", shard_items=128, chunk_items=32),
        "packed": Column("float16", (1024,), axis="t", codec="zstd:1"),
        "last": Column("uint8", (70_000,), shard_items=4, chunk_items=1),
        "label": Column("int8"),
    }
    rows = []
    with StoreWriter.create(tmp_path / "s.zarr", Schema(columns)) as writer:
        for i in range(20):
            states = rng.normal(size=(rng.integers(0, 90), 1024)).astype(np.float16)
            last = rng.integers(0, 256, 70_000, np.uint8)
            rows.append(
                (f"{i}", {"states": states, "packed": states, "last": last, "label": np.int8(i)})
            )
            writer.append(*rows[-1])
    monkeypatch.setattr("store.feed.loader.kept_fraction", lambda *_: kept_fraction)
    loader = TraceLoader(tmp_path / "s.zarr", None, 3, True, num_workers=num_workers)
    batches = list(loader)
    for batch in batches:
        assert_values(batch, rows)
    assert sorted(row for batch in batches for row in batch.rows.tolist()) == list(range(20))
    assert len(cold) > len(loader)  # of two columns
    options = {"num_workers": num_workers, "rows": range(7), "batch_size": 1}
    for i, loader in enumerate(ranks(tmp_path / "s.zarr", 3, **options)):
        with pytest.warns(RuntimeWarning, match="drop_last=True"):
            *_, last = loader
        assert last["last"].shape == (int(i == 0), 70_000)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_cold_neighbours_are_read_from_files(tmp_path, monkeypatch, cold, num_workers):
    """Small rows in their order, across files and gaps, as long ranges."""
    values = np.random.default_rng(0).integers(0, 256, (700, 4096), np.uint8)
    column = Column("uint8", (4096,), chunk_items=8, shard_items=160)
    path = one_column(tmp_path / "s.zarr", "x", column, values).path
    for rows in (None, [*range(5, 300), *range(310, 700), 2]):
        loader = TraceLoader(path, ["x"], 100, rows=rows, num_workers=num_workers, arrays="numpy")
        monkeypatch.setattr(loader, "_batches_together", lambda: 1)
        cold.clear()
        for batch in loader:
            np.testing.assert_array_equal(batch["x"], values[batch.rows])
        assert len(cold) > 5


@pytest.mark.timeout(60)
@pytest.mark.parametrize("lengths", [(2, 2, 0)])
def test_a_worker_of_torch_sends_a_batch_without_items(tmp_path, lengths):
    rows = [np.arange(n, dtype="i4") for n in lengths]
    store = one_column(tmp_path / "s.zarr", "x", Column("int32", axis="tokens"), rows)
    loader = DataLoader(TraceDataset(store), 2, num_workers=1)
    assert [batch["x"].values.tolist() for batch in loader] == [[0, 1, 0, 1], []]


def test_rows_read_one_by_one_pack_to_the_same_batch(store_path, rows):
    """A wrapper that hides `__getitems__`, such as ConcatDataset, gives the same batches."""
    batch = next(iter(DataLoader(ConcatDataset([TraceDataset(store_path)]), batch_size=6)))
    assert_batch(batch, [row for _, row in rows[:6]])
    assert batch.rows.tolist() == list(range(6))


@pytest.mark.parametrize(
    "name, change, found",
    [
        ("label", None, "none"),
        ("label", lambda value: value.double(), r"float64 \(\)"),
        ("hidden_states", lambda value: value[..., :2], r"ragged float16 \(3, 2\)"),
        ("states", str, "a text"),
    ],
)
def test_rows_that_differ_in_a_column_make_no_batch(store_path, name, change, found):
    """Whichever comes first; the error names the column and the rows."""
    for first, numbers in enumerate((r"row 3, .* in rows \[8\]", r"row 3, .* in rows \[5, 8\]")):
        rows = [TraceDataset(store_path)[i] for i in (3, 5, 8)]
        for row in rows[first : first + 2]:
            value = row.pop(name)
            if change:
                row[name] = change(value)
        with pytest.raises(SchemaError, match=f"column {name!r}: .*{numbers}") as error:
            Batch.from_rows(rows)
        assert error.match(f"{found} in row")


CACHE = "cache_bytes: expected 0, or at least one chunk of 24 bytes, found"
SEQUENCE = "rows: expected a sequence of"
SELECTION = "expected a selection from 0 to 2"


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"batch_size": 2.5}, ValueError, "batch_size: expected an integer of 1 or more, found"),
        ({"num_workers": -1}, ValueError, "num_workers: expected an integer of 0 or more, found"),
        ({"rank": 2, "world_size": 2}, ValueError, "expected 0 <= rank < world_size"),
        ({"cache_bytes": 23}, ValueError, f"{CACHE} 23"),
        ({"rows": [True]}, IndexError, "expected a mask of its 40 rows, found one of 1"),
        ({"rows": [0, 40]}, IndexError, "expected a row from 0 to 39, found 40"),
        ({"rows": [-41]}, IndexError, "expected a row from -40 to 39, found -41"),
        ({"rows": np.array([2**63], np.uint64)}, IndexError, f"to 39, found {2**63}"),
        *(
            ({"rows": wrong}, TypeError, SEQUENCE)
            for wrong in ([[0]], "0", [0, "0"], np.array([0], object))
        ),
        ({"arrays": "jax"}, ValueError, 'arrays: expected "torch" or "numpy", found \'jax\''),
        ({"arrays": "numpy", "pin_memory": True}, ValueError, 'expected False with arrays="numpy"'),
        ({"shuffle": "blocks"}, ValueError, "shuffle: expected one of False, True, found 'blocks'"),
        ({"rows": [1], "follow": True}, ValueError, "follow: expected False with rows"),
        ({"replacement": True}, ValueError, "replacement: expected weights with it"),
        ({"weights": [1]}, ValueError, "weights: expected shuffle=True"),
        ({"device": "cpu"}, ValueError, "device: expected one of CUDA, found 'cpu'"),
        ({"device": "gpu"}, ValueError, "device: expected one such as 'cuda:0', found 'gpu'"),
        ({"device": "cuda", "arrays": "numpy"}, ValueError, "expected none with arrays="),
        ({"select": {"planes": {"layers": slice(0, 3)}}}, IndexError, SELECTION),
        ({"select": {"planes": {"depth": 0}}}, NotFoundError, "expected an axis of ["),
        ({"select": {"lables": {}}}, NotFoundError, "select: expected one of the columns read"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(store_path, arguments, error, message):
    """Before the first batch; by a dataset as well."""
    assert message in complaint(error, TraceLoader, store_path, **arguments)
    if "select" in arguments:
        assert message in complaint(error, TraceDataset, store_path, **arguments)
    elif error is IndexError and "mask" not in message:
        dataset = TraceDataset(store_path)
        expected, _, _ = message.partition(", found")
        assert expected in complaint(IndexError, dataset.__getitems__, arguments["rows"])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"position": 41}, "expected position from 0 to 40, found 41"),
        ({"position": 2.5}, "expected position from 0 to 40, found 2.5"),
        ({"epoch": -1}, "expected epoch from 0 to 536870912, found -1"),
        ({"seed": 6}, "expected seed 5, found 6"),
        ({"shuffle": False}, "expected shuffle True, found False"),
        ({"order": 2}, "expected order 1, found 2"),
        ({"n_rows": 41}, "expected n_rows 40, found 41"),
        ({"rows": "others"}, "expected rows 'all', found 'others'"),
        ({"store": "another"}, "expected store '"),  # with the same rows
    ],
)
def test_a_state_that_fits_nothing_is_refused_and_changes_nothing(store_path, change, message):
    loader = TraceLoader(store_path, ["label"], 3, True, SEED)
    next(iter(loader))
    before = loader.state_dict()
    said = complaint(ValueError, loader.load_state_dict, before | change)
    assert said.startswith(f"state_dict: {message}")
    assert loader.state_dict() == before


@pytest.mark.parametrize("epoch", [-1, 1.5, 2**29 + 1])
def test_an_epoch_is_a_number_of_a_known_range(store_path, epoch):
    loader = TraceLoader(store_path, ["label"])
    assert "epoch: expected an integer from 0" in complaint(ValueError, loader.set_epoch, epoch)
