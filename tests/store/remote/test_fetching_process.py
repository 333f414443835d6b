"""The fetching process of a node: started by the first reader, gone after the last."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from oracle import SCHEMA, assert_batch, write_store
from pushing import push

from store import StoreError, TraceStore
from store.remote.cache.location import prepare_dir

ROOT = Path(__file__).parents[3]
READER = """
import sys
from store import TraceStore
store = TraceStore.open(sys.argv[1], cache_dir=sys.argv[2])
print(store.read_arrays(range(len(store))).columns.keys(), flush=True)
sys.stdin.read()
"""


def fetchers(cache_dir):
    """The ids of the fetching processes of a cache directory."""
    command = f"store.remote.cache.fetcher\0{cache_dir}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if command in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_until(condition, limit_s=10.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def url(bucket, rows, tmp_path, monkeypatch):
    """A store in a bucket, and the server in the environment."""
    push(write_store(tmp_path / "t.zarr", SCHEMA, rows[:8]), bucket.open())
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.url)
    return bucket.url()


def test_it_comes_with_the_first_reader_and_goes_with_the_last(url, rows, tmp_path):
    """Killed between, or with a reader, it leaves nothing in the way. It imports nothing from where
    a reader works: a module of the user may have the name of one of Python's."""
    cache_dir = tmp_path / "cache"
    expected = [row for _, row in rows[:8]]
    work = tmp_path / "work"
    work.mkdir()
    (work / "socket.py").write_text("raise ImportError('of the user')")
    script = tmp_path / "reader.py"
    script.write_text(READER)
    command = [sys.executable, str(script), url, str(cache_dir)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=work, **pipes) as reader:
        assert "label" in reader.stdout.readline()
        store = TraceStore.open(url, 10**8, cache_dir=cache_dir)
        assert_batch(store.read(range(8)), expected)
        (process,) = fetchers(cache_dir)
        # it is of the package that its reader has, wherever that lies
        variables = Path(f"/proc/{process}/environ").read_text().split("\0")
        assert any(variable.startswith(f"PYTHONPATH={ROOT}") for variable in variables)
        reader.kill()
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: not fetchers(cache_dir))
    assert_batch(TraceStore.open(url, 10**8, cache_dir=cache_dir).read(range(8)), expected)
    assert_batch(store.read(range(8)), expected)
    del store
    wait_until(lambda: not fetchers(cache_dir))
    assert not (cache_dir / "fetcher.socket").exists()


def test_why_it_does_not_start_is_told_at_once(url, tmp_path):
    """And it is not started again and again."""
    cache_dir = tmp_path / "cache"
    prepare_dir(cache_dir)
    (cache_dir / "stores").write_text("no folder")
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"expected a fetching process to start.*File exists"):
        TraceStore.open(url, 10**8, cache_dir=cache_dir)
    assert time.monotonic() - began < 10


def test_of_many_readers_one_starts_it(url, rows, tmp_path, monkeypatch):
    """Each start takes .4 s of a processor, which the one that they wait for needs."""
    started = []
    run, cache_dir = subprocess.run, tmp_path / "cache"
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: started.append(a) or run(*a, **k))
    with ThreadPoolExecutor(8) as pool:
        opened = [*pool.map(lambda _: TraceStore.open(url, 10**8, cache_dir=cache_dir), range(8))]
    assert len(started) == 1
    assert all(len(store) == 8 for store in opened)
