"""Space on the disk: estimates against what is written, and what is refused."""

import numpy as np
import pytest
from oracle import SCHEMA, make_rows, write_store

from store import Column, Schema, SchemaError, TraceStore
from store.cli.main import main
from store.write.build import build_store, open_begun
from store.write.space import (
    SpaceCheck,
    bytes_of_rows,
    bytes_under,
    check_space,
    free_bytes,
    row_bytes,
)

N_ROWS, N_FLOATS = 40, 1000


class Zeros:
    schema = Schema({"x": Column("float32", item_shape=(N_FLOATS,)), "text": Column("utf8")})
    provenance, remarks = {"source": "zeros"}, {}

    def rows(self, start=0):
        for i in range(start, N_ROWS):
            yield f"t{i}", {"x": np.zeros(N_FLOATS, "f4"), "text": "é" * 10}


def check(path, free, **settings):
    """A check against a disk of so many bytes; it looks after the first and four more rows."""
    said = []
    space = SpaceCheck(
        path, lambda n: n / N_ROWS, 4, free=lambda path: free, warn=said.append, **settings
    )
    return space, said


ROW = 4 * N_FLOATS + 20
REST = 35 * ROW  # of 40, when it has looked


def test_a_build_that_fits_says_nothing(tmp_path):
    space, said = check(tmp_path, REST)
    assert len(build_store(tmp_path / "s.zarr", Zeros(), space=space)) == N_ROWS
    assert said == []


def test_a_build_that_may_not_fit_is_a_warning(tmp_path):
    """One, from the estimate on; the rows may be shorter than the first."""
    space, said = check(tmp_path, REST - 1)
    assert len(build_store(tmp_path / "s.zarr", Zeros(), space=space)) == N_ROWS
    assert said == [
        f"warning: {tmp_path}: the rest will take about 0.1 MB, and 0.1 MB are free on its disk"
    ]


def test_a_build_that_cannot_fit_is_refused_early(tmp_path):
    """After the first rows, which are kept; --ignore-space goes on."""
    space, _ = check(tmp_path, int(REST / 1.5) - 1)
    with pytest.raises(
        SchemaError, match=r"will take about 0\.1 MB, and 0\.1 MB are free .*--ignore-space"
    ):
        build_store(tmp_path / "s.zarr", Zeros(), space=space)
    assert len(open_begun(tmp_path / "s.zarr")) == 5
    space, said = check(tmp_path, 0, ignore=True)
    assert len(build_store(tmp_path / "s.zarr", Zeros(), space=space)) == N_ROWS
    assert len(said) == 1


def test_the_estimate_is_of_what_is_left(tmp_path):
    """A build that goes on needs the space of the other rows only."""
    space, _ = check(tmp_path, 0)
    with pytest.raises(SchemaError):
        build_store(tmp_path / "s.zarr", Zeros(), space=space)
    space, said = check(tmp_path, 30 * ROW)
    assert len(build_store(tmp_path / "s.zarr", Zeros(), space=space)) == N_ROWS
    assert said == []


def test_bytes_of_a_row_are_those_of_its_columns():
    _, row = next(Zeros().rows())
    assert row_bytes(row, Zeros.schema) == ROW


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


def test_free_bytes_are_those_of_the_disk_that_a_path_will_be_on(tmp_path):
    """Also if its folders are not there yet."""

    class Usage:
        free = 7

    asked = []
    assert free_bytes(tmp_path / "a/b/s.zarr", lambda path: asked.append(path) or Usage) == 7
    assert asked == [tmp_path]
    check_space(tmp_path, 7, free=lambda path: 7)
    with pytest.raises(SchemaError, match="it will take"):
        check_space(tmp_path, 8, free=lambda path: 7)


@pytest.mark.parametrize("command", ["merge", "subset"])
def test_copies_that_do_not_fit_are_refused_before_they_begin(
    tmp_path, capsys, monkeypatch, command
):
    """One line with both numbers, and nothing is made; --ignore-space makes it."""
    write_store(tmp_path / "s.zarr", SCHEMA, make_rows(SCHEMA, 6, seed=1))
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(TraceStore.open(tmp_path / "s.zarr").ids))
    monkeypatch.setattr("store.write.space.free_bytes", lambda path: 100)
    arguments = [command, f"{tmp_path}/o.zarr", f"{tmp_path}/s.zarr"]
    arguments += ["--ids", str(ids)] if command == "subset" else []
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "0.0 MB are free on its disk; choose another disk, or pass --ignore-space" in error
    assert not list(tmp_path.glob("o.zarr*"))
    assert main([*arguments, "--ignore-space"]) == 0
