"""Stores and runs that the tests of the page look at, its server, and a browser."""

import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from browser import Browser, find_chromium, fragment_of
from view_traces import BARE, HOSTILE, SCHEMA, TOKEN, client_of, write_run, write_traces

from store import Column, Schema

LONG = 100_000  # tokens


@pytest.fixture(scope="session")
def run_path(tmp_path_factory, traces):
    """A finished run with two scores of half the rows, and thresholds."""
    header = ["trace_id", "split", "label", "question_id", "gvae", "my-model"]
    lines = []
    for i, (trace_id, row) in enumerate(traces[::2]):
        score = "" if i == 3 else i / 20
        lines.append([trace_id, "test", row["label"], row["question_id"], score, -i])
    path = write_run(tmp_path_factory.mktemp("runs") / "first", header, lines)
    results = '{"models": {"gvae": {"test": {"threshold": 0.25}}, "my-model": {}}, "baselines": {}}'
    (path / "results.json").write_text(results)
    return path


@pytest.fixture(scope="session")
def others(tmp_path_factory):
    """An empty store, one of a long trace without texts, and one with hostile names and labels
    that are texts, without texts and attention."""
    folder = tmp_path_factory.mktemp("others")
    schema = Schema({"tokens": Column("int32", axis="tokens"), "x": Column("float32")})
    long = {"tokens": np.arange(LONG, dtype=np.int32), "x": np.float32(np.nan)}
    numbers = Schema({name: Column("float32") for name in ("x", "constructor", "toString")})
    marks = Schema({"label": Column("utf8"), "valueOf": Column("int8", axis="tokens")})
    odd = dict.fromkeys(numbers.columns, np.float32(np.nan)) | {"valueOf": np.zeros(2, np.int8)}
    bare = [(text or "empty", {**odd, "label": text}) for text in HOSTILE]
    return [
        write_traces(folder / "empty.zarr", SCHEMA, []),
        write_traces(folder / "long.zarr", schema, [("long", long)]),
        write_traces(folder / f"{BARE}.zarr", Schema({**numbers.columns, **marks.columns}), bare),
    ]


@pytest.fixture(scope="session")
def bare_run(tmp_path_factory):
    """A run of the bare store whose detector has a hostile name, and no score but NaN."""
    lines = [[text or "empty", "test", ""] for text in HOSTILE]
    folder = tmp_path_factory.mktemp("runs") / BARE
    return write_run(folder, ["trace_id", "split", HOSTILE[0]], lines)


@pytest.fixture(scope="module")
def growing(tmp_path_factory, traces):
    """A store that a test writes to, and repairs."""
    schema = Schema({"label": Column("int8", chunk_items=4, shard_items=64)})
    rows = [(trace_id, {"label": row["label"]}) for trace_id, row in traces[:10]]
    return write_traces(tmp_path_factory.mktemp("grows") / "grows.zarr", schema, rows)


@pytest.fixture(scope="session")
def many(tmp_path_factory):
    """A store of more rows than the table asks for at once, of the name of another."""
    rows = [(f"many-{i:03}", {"x": np.float32(i)}) for i in range(300)]
    schema = Schema({"x": Column("float32")})
    return write_traces(tmp_path_factory.mktemp("many") / "grows.zarr", schema, rows)


@pytest.fixture(scope="session")
def run_app():
    """A context in which an application is served; gives its address."""
    return served


@contextmanager
def served(app):
    """The address of an application that is served in a thread."""
    uvicorn = pytest.importorskip("uvicorn", reason="the extra view: pip install '.[view]'")
    from store.view.serve import configure, open_listener

    server = uvicorn.Server(configure(app))
    with open_listener("127.0.0.1", 0) as listener:
        thread = Thread(target=server.run, args=([listener],))
        thread.start()
        yield "http://{}:{}".format(*listener.getsockname())
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def serve(run_app):
    """Serves stores and runs as long as the tests of a file run, and says the page's address."""
    pytest.importorskip("starlette", reason="the extra view: pip install '.[view]'")
    from store.view.server import build_app
    from store.view.snapshots import open_stores

    with ExitStack() as started:

        def start(paths, runs=()):
            app = build_app(open_stores(paths, runs), TOKEN)
            return f"{started.enter_context(run_app(app))}/?token={TOKEN}"

        yield start


@pytest.fixture(scope="module")
def address(serve, traces_path, run_path, others, bare_run, growing, many):
    """The page of all stores and runs."""
    return serve([traces_path, *others, growing, many], [run_path, bare_run])


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    program = find_chromium()
    if program is None and not os.environ.get("CI"):
        pytest.skip("no Chromium: apt-get install chromium")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser, address):
    """Opens a state of the page; afterwards nobody complained, and nobody else was asked."""

    def go(fragment="", **state):
        browser.open(f"{address}#{fragment_of(fragment, state)}")
        return browser

    with browser.only_from(address.partition("/?")[0]):
        yield go


@pytest.fixture(scope="session")
def client(traces_path, run_path):
    """Asks the server of the traces, beside the scores of a run."""
    return client_of([traces_path], [run_path])
