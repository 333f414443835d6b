"""Space on the disk: estimates against what is written, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
from oracle import SCHEMA, make_rows, write_store

from store import Column, Schema, SchemaError, TraceStore
from store.cli.main import main
from store.reports import size_text
from store.write.build import build_store, open_begun
from store.write.space import (
    SpaceCheck,
    bytes_of_rows,
    bytes_under,
    check_space,
    free_bytes,
)

N_ROWS, N_FLOATS = 40, 1000


class Zeros:
    schema = Schema({"x": Column("float32", item_shape=(N_FLOATS,)), "text": Column("utf8")})
    provenance, remarks = {"source": "zeros"}, {}

    def rows(self, start=0):
        for i in range(start, N_ROWS):
            yield f"t{i:02}", {"x": np.zeros(N_FLOATS, "f4"), "text": "é" * 10}


@pytest.fixture
def disk(monkeypatch):
    """Set how many bytes are free on the disk."""

    def set_free(n_bytes):
        monkeypatch.setattr("store.write.space.free_bytes", lambda path: n_bytes)

    return set_free


def check(path, **settings):
    """A check that looks after the first and four more rows."""
    return SpaceCheck(path, lambda n: n / N_ROWS, 4, **settings)


ROW = 4 * N_FLOATS + 20 + 3  # with the id
REST = 35 * ROW  # of 40, when it has looked


def test_a_build_that_fits_says_nothing(tmp_path, disk, capsys):
    disk(REST)
    assert len(build_store(tmp_path / "s.zarr", Zeros(), space=check(tmp_path))) == N_ROWS
    assert capsys.readouterr().err == ""


def test_a_build_that_may_not_fit_is_a_warning(tmp_path, disk, capsys):
    """One, from the estimate on; the rows may be shorter than the first."""
    disk(REST - 1)
    assert len(build_store(tmp_path / "s.zarr", Zeros(), space=check(tmp_path))) == N_ROWS
    sizes = [size_text(REST), size_text(REST - 1)]
    about = "the rest will take about {}, and {} are free on its disk".format(*sizes)
    assert capsys.readouterr().err == f"warning: {tmp_path}: {about}\n"


def test_a_build_that_cannot_fit_is_refused_early(tmp_path, disk, capsys):
    """After the first rows, which are kept; --ignore-space goes on."""
    disk(int(REST / 1.5) - 1)
    refused = r"will take about [0-9.]+ kB, and [0-9.]+ kB are free .*--ignore-space"
    with pytest.raises(SchemaError, match=refused):
        build_store(tmp_path / "s.zarr", Zeros(), space=check(tmp_path))
    assert len(open_begun(tmp_path / "s.zarr")) == 5
    disk(0)
    space = check(tmp_path, ignore=True)
    assert len(build_store(tmp_path / "s.zarr", Zeros(), space=space)) == N_ROWS
    assert capsys.readouterr().err.count("\n") == 1


def test_the_estimate_is_of_what_is_left(tmp_path, disk, capsys):
    """A build that goes on needs the space of the other rows only."""
    disk(0)
    with pytest.raises(SchemaError):
        build_store(tmp_path / "s.zarr", Zeros(), space=check(tmp_path))
    disk(30 * ROW)
    assert len(build_store(tmp_path / "s.zarr", Zeros(), space=check(tmp_path))) == N_ROWS
    assert capsys.readouterr().err == ""


def test_bytes_of_rows_are_their_share_of_the_store(tmp_path):
    """All rows take what the columns take; none take nothing."""
    store = TraceStore.open(write_store(tmp_path / "s.zarr", SCHEMA, make_rows(SCHEMA, 30, seed=1)))
    columns = sum(
        bytes_under(store.path / store.schema.layout(name).path) for name in store.schema.stored
    )
    assert bytes_of_rows(store, range(30)) == pytest.approx(columns, abs=1)
    halves = [bytes_of_rows(store, rows) for rows in (range(10), range(10, 30))]
    assert sum(halves) == pytest.approx(columns, abs=2)
    assert bytes_of_rows(store, []) == 0


def test_free_bytes_are_those_of_the_disk_that_a_path_will_be_on(tmp_path, monkeypatch):
    """Also if its folders do not exist yet."""
    asked = []

    def disk_usage(path):
        asked.append(path)
        return SimpleNamespace(free=7)

    monkeypatch.setattr("store.write.space.shutil.disk_usage", disk_usage)
    assert free_bytes(tmp_path / "a/b/s.zarr") == 7
    assert asked == [tmp_path]
    check_space(tmp_path, 7)
    with pytest.raises(SchemaError, match="it will take"):
        check_space(tmp_path, 8)


@pytest.mark.parametrize("command", ["merge", "subset"])
def test_copies_that_do_not_fit_are_refused_before_they_begin(tmp_path, capsys, disk, command):
    """One line with both numbers, and nothing is made; --ignore-space makes it."""
    write_store(tmp_path / "s.zarr", SCHEMA, make_rows(SCHEMA, 6, seed=1))
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(TraceStore.open(tmp_path / "s.zarr").ids))
    disk(100)
    arguments = [command, f"{tmp_path}/o.zarr", f"{tmp_path}/s.zarr"]
    arguments += ["--ids", str(ids)] if command == "subset" else []
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "100 B are free on its disk; choose another disk, or pass --ignore-space" in error
    assert not list(tmp_path.glob("o.zarr*"))
    assert main([*arguments, "--ignore-space"]) == 0
