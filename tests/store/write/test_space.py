"""Space on the disk: what copies will take, and what is refused."""

from types import SimpleNamespace

import pytest
from oracle import SCHEMA, make_rows, write_store
from small import refused

from store import SchemaError, TraceStore
from store.cli.main import main
from store.write.space import bytes_of_rows, bytes_under, check_space, free_bytes


@pytest.fixture
def store(tmp_path):
    return TraceStore.open(write_store(tmp_path / "s.zarr", SCHEMA, make_rows(SCHEMA, 30, seed=1)))


def test_bytes_of_rows_are_their_share_of_the_store(store):
    """All rows take what the columns take; none take nothing."""
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
def test_copies_that_do_not_fit_are_refused_before_they_begin(
    store, tmp_path, capsys, monkeypatch, command
):
    """One line with both numbers, and nothing is made; --ignore-space makes it."""
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(store.ids))
    monkeypatch.setattr("store.write.space.free_bytes", lambda _: 100)
    arguments = [command, f"{tmp_path}/o.zarr", str(store.path)]
    arguments += ["--ids", str(ids)] if command == "subset" else []
    said = refused(capsys, *arguments)
    assert "100 B are free on its disk; choose another disk, or pass --ignore-space" in said
    assert not list(tmp_path.glob("o.zarr*"))
    assert main([*arguments, "--ignore-space"]) == 0
