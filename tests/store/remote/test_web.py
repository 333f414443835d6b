"""A store on any static web server is read as one in a bucket; nothing is written there."""

import asyncio
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from oracle import SCHEMA, assert_batch, write_store
from web_server import WebServer, certificate

from store import (
    Column,
    CorruptError,
    NotFoundError,
    Schema,
    SchemaError,
    StoreError,
    StoreWriter,
    TraceStore,
)
from store.check.verify import verify_store
from store.cli.main import main
from store.remote.objects.objects import open_objects
from store.remote.transfer.pull import pull_store

pytestmark = pytest.mark.skipif(find_spec("obstore") is None, reason="pip install '.[remote]'")


@pytest.fixture
def web(tmp_path, rows, monkeypatch):
    """The server, with a store of eight rows."""
    write_store(tmp_path / "site" / "t.zarr", SCHEMA, rows[:8])
    monkeypatch.setenv("TRACE_STORE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRACE_STORE_CACHE_BYTES", "100MB")
    server = WebServer(tmp_path / "site")
    yield server
    server.close()


@pytest.mark.parametrize("way", ["files", "moved"])
def test_it_is_read_like_a_local_one(web, rows, way):
    """Also where the server says that files are elsewhere."""
    store = TraceStore.open(f"{web.url}/{way}/t.zarr")
    waited_s = store.mirror.wait_s
    assert store.row_of(rows[3][0]) == 3
    assert store.mirror.wait_s > waited_s  # for the id table
    assert_batch(store.read(range(8)), [row for _, row in rows[:8]])
    assert store.file_bytes() > 0
    assert verify_store(f"{web.url}/{way}/t.zarr").problems == []
    assert web.methods <= {"GET", "HEAD"}


def test_a_server_that_sends_requests_on_is_asked_once_for_an_object(web, tmp_path):
    """Servers count such requests; once the other address has ended, it is asked for a new one."""
    objects = open_objects(f"{web.url}/moved/t.zarr")
    data = (tmp_path / "site" / "t.zarr" / "tokens" / "c" / "0").read_bytes()
    web.paths.clear()

    async def read(n: int) -> None:
        for start in range(n):
            found = await objects.fetch_ranges("tokens/c/0", [start, 50], [start + 9, 70])
            assert [*map(bytes, found)] == [data[start : start + 9], data[50:70]]

    asyncio.run(read(5))
    moved = [path for path in web.paths if path.startswith("/moved/")]
    assert len(moved) == 1

    async def read_twice() -> list[BaseException | None]:
        return await asyncio.gather(read(1), read(1), return_exceptions=True)

    web.n_signed = 0
    found = asyncio.run(read_twice())
    assert all(isinstance(one, StoreError) and "everybody may read" in str(one) for one in found)
    web.n_signed = 100
    asyncio.run(read(5))


def test_the_page_names_its_address(web):
    """Where a path would have lost a slash; so do the commands that it shows."""
    pytest.importorskip("starlette")
    from store.view.describe import describe
    from store.view.snapshots import open_stores

    url = f"{web.url}/files/t.zarr"
    (opened,) = open_stores([Path(url)], [])
    found = describe(opened.first, opened.path)
    assert (found["place"], found["path"]) == (url, url)


@pytest.mark.parametrize("has_weak_etags", [False, True])
def test_it_is_pulled(web, rows, tmp_path, has_weak_etags):
    web.has_weak_etags = has_weak_etags
    assert main(["pull", f"{web.url}/files/t.zarr", str(tmp_path / "copy.zarr")]) == 0
    copy = TraceStore.open(tmp_path / "copy.zarr")
    assert_batch(copy.read(range(8)), [row for _, row in rows[:8]])


def test_a_store_that_is_replaced_while_it_is_pulled_is_an_error(web, rows, tmp_path, monkeypatch):
    """As by its next state; the same call has that."""
    site, objects = tmp_path / "site" / "t.zarr", open_objects(f"{web.url}/files/t.zarr")
    found = objects.heads

    def heads_before(keys):
        monkeypatch.setattr(objects, "heads", found)
        heads = found(keys)
        with StoreWriter.open(site) as writer:
            writer.append(*rows[8])
        return heads

    monkeypatch.setattr(objects, "heads", heads_before)
    with pytest.raises(CorruptError, match="another store took its place meanwhile, pull it again"):
        pull_store(objects, tmp_path / "copy.zarr")
    pull_store(objects, tmp_path / "copy.zarr")
    copy = TraceStore.open(tmp_path / "copy.zarr")
    assert_batch(copy.read(range(9)), [row for _, row in rows[:9]])


def test_nothing_is_pushed_there(web, tmp_path, capsys):
    """One line says so, before anything is asked for."""
    path = tmp_path / "site" / "t.zarr"
    assert main(["push", str(path), f"{web.url}/files/new.zarr"]) == 2
    assert "only read" in capsys.readouterr().err
    assert not web.paths
    assert not (tmp_path / "site" / "new.zarr").exists()


@pytest.mark.parametrize(
    "path, lacks, words",
    [
        ("files/t.zarr", "has_ranges", "answers ranges"),
        ("files/t.zarr", "has_lengths", "how long its answer is"),  # it was asked again and again
        ("files/nothing.zarr", "", "nothing.zarr"),
        ("loop/t.zarr", "", "without an end"),
        ("secret/t.zarr", "", "everybody may read"),
        ("lost/t.zarr", "", "and not where"),
    ],
)
def test_what_keeps_a_store_from_being_read_is_named(web, path, lacks, words):
    if lacks:
        setattr(web, lacks, False)
    with pytest.raises(StoreError, match=words):
        TraceStore.open(f"{web.url}/{path}").read([0])


def test_a_certificate_has_to_be_trusted(web, rows, tmp_path, monkeypatch):
    """One that is not is refused at once; whom one reader trusts, the next one may not."""
    secure = WebServer(tmp_path / "site", certificate(tmp_path))
    with pytest.raises(StoreError, match="SSL_CERT_FILE"):
        TraceStore.open(f"{secure.url}/files/t.zarr")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    store = TraceStore.open(f"{secure.url}/files/t.zarr")
    assert_batch(store.read(range(8)), [row for _, row in rows[:8]])
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(StoreError, match="SSL_CERT_FILE"):
        TraceStore.open(f"{secure.url}/files/t.zarr")
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    with pytest.raises(SchemaError, match="SSL_CERT_DIR: expected certificates"):
        TraceStore.open(f"{secure.url}/files/t.zarr")
    secure.close()


@pytest.mark.parametrize("start", [0, 10**6])
def test_a_file_that_became_shorter_is_named(web, start):
    """And not waited for."""
    objects = open_objects(f"{web.url}/files/t.zarr", usual_s=2.0)
    with pytest.raises(CorruptError, match=r"tokens/c/0.*a shorter one"):
        objects.get_range("tokens/c/0", start, 10**6 + 10)


def test_a_file_that_was_cut_before_is_named_with_its_size(web, tmp_path):
    file = tmp_path / "site" / "t.zarr" / "tokens" / "c" / "0"
    file.write_bytes(file.read_bytes()[:-10])
    where = rf"/files/t\.zarr/tokens/c/0, {file.stat().st_size} bytes: expected a table"
    with pytest.raises(CorruptError, match=where):
        TraceStore.open(f"{web.url}/files/t.zarr").read([0], ["tokens"])


@pytest.mark.parametrize("n_read", [0, 1])
def test_no_value_comes_of_another_store_at_the_address(web, tmp_path, n_read):
    """Of whole chunks only `_checksums` say what their bytes are; the other store has its own."""
    site = tmp_path / "site" / "t.zarr"
    schema = Schema({"x": Column("int32", (65536,), chunk_items=4, shard_items=16)})

    def put(value: int) -> None:
        shutil.rmtree(site)
        write_store(site, schema, [(f"t{i}", {"x": np.full(65536, value + i)}) for i in range(32)])

    put(0)
    store = TraceStore.open(f"{web.url}/files/t.zarr")
    for row in range(n_read):
        assert store[row]["x"][0] == row
    put(100)
    for first in (16, 24):  # the checksums of the other store are nobody's after the first
        with pytest.raises(NotFoundError, match="another one at its address now; open it again"):
            store.read(range(first, first + 8))
