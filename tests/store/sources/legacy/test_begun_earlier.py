"""Imports that an earlier version began or finished: no row twice, and none of other values."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from raw_generations import Generated, write_pickle

from store.errors import SchemaError
from store.read.store import TraceStore
from store.sources.legacy import imports, raw
from store.sources.legacy.files import find_files
from store.sources.legacy.imports import ImportSource
from store.write.build import build_store, open_begun

ROOT = Path(__file__).parents[4]
EARLIER = "9944410"  # the last revision that read two generations, and of "raw v1" no cut answers
STOP = """
import sys
from store.sources.legacy.files import find_files
from store.sources.legacy.imports import ImportSource
from store.write import writer
from store.write.build import build_store

writer.COMMIT_ROWS = 1
source = ImportSource(find_files(["in"]))
whole = source.rows
def rows(start=0):
    for i, row in enumerate(whole(start)):
        if i == int(sys.argv[1]):
            raise KeyboardInterrupt
        yield row
source.rows = rows
try:
    build_store("s.zarr", source)
except KeyboardInterrupt:
    pass
"""
# the earlier version reads 0, 3, 6, 9 of the cut ones: nothing was cut from them
N = 11


def write_cut(folder):
    """Files of generation B, in which every third answer is whole."""
    traces = [Generated(i) for i in range(N)]
    for k, start in enumerate((0, 4, 8)):
        records = [trace.record("B") for trace in traces[start : start + 4]]
        write_pickle(folder / f"in/b{k}.pkl", records)
    write_pickle(folder / "in/a.pkl", [trace.record("A") for trace in traces])
    return traces


def whole_numbers(traces):
    return [trace.number for trace in traces if not trace.n_cut]


def go_on(folder):
    source = ImportSource(find_files([str(folder / "in")]), begun=open_begun(folder / "s.zarr"))
    return build_store(folder / "s.zarr", source), source.report


def check_ended(folder, n_committed, n_other=0):
    """Rows and left-out records are all of the records, each once."""
    traces = [Generated(i) for i in range(N)]
    store, report = go_on(folder)
    assert store.provenance["format"] == "raw v1"
    numbers = list(map(int, store.ids))
    assert numbers == sorted(set(numbers))
    committed = whole_numbers(traces)[:n_committed]
    assert numbers[:n_committed] == committed
    # a record before the last committed one was left out, and stays so
    left_out = [i for i in range(N) if i not in numbers]
    assert report.skipped.n == n_other + len(left_out)
    assert not committed or all(i < committed[-1] for i in left_out)
    for found in store:
        trace = traces[int(found["question_id"])]
        assert found["tokens"].tolist() == trace.expected("B")["tokens"].tolist()
        assert (found["hidden_states"] == trace.expected("B")["hidden_states"]).all()
    again, report = go_on(folder)
    assert list(again.ids) == list(store.ids)
    assert report.skipped.n == n_other + len(left_out)


@pytest.mark.parametrize("stop", range(1, 5))
def test_a_stopped_import_goes_on_behind_what_was_left_out(tmp_path, stop, monkeypatch):
    """What the earlier version refused is read from there on; nothing comes twice."""
    monkeypatch.setattr("store.write.writer.COMMIT_ROWS", 1)
    write_cut(tmp_path)
    row_now = raw.RawTraces.row

    def row_earlier(traces, i):
        if "tokens_full" not in traces.records[i] or traces.records[i]["tokens_after_cutoff"]:
            raise SchemaError("tokens_full: expected fewer")
        return row_now(traces, i)

    with monkeypatch.context() as patch:
        patch.setattr(raw.RawTraces, "row", row_earlier)
        patch.setattr(imports, "_describe_kind", lambda kind: {})
        source = ImportSource(find_files([str(tmp_path / "in")]))
        rows = source.rows
        source.rows = lambda start=0: stopped(rows(start), stop)
        with pytest.raises(KeyboardInterrupt):
            build_store(tmp_path / "s.zarr", source)
    check_ended(tmp_path, stop)


def stopped(rows, stop):
    for i, row in enumerate(rows):
        if i == stop:
            break
        yield row
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 2, 3, 99])
def test_an_import_of_the_earlier_revision_goes_on(tmp_path, stop):
    """Its own code begins the store, or (99) finishes it."""
    archive = subprocess.run(
        ["git", "-C", ROOT, "archive", EARLIER, "store"], capture_output=True, check=False
    )
    if archive.returncode != 0:
        pytest.skip(f"no revision {EARLIER} in this copy of the repository")
    (tmp_path / "earlier").mkdir()
    subprocess.run(["tar", "-x", "-C", tmp_path / "earlier"], input=archive.stdout, check=True)
    traces = write_cut(tmp_path)
    subprocess.run(
        [sys.executable, "-c", STOP, str(stop)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "earlier")},
        check=True,
    )
    n_whole = len(whole_numbers(traces))
    if stop > n_whole:
        begun = TraceStore.open(tmp_path / "s.zarr")
        assert list(map(int, begun.ids)) == whole_numbers(traces)
        store, report = go_on(tmp_path)
        assert list(store.ids) == list(begun.ids)
        assert report.skipped.n > 0
        return
    check_ended(tmp_path, stop, n_other=N)  # it left out the records of generation A one by one
