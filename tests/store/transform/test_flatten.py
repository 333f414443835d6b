"""Flat stores: each token once, in the order of a TokenLoader, with little memory or much."""

import ml_dtypes
import numpy as np
import pytest
from faults import Faulty, full_disk
from killed import kill_at_random
from small import make_store, refused

from store import Column, TokenLoader, TraceLoader, TraceStore
from store.check.verify import verify_store
from store.cli.main import main
from store.transform.flatten import FlatSource
from store.write.build import build_store, partial_path

COLUMNS = ["h", "x", "hs_last", "label", "question_id", "half"]
SELECT = {name: {"layers": "8,16"} for name in ("h", "hs_last")}
LENGTHS = [4, 0, 30, 1, 57, 12]


@pytest.fixture
def traces(tmp_path):
    """Six traces of three questions, with states of three layers."""
    rng = np.random.default_rng(0)
    split = {"split": ("layers",), "shard_items": 24, "chunk_items": 4}
    columns = {
        "h": Column("float16", (3, 5), "tokens", ("layers", "hidden"), **split),
        "x": Column("int64", axis="tokens", codec="zstd:1", chunk_items=16),
        "half": Column("bfloat16", (2,), "tokens"),
        "hs_last": Column("float32", (3, 5), None, ("layers", "hidden")),
        "prompt_len": "int32",
        "label": "int8",
        "question_id": "utf8",
    }
    rows = {
        f"t{i}": {
            "h": rng.random((n, 3, 5)).astype("f2"),
            "x": rng.integers(0, 9, n),
            "half": rng.random((n, 2)).astype(ml_dtypes.bfloat16),
            "hs_last": rng.random((3, 5)).astype("f4"),
            "prompt_len": n // 3,
            "label": i % 2,
            "question_id": f"q{i // 2}",
        }
        for i, n in enumerate(LENGTHS)
    }
    provenance = {"layers": [4, 8, 16], "command": "python -m store import"}
    return make_store(tmp_path / "traces.zarr", columns, rows, provenance)


def flatten(traces, path, memory_bytes=10**9, columns=COLUMNS, **options):
    options = {"layers": "8,16", **options}
    source = FlatSource(traces, columns, partial_path(path) / "_tmp", memory_bytes, **options)
    return source, build_store(path, source)


def assert_is_the_order_of(loader, flat):
    """The rows of a flat store, read in sequence, are the batches of a loader of tokens."""
    found = TraceLoader(flat, batch_size=loader.batch_size, num_workers=1, arrays="numpy")
    assert len(found) == len(loader) > 0
    for batch, wanted in zip(found, loader, strict=True):
        assert batch["row"].tolist() == wanted.rows.tolist()
        assert batch["position"].tolist() == wanted.positions.tolist()
        for name, values in wanted.columns.items():
            assert_equal(batch[name], values)


def assert_equal(found, wanted):
    if isinstance(wanted, list):
        assert found == wanted
        return
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert found.tobytes() == wanted.tobytes()


SOME = [0, 2, 4, 5]
# no shuffle; one bucket for each token, a few, one; all traces or some
WAYS = [(0, None), (0, SOME), (1, [0, 1, 3]), (2500, None), (2500, SOME), (10**9, None)]


@pytest.mark.parametrize("tokens", ["all", "answer", "x"])
def test_rows_are_the_first_epoch_of_a_loader(traces, tmp_path, tokens):
    """Whether the tokens fit in memory or go through buckets."""
    for i, (memory_bytes, rows) in enumerate(WAYS):
        shuffle = memory_bytes > 0
        path = tmp_path / f"{i}" / "flat.zarr"
        path.parent.mkdir()
        options = {"tokens": tokens, "rows": rows, "shuffle": shuffle, "seed": 3}
        source, flat = flatten(traces, path, max(1, memory_bytes), **options)
        assert source.is_scattered == shuffle
        loader = TokenLoader(traces, COLUMNS, 7, select=SELECT, arrays="numpy", **options)
        assert_is_the_order_of(loader, flat)
        assert flat.ids[0] == f"t{int(flat[0]['row'])}:{int(flat[0]['position'])}"
        assert flat.layers("h") == flat.layers("hs_last") == [8, 16]
        assert [one.name for one in path.parent.iterdir()] == ["flat.zarr"]
        assert verify_store(path).problems == []
        loader.load_state_dict(flat.provenance["flat"])


def test_raw_tokens_that_fit_in_memory_are_read_once(traces, tmp_path):
    columns = ["h", "label"]
    source, flat = flatten(traces, tmp_path / "flat.zarr", columns=columns, shuffle=True)
    assert not source.is_scattered
    options = {"select": {"h": SELECT["h"]}, "arrays": "numpy"}
    assert_is_the_order_of(TokenLoader(traces, columns, 9, True, **options), flat)


@pytest.mark.parametrize("memory_bytes", [2500, 10**9])
@pytest.mark.parametrize("columns", [COLUMNS, ["h"]])
def test_a_build_that_stops_goes_on(traces, tmp_path, monkeypatch, memory_bytes, columns):
    """At a full disk; what is there is kept, and the files of buckets are not."""
    monkeypatch.setattr("store.transform.flatten.BLOCK_BYTES", 300)
    monkeypatch.setattr("store.write.writer.COMMIT_ROWS", 10)
    whole = flatten(traces, tmp_path / "whole.zarr", memory_bytes, columns, shuffle=True)[1]
    path = tmp_path / "s.zarr"
    for at in (60, 400, 250):
        options = {"layers": "8,16", "shuffle": True}
        source = FlatSource(traces, columns, partial_path(path) / "_tmp", memory_bytes, **options)
        with pytest.raises(OSError, match="ENOSPC"):
            build_store(path, source, files=Faulty(at, full_disk, lasting=True))
        assert not list(partial_path(path).glob("_tmp/bucket-*"))
    built = flatten(traces, path, memory_bytes, columns, shuffle=True)[1]
    assert built.ids[:] == whole.ids[:]
    for name in columns:
        found, wanted = (one.read_arrays(slice(None), [name])[name] for one in (built, whole))
        assert_equal(found, wanted)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_builds_go_on(tmp_path, kills):
    rng = np.random.default_rng(0)
    states = Column("float32", (40,), "tokens")
    rows = {f"t{i}": {"h": rng.random((n, 40)).astype("f4")} for i, n in enumerate([700] * 20)}
    traces = make_store(tmp_path / "in.zarr", {"h": states}, rows)
    arguments = ["in.zarr", "--column", "h", "--shuffle", "--memory-mb", "1"]
    modules = ["store.transform.flatten"]
    stores = kill_at_random(tmp_path, "tokens", arguments, modules, 999, 1.0, kills)
    for path in [tmp_path / "whole.zarr", *stores]:
        loader = TokenLoader(traces, ["h"], 999, True, arrays="numpy")
        assert_is_the_order_of(loader, TraceStore.open(path))
        assert not (path / "_tmp").exists()
    assert not list(tmp_path.glob("*.partial"))


def test_the_command(traces, tmp_path, capsys):
    """A filter chooses traces; the same command again does nothing, another one refuses."""
    path = str(tmp_path / "flat.zarr")
    command = ["tokens", path, str(traces.path), "--column", "h,label", "--layers", "16"]
    command += ["--tokens", "answer", "--where", "label == 0", "--shuffle", "--seed", "5"]
    assert main(command) == 0
    assert "61 tokens of 3 traces" in capsys.readouterr().out
    rows = [0, 2, 4]
    select = {"h": {"layers": "16"}}
    options = {"tokens": "answer", "rows": rows, "select": select, "arrays": "numpy"}
    flat = TraceStore.open(path)
    assert_is_the_order_of(TokenLoader(traces, ["h", "label"], 9, True, 5, **options), flat)
    assert flat.provenance["flat"]["where"] == "label == 0"
    assert flat.provenance["flat"]["of_command"] == "python -m store import"
    assert main(command) == 0
    assert "nothing to do" in capsys.readouterr().out
    line = refused(capsys, *command[:-1], 6)
    assert "found a store with flat.seed 5 instead of 6" in line


def test_what_is_refused(traces, tmp_path, capsys):
    command = ["tokens", tmp_path / "flat.zarr", traces.path, "--column"]
    for arguments, message in (
        (["label"], "one ragged axis, found ['label'], of none"),
        (["x", "--layers", "8"], "expected a column with layers, found x"),
        (["h", "--layers", "9"], "there is no layer 9"),
        (["hh"], "expected a column, found 'hh'"),
        (["x,trace_id"], "column 'trace_id' of its own"),
        (["h", "--where", "label == 7"], "expected tokens to take, found none"),
    ):
        assert message in refused(capsys, *command, *arguments)
    inside = ["tokens", traces.path / "flat.zarr", *command[2:], "h"]
    assert "expected a path outside of every store" in refused(capsys, *inside)
    rows = {"a": {"h": np.zeros(2, "i1"), "row": 1}}
    columns = {"h": Column("int8", axis="t"), "row": "int8"}
    named = make_store(tmp_path / "named.zarr", columns, rows)
    line = refused(capsys, *command[:2], named.path, "--column", "h,row")
    assert "has a column 'row' of its own; leave it out" in line
