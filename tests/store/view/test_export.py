"""The page of some traces in one file: it shows what the server's page shows, and asks nobody."""

import json
from contextlib import ExitStack

import numpy as np
import pytest
from small import complaint, refused
from view_traces import SCHEMA, client_of, write_traces

from store import Column, Schema, SchemaError, TraceStore
from store.cli.main import main

pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")

TABS = ("trace", "layers", "attention", "map", "scores")
NEEDS = "python -m store view can do it"
ASKED = 'import("page/api.js").then((found) => found.getJson({}))'


@pytest.fixture(scope="module")
def exported(tmp_path_factory, traces_path, run_path):
    """Writes a page of some traces; returns its address."""
    folder = tmp_path_factory.mktemp("export")

    def write(name, *options):
        path = folder / name
        words = ["view", traces_path, "--run", run_path, "--export", path, *options]
        assert main([*map(str, words)]) == 0
        return (path if path.suffix else path / "index.html").as_uri()

    return write


@pytest.fixture
def opened(browser, exported):
    """Opens an exported page; afterwards nobody complained, and nobody was asked."""

    with ExitStack() as checked:

        def go(address, fragment=""):
            checked.enter_context(browser.only_from("file:"))
            browser.open(f"{address}#{fragment}")
            return browser

        yield go


def seen(browser, address, row):
    """The texts of the panel, and the pictures in it, on each tab of an address."""
    browser.open(f"{address}#row={row}")
    found = {}
    for tab in TABS:
        browser.change(row=row, tab=tab, layer=1, edge=0.05)
        browser.wait_until("#tabs .on", f"it?.textContent === '{tab}'")
        browser.wait_for_panel()
        browser.evaluate("new Promise((done) => setTimeout(done, 150))")
        browser.of_each("#panel .noted", "it.remove()")
        pictures = browser.of_each("#panel .picture", "it.innerHTML")
        found[tab] = [browser.of("#panel", "it.innerText"), *pictures]
    return found


@pytest.mark.parametrize("row", [1, 7])  # the first has no tokens
def test_a_page_in_a_file_shows_what_the_server_shows(browser, address, opened, exported, row):
    """On every tab, of all rows; but for the heads of each token, which are left out."""
    expected = seen(browser, address, row)
    of_all = expected["attention"][0].partition("layer 2, heads upwards")[0].rstrip()
    expected["attention"] = [of_all, *expected["attention"][1:3]]
    file = exported("all.html")
    opened(file)
    assert seen(browser, file, row) == expected


def test_a_file_is_searched(opened, exported):
    """By ids and texts; a filter says what it needs."""
    browser = opened(exported("all.html"), "trace=trace-11")
    browser.wait_for_text("#panel h2", "trace-11")
    browser.choose("#find", "RIVER")
    browser.wait_for_text("#panel h2", "trace-13")
    browser.change(row=13, filter="label==1")
    browser.wait_for_text("#error", NEEDS)
    assert browser.text("#total") == "40 of 40"


PRECISIONS = ("float16", "float32", "float64", "int8")
MISTAKES = [
    ("mistakes", {"column": f"score_{dtype}", "threshold": threshold})
    for dtype in PRECISIONS
    for threshold in (0, 0.1, 0.3, 0.7, 0.9, 1e-9, 1e9, -1e9)
]
SORTED = ("question", "big", "gaps")
WHOLE = [
    *[("find", {"text": text}) for text in ("t4 END", "STRASSE", "straẞe", "STRASſE", "k", "ς")],
    ("groups", {"column": "question"}),
    *[("table", {"sort": name, "descending": d}) for name in SORTED for d in ("", 1)],
]


@pytest.fixture(scope="module")
def precise(tmp_path_factory):
    """Scores of several precisions at usual thresholds, long texts, and whole numbers that differ
    beyond the 53 bits of a JavaScript number; returns the store's path."""
    columns = {f"score_{dtype}": Column(dtype) for dtype in PRECISIONS}
    rows = []
    for i, score in enumerate([0.1, 0.3, 0.7, 0.9, 0, -0.1] * 2):
        row = {name: np.dtype(column.dtype).type(score) for name, column in columns.items()}
        begin = ["\uff5e", "🦊 Straße \u212a Σ "][i % 2]
        question = begin + "long " * 100 + f"t{7 * i % 12 // 2} end"
        row |= {"label": i > 5, "question": question, "big": 2**53 + 7 * i % 12}
        row["gaps"] = np.nan if i % 5 == 0 else 7 * i % 4
        rows.append((f"t{i}", row))
    others = {"label": "bool", "question": "utf8", "big": "int64", "gaps": "float32"}
    schema = Schema({name: Column(dtype) for name, dtype in others.items()} | columns)
    return write_traces(tmp_path_factory.mktemp("precise") / "precise.zarr", schema, rows)


def test_a_file_answers_as_the_server(opened, precise, tmp_path):
    """Scores are compared in their own precision; whole texts and numbers are ordered and found."""
    file = tmp_path / "x.html"
    assert main(["view", str(precise), "--export", str(file)]) == 0
    browser, client = opened(file.as_uri()), client_of([precise])
    for path, query in MISTAKES + WHOLE:
        asked = f'"/api/0/1/{path}", {json.dumps(query)}'
        answer = client.get(f"/api/0/1/{path}", params=query).json()
        assert browser.evaluate(ASKED.format(asked)) == answer, asked


def test_mistakes_of_a_run_are_exported(opened, exported, traces, traces_path, capsys):
    """Numbered from 0, in a folder; the file does not say where the store lies."""
    threshold, wrong = 0.25, []
    for i, (trace_id, row) in enumerate(traces[::2]):
        says = np.float32(i / 20) >= threshold
        if i != 3 and row["label"] in (0, 1) and says != row["label"]:
            wrong.append(trace_id)
    address = exported("folder", "--mistakes-of-run", "--limit", 5)
    assert "5 of 40 traces" in capsys.readouterr().out
    browser = opened(address)
    assert browser.of_each("#rows .row", "it.firstChild.textContent") == wrong[:5]
    assert "5 of 40 traces" in browser.text("#what")
    browser.change(tab="scores")
    browser.wait_for_text("#panel", "these traces were chosen as mistakes")
    assert browser.of_each("#panel .confusion") == []
    stores = browser.evaluate(ASKED.format('"/api/stores"'))
    assert str(traces_path.parent) not in str(stores)


@pytest.mark.parametrize(
    "options, said",
    [
        (["--where", "label == 9"], "expected traces to export, found none"),
        (["--where", "lable == 1"], "closest: 'label'"),
        (["--mistakes-of-run"], "expected labels, and a --run"),
    ],
)
def test_an_export_of_nothing_is_refused(traces_path, tmp_path, capsys, options, said):
    assert said in refused(capsys, "view", traces_path, "--export", tmp_path / "x.html", *options)
    assert not any(tmp_path.iterdir())


def test_no_page_is_written_into_a_store(traces_path, capsys):
    before = sorted(traces_path.iterdir())
    said = refused(capsys, "view", traces_path, "--limit", "1", "--export", traces_path)
    assert "expected a path outside of every store" in said
    assert sorted(traces_path.iterdir()) == before


def test_infinite_attention_is_drawn(opened, traces, tmp_path):
    """As the strongest there is; JSON has no such number."""
    (trace_id, row), path = traces[0], tmp_path / "t.zarr"
    row = row | {"attn_mean": np.full_like(row["attn_mean"], np.inf)}
    write_traces(path, SCHEMA, [(trace_id, row)])
    address = "/api/0/1/trace/0/attention/1?threshold=0.1&skip_first=1"
    weights = client_of([path]).get(address).json()["weights"]
    assert set(weights) == {"inf"}
    assert main(["view", str(path), "--export", str(tmp_path / "x.html")]) == 0
    browser = opened((tmp_path / "x.html").as_uri(), "tab=attention&row=0")
    browser.wait_for_panel()
    widths = browser.of_each("#panel path", "it.getAttribute('stroke-width')")
    assert widths == ["4"] * len(weights)


def test_a_store_is_viewed_in_a_notebook(opened, tmp_path, traces_path, run_path):
    """In a frame that reaches nothing around it; the page works without an address."""
    store = TraceStore.open(traces_path)
    assert "limit: expected 1 or more" in complaint(SchemaError, store.view, limit=0)
    shown = store.view("label == 1", run=[run_path], limit=5)
    notebook = tmp_path / "notebook.html"
    notebook.write_text(
        f"<!doctype html><body data-ready=1>{shown._repr_html_()}", encoding="utf-8"
    )
    browser = opened(notebook.as_uri())
    with browser.frame():
        browser.wait_until("body", "it?.dataset.ready === '1'")
        assert browser.text("#total") == "5 of 5"
        browser.click("#rows .row", "trace-11")
        browser.wait_for_text("#panel h2", "trace-11")
        browser.click("#tabs button", "scores")
        browser.wait_for_text("#panel", "false alarms")
        code = "(() => { try { return parent.document.title } catch { return 'apart' } })()"
        assert browser.evaluate(code) == "apart"
