"""All six generations of raw files: every value against what their maker put in."""

import itertools
import json
import pickle

import numpy as np
import pytest
from raw_generations import (
    BY_STEP,
    GENERATIONS,
    LARGER,
    SMALL,
    Generated,
    bytes_of,
    imported,
    stop_import,
    write_files,
    write_pickle,
)

from store.transform.merge import merge_stores

SLOW = pytest.mark.slow
KINDS = ("float16", "float32", "torch.float16", "torch.bfloat16")
EVERY = [*itertools.product(GENERATIONS, KINDS, (SMALL, LARGER))]
SOME = [*zip(GENERATIONS, itertools.cycle(KINDS), itertools.cycle((SMALL, LARGER)))]
ENDS = [*GENERATIONS[::5], *(pytest.param(letter, marks=SLOW) for letter in GENERATIONS[1:5])]


def assert_same(found, trace, letter):
    """A row has every value of the trace, and no column that the maker does not know."""
    expected = trace.expected(letter)
    names = found.keys() - {"trace_id", "source_file", "score", "label"}
    assert names == expected.keys()
    for name, value in expected.items():
        if name in ("references", "token_texts"):
            assert json.loads(found[name]) == value
        elif isinstance(value, str):
            assert found[name] == value
        else:
            assert_equal_numbers(found[name], value, name)
    assert len(found["tokens"]) == trace.n_states(letter)


def assert_equal_numbers(found, value, name):
    """Bit for bit; reductions in float16."""
    if name.startswith("attn"):
        value = value.astype(np.float16)
        assert found.dtype == np.float16
    assert np.array_equal(found, value), name


def made(n, letter, model=SMALL, kind="float16", **options):
    return [Generated(i, model, kind, **options) for i in range(n)]


@pytest.mark.parametrize(
    "letter, kind, model",
    [one if one in SOME else pytest.param(*one, marks=SLOW) for one in EVERY],
)
def test_every_value_of_a_generation_comes_in(tmp_path, letter, kind, model):
    traces = made(7, letter, model, kind, beams=3)
    write_files(tmp_path / "in", letter, traces, packed=kind == "float16")
    store, report = imported(tmp_path / "s.zarr", tmp_path / "in")
    assert (report.rows, report.whole) == (7, True)
    for trace, found in zip(traces, store, strict=True):
        assert_same(found, trace, letter)
    assert ("beam" in store.provenance) == (letter in BY_STEP)


@pytest.mark.parametrize("letter", GENERATIONS)
def test_full_maps_come_in_as_well(tmp_path, letter):
    [trace] = made(1, letter)
    write_files(tmp_path / "in", letter, [trace])
    store, _ = imported(tmp_path / "s.zarr", tmp_path / "in", keep_attention=True)
    total = trace.n_states(letter)
    maps = trace.maps[:, :, :total, :total].transpose(2, 3, 0, 1)
    found = store[0]["attentions"]
    assert np.array_equal(found.reshape(maps.shape), maps)


@pytest.mark.parametrize("letter", ENDS)
def test_a_stopped_import_ends_with_the_same_bytes(tmp_path, letter, monkeypatch):
    """Stopped in the middle of a file, in which a record is left out."""
    monkeypatch.setattr("store.write.writer.COMMIT_ROWS", 2)
    traces = made(9, letter)
    files = write_files(tmp_path / "in", letter, traces)
    damage(files[1], 1)
    whole, wanted = imported(tmp_path / "whole.zarr", tmp_path / "in")
    assert (wanted.rows, wanted.skipped.n) == (8, 1)
    for stop in (4, 5):
        out = tmp_path / f"{stop}.zarr"
        stop_import(out, tmp_path / "in", stop=stop)
        store, report = imported(out, tmp_path / "in")
        assert bytes_of(store) == bytes_of(whole)
        assert (report.rows, report.skipped) == (8, wanted.skipped)


def damage(file, i):
    """Take the states from a record."""
    records = read_records(file)
    records[i]["hidden_states"] = []
    write_pickle(file, records)


def read_records(file):
    return pickle.loads(file.read_bytes())  # noqa: S301 - the test wrote it


@pytest.mark.parametrize("letter", ENDS)
def test_parts_make_the_whole(tmp_path, letter):
    """Positions as well: they count the records of all parts, damaged ones too."""
    traces = made(9, letter)
    files = write_files(tmp_path / "in", letter, traces, per_file=2)
    damage(files[0], 0)
    whole, _ = imported(tmp_path / "w.zarr", tmp_path / "in")
    parts = [imported(tmp_path / f"{k}.zarr", tmp_path / "in", part=(k, 2))[0] for k in (1, 2)]
    merged = merge_stores(tmp_path / "m.zarr", parts, lambda done: None)
    assert sorted(merged.ids) == sorted(whole.ids)
    by_id = {trace.expected(letter)["question_id"]: trace for trace in traces[1:]}
    assert sorted(by_id) == sorted(whole.ids)
    for found in merged:
        assert_same(found, by_id[found["question_id"]], letter)


NEIGHBOURS = list(zip(GENERATIONS, "BCDEFA", strict=True))
OTHER_PAIRS = set(itertools.permutations(GENERATIONS, 2)) - set(NEIGHBOURS)


@pytest.mark.parametrize(
    "mine, other",
    [*NEIGHBOURS, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in sorted(OTHER_PAIRS))],
)
def test_a_file_of_two_generations(tmp_path, mine, other):
    """The record that is not like the others is named, and they go on."""
    traces = made(5, mine, numbered=True)
    records = [trace.record(mine) for trace in traces]
    records[1] = traces[1].record(other)
    write_pickle(tmp_path / "a.pkl", records)
    store, report = imported(tmp_path / "s.zarr", tmp_path / "a.pkl")
    assert report.skipped.n == 1
    [message] = report.skipped.messages
    assert message.startswith(
        f"{tmp_path}/a.pkl, record 1: expected a record like most of its file"
    )
    assert f"found raw {other}" in message
    kept = [trace for trace in traces if trace.number != 1]
    for trace, found in zip(kept, store, strict=True):
        assert_same(found, trace, mine)


def test_steps_may_be_lists_of_numbers(tmp_path):
    trace = Generated(3, kind="float32", numbered=True)
    record = trace.record("A")
    for layer in record["hidden_states"]:
        layer[:] = [step.astype(float).tolist() for step in layer]
    write_pickle(tmp_path / "a.pkl", [record])
    store, _ = imported(tmp_path / "s.zarr", tmp_path / "a.pkl")
    assert_same(store[0], trace, "A")


def test_fewer_digits_than_most_records_have_come_in_as_they_are(tmp_path):
    traces = [*made(2, "A", kind="float32"), Generated(2)]
    write_pickle(tmp_path / "a.pkl", [trace.record("A") for trace in traces])
    store, report = imported(tmp_path / "s.zarr", tmp_path / "a.pkl")
    assert (report.rows, report.skipped.n) == (3, 0)
    for trace, found in zip(traces, store, strict=True):
        assert_same(found, trace, "A")
