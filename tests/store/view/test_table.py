"""The table in a real browser: scrolling, widths, order, groups, copies and files."""

import csv
import io
import json
import time

import numpy as np
import pytest
from view_traces import HOSTILE, N_ROWS, client_of, write_traces

from store import Column, Schema, TraceStore
from store.transform.export import export_table

N_LONG = 2000
LATENCY_MS = 100
SCROLL = """(async () => {
    const place = document.querySelector("#scroll");
    const rows = document.querySelector("#rows");
    let dots = 0;
    for (let i = 0; i < 150; i += 1) {
        place.scrollTop += 100;
        await new Promise((resolve) => requestAnimationFrame(resolve));
        if ([...rows.querySelectorAll(".cell")].some((cell) => cell.textContent === "…")) dots += 1;
    }
    return dots;
})()"""
BOX = "(({left, right, top, bottom}) => [left, right, top, bottom])(it.getBoundingClientRect())"


@pytest.fixture(scope="module")
def long_address(tmp_path_factory, serve):
    """The page of a table of thousands of rows, some of whose numbers are long."""
    schema = Schema({"question": Column("utf8"), "label": Column("int8")})
    numbers = {f"score_{i}": Column("float64") for i in range(9)}
    rows = []
    for i in range(N_LONG):
        scores = {name: (-1.42e15 if i % 7 else 0.25) * (k + 1) for k, name in enumerate(numbers)}
        row = {"question": f"question {i // 3}", "label": i % 2, **scores}
        rows.append((f"of-one-name-with-a-long-beginning-{i:05}", row))
    path = tmp_path_factory.mktemp("long") / "long.zarr"
    return serve([write_traces(path, Schema({**schema.columns, **numbers}), rows)])


def cells(browser, column):
    return browser.of_each("#rows .row", f"it.children[{column}].textContent")


def test_scrolling_over_a_slow_line(browser, long_address):
    """100 ms to the server and back: at most 10 of 150 frames lack a row."""
    unlimited = {"offline": False, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.open(f"{long_address}#row=0")
    browser.send("Network.emulateNetworkConditions", latency=LATENCY_MS, **unlimited)
    try:
        time.sleep(1)  # somebody looks at the first rows
        assert browser.evaluate(SCROLL) <= 10
        browser.wait_until("#rows", "!it.textContent.includes('…')")
        top = browser.of("#scroll", "Math.floor(it.scrollTop / 28)")
        assert cells(browser, 0)[0].endswith(f"-{top:05}")
    finally:
        browser.send("Network.emulateNetworkConditions", latency=0, **unlimited)


def test_a_tall_window_is_filled(browser, long_address):
    """Each row can be seen, and End chooses the last."""
    with browser.resized(1440, 2600):
        browser.open(f"{long_address}#row=0")
        assert len(cells(browser, 0)) > 80
        browser.focus("#scroll")
        browser.press("End")
        browser.wait_for_text("#rows .on", f"{N_LONG - 1:05}")
        assert browser.of_each("#rows .row", BOX)[-1][3] <= 2600


def test_no_number_is_cut(browser, long_address):
    """However narrow a column is made; of ids what tells them apart is in sight, at their ends."""
    browser.open(f"{long_address}#row=1&widths=score_0:20,question:90")
    assert "-1420000000000000" in cells(browser, 3)
    room = "it.clientWidth + 1 - it.scrollWidth"
    assert min(browser.of_each("#rows .cell.number, dd", room)) >= 0
    assert cells(browser, 0)[1] == "of-one-name-with-a-long-beginning-00001"
    code = """(() => {
        const range = document.createRange();
        range.selectNode(it.lastChild);
        const { right, width } = range.getBoundingClientRect();
        return [right, width, it.getBoundingClientRect().right];
    })()"""
    end, width, limit = browser.of("#rows .cell", code)
    assert end <= limit
    assert width > 20


def test_columns_are_dragged_and_pinned(page):
    """Wider by their edge, to the left by a pin; a table of three columns is as wide as its
    place, whose splitter is moved with the mouse and with keys; the address keeps it all."""
    browser = page(row=7, columns="trace_id,label,question")
    room = browser.of("#scroll", "it.getBoundingClientRect().left + it.clientWidth")
    end = browser.of("#rows .row .cell:last-child", "it.getBoundingClientRect().right")
    assert end == pytest.approx(room, abs=4)
    left, _, top, _ = browser.of("#splitter", BOX)
    browser.drag([[left + 2, top + 90], [700, top + 90], [500, top + 90]])
    browser.wait_for_address("split=35")
    browser.focus("#splitter")
    browser.press("ArrowRight")
    browser.wait_for_address("split=39")
    browser = page(row=7, columns="trace_id,label,question,answer")
    question = "#rows .row .cell:nth-child(3)"
    before = browser.of(question, "it.offsetWidth")
    _, right, top, _ = browser.of("#head .cell:nth-child(3)", BOX)
    browser.drag([[right - 3 + x, top + 9] for x in (0, 30, 60)])
    browser.wait_for_address("widths=question")
    assert browser.of(question, "it.offsetWidth") == pytest.approx(before + 60, abs=2)
    browser.click("#choose")
    browser.click("[aria-label='pin answer']")
    browser.wait_for_text("#head .cell", "answer")
    browser.wait_for_address("pin=answer")
    assert "pin" in browser.of("#rows .cell", "it.className")


def test_every_text_can_be_a_group(page, traces):
    """Quotes and all; how often which texts are there, and a click shows their rows."""
    browser = page(row=7, columns="trace_id,question_id")
    browser.click("[aria-label='groups of question_id']")
    browser.wait_for_text("#chooser h3", "20 texts, 20 of them repeated")
    browser.click("#chooser .line", "question 3")
    browser.wait_for_total(f"2 of {N_ROWS}")
    assert browser.of("#filter", "it.value") == 'question_id == "question 3"'
    for text in HOSTILE[:6]:
        browser.change(row=7)
        browser.wait_for_total(f"{N_ROWS} of {N_ROWS}")
        browser.click("[aria-label='groups of answer']")
        browser.wait_for_text("#chooser h3", "answer")
        name = json.dumps(text or "(empty)")
        browser.of_each("#chooser .line", f"it.lastChild.textContent === {name} && it.click()")
        n = sum(row["answer"] == text for _, row in traces)
        browser.wait_for_total(f"{n} of {N_ROWS}")


def test_picked_rows_are_copied(page, traces):
    """With Shift and an arrow; texts are whole, a tab between two columns."""
    browser = page(row=2, columns="trace_id,question", sort="trace_id", descending=1)
    browser.wait_until("#rows .on")
    browser.focus("#scroll")
    browser.press("ArrowDown", modifiers=8)
    browser.wait_for_count("#rows .picked", 2)
    # a click with Shift selects texts
    browser.of("#rows", "getSelection().selectAllChildren(it)")
    click = "new MouseEvent('click', { shiftKey: true, bubbles: true })"
    browser.of("#rows .on", f"it.dispatchEvent({click})")
    browser.evaluate("navigator.clipboard.writeText = async (text) => (globalThis.copied = text)")
    browser.evaluate("document.execCommand('copy')")
    browser.wait_for("globalThis.copied")
    found = list(csv.reader(io.StringIO(browser.evaluate("copied")), delimiter="\t"))
    expected = [[trace_id, row["question"]] for trace_id, row in (traces[2], traces[1])]
    assert found == [["trace_id", "question"], *expected]


def test_rows_at_some_positions_are_saved(client, traces):
    """Of those that the filter means; NaN is null."""
    wanted = [(trace_id, row) for trace_id, row in traces if row["label"] == 1]
    query = {"filter": "label == 1", "positions": "1-2,4-4,3-90"}
    names = ["trace_id", "question", "score"]
    answer = client.get("/api/0/1/save/jsonl", params=query | {"columns": ",".join(names)})
    assert 'filename="traces.jsonl"' in answer.headers["Content-Disposition"]
    records = [json.loads(line) for line in answer.text.splitlines()]
    assert [record["trace_id"] for record in records] == [name for name, _ in wanted[1:]]
    assert [*records[0]] == names
    assert records[0]["question"] == wanted[1][1]["question"]
    for record, (_, row) in zip(records, wanted[1:], strict=True):
        found = np.nan if record["score"] is None else record["score"]
        assert found == pytest.approx(row["score"], nan_ok=True)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_rows_are_saved_as_the_command_exports_them(traces_path, tmp_path, kind):
    """Byte for byte, with returns within texts, NaN, infinity and lists."""
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    store = TraceStore.open(traces_path)
    names = [name for name, column in store.schema.stored.items() if column.is_single]
    exported = tmp_path / f"traces.{kind}"
    export_table(store, exported, names)
    columns = dict.fromkeys(["trace_id", "question_id", *names])
    params = {"columns": ",".join(columns)}
    saved = client_of([traces_path]).get(f"/api/0/1/save/{kind}", params=params)
    assert saved.content == exported.read_bytes()
