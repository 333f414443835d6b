"""The table in a real browser: scrolling, widths, order, groups, copies and files."""

import csv
import io
import json
import re
import time

import numpy as np
import pytest
from far_line import far_line
from view_traces import HOSTILE, N_ROWS, client_of, write_traces

from store import Column, Schema, TraceStore
from store.transform.export import export_table

pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")
pytest.importorskip("httpx2", reason="the test client needs the extra test")

N_LONG = 5000
LINE_S = 0.05  # each way
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


@pytest.fixture(scope="module")
def long_address(tmp_path_factory, serve):
    """The page of a table of thousands of rows, some of whose numbers are long."""
    schema = Schema({"question": Column("utf8"), "label": Column("int8")})
    numbers = {f"score_{i}": Column("float64") for i in range(9)}
    rows = [
        (f"of-one-name-with-a-long-beginning-{i:05}", row_of(i, numbers)) for i in range(N_LONG)
    ]
    path = tmp_path_factory.mktemp("long") / "long.zarr"
    return serve(write_traces(path, Schema({**schema.columns, **numbers}), rows))


def row_of(i, numbers):
    scores = {name: (-1.42e16 if i % 7 else 0.25) * (k + 1) for k, name in enumerate(numbers)}
    return {"question": f"question {i // 3}", "label": i % 2, **scores}


def cells(browser, column):
    return browser.evaluate(
        f"[...document.querySelectorAll('#rows .row')].map((r) => r.children[{column}].textContent)"
    )


def test_scrolling_over_a_slow_line(browser, long_address):
    """100 ms to the server and back: at most 10 of 150 frames lack a row."""
    port = int(re.search(r":(\d+)/", long_address)[1])
    with far_line(port, LINE_S) as far:
        browser.open(f"{long_address.replace(str(port), str(far), 1)}#row=0")
        time.sleep(1)  # somebody looks at the first rows
        assert browser.evaluate(SCROLL) <= 10
        browser.wait_for("!document.querySelector('#rows').textContent.includes('…')")
        top = browser.evaluate("Math.floor(document.querySelector('#scroll').scrollTop / 28)")
        assert cells(browser, 0)[0].endswith(f"-{top:05}")


def test_a_tall_window_is_filled(browser, long_address):
    """Each row can be seen, and End chooses the last."""
    browser.resize(1440, 2600)
    try:
        browser.open(f"{long_address}#row=0")
        assert len(cells(browser, 0)) > 80
        browser.evaluate("document.querySelector('#scroll').focus()")
        browser.press("End")
        browser.wait_for_text("#rows .on", f"{N_LONG - 1:05}")
        bottoms = "[...document.querySelectorAll('#rows .row')].at(-1).getBoundingClientRect()"
        assert browser.evaluate(f"{bottoms}.bottom") <= 2600
    finally:
        browser.resize(1440, 900)


CUT = """[...document.querySelectorAll('#rows .cell.number, dd')]
    .filter((cell) => cell.scrollWidth > cell.clientWidth + 1).length"""


def test_no_number_is_cut(browser, long_address):
    """However narrow a column is made."""
    browser.open(f"{long_address}#row=1&widths=score_0:20,question:90")
    assert "-14200000000000000" in cells(browser, 3)
    assert browser.evaluate(CUT) == 0


def test_ids_keep_their_ends(browser, long_address):
    """What tells them apart is in sight; the text is whole."""
    browser.open(f"{long_address}#row=1")
    ids = cells(browser, 0)
    assert ids[1] == "of-one-name-with-a-long-beginning-00001"
    box = "document.querySelector('#rows .cell').getBoundingClientRect()"
    end = """(() => {
        const range = document.createRange();
        range.selectNode(document.querySelector("#rows .cell").lastChild);
        return range.getBoundingClientRect();
    })()"""
    assert browser.evaluate(f"{end}.right") <= browser.evaluate(f"{box}.right")
    assert browser.evaluate(f"{end}.width") > 20


def test_columns_are_dragged_and_pinned(page):
    """Wider by their edge, to another place by their name, to the left by a pin; with keys too."""
    browser = page(row=7, columns="trace_id,label,question,answer")
    width = "document.querySelectorAll('#rows .row .cell')[2].offsetWidth"
    before = browser.evaluate(width)
    x, y = browser.evaluate("""(({right, top}) => [right - 3, top + 9])(
        document.querySelectorAll("#head .cell")[2].getBoundingClientRect())""")
    browser.drag([[x, y], [x + 30, y], [x + 60, y]])
    browser.wait_for("location.hash.includes('widths=question')")
    assert browser.evaluate(width) == pytest.approx(before + 60, abs=2)
    browser.evaluate("document.querySelector('#head .name').focus()")
    browser.click("#choose")
    browser.click("[aria-label='pin answer']")
    browser.wait_for_text("#head .cell", "answer")
    assert "pin=answer" in browser.evaluate("location.hash")
    assert "pin" in browser.evaluate("document.querySelector('#rows .cell').className")


def test_texts_take_the_room_that_is_left(page):
    """A table of three columns is as wide as its place."""
    browser = page(row=7, columns="trace_id,label,question")
    ends = browser.evaluate("""[
        document.querySelector("#rows .row .cell:last-child").getBoundingClientRect().right,
        document.querySelector("#scroll").getBoundingClientRect().left +
            document.querySelector("#scroll").clientWidth,
    ]""")
    assert ends[0] == pytest.approx(ends[1], abs=4)


def test_the_splitter_is_moved(page):
    """With the mouse and with keys; the address keeps it."""
    browser = page(row=7)
    x, y = browser.evaluate("""(({left, top}) => [left + 2, top + 90])(
        document.querySelector("#splitter").getBoundingClientRect())""")
    browser.drag([[x, y], [700, y], [500, y]])
    browser.wait_for("location.hash.includes('split=35')")
    browser.evaluate("document.querySelector('#splitter').focus()")
    browser.press("ArrowRight")
    browser.wait_for("location.hash.includes('split=39')")


def test_duplicates_by_text(page, traces):
    """How often which texts are there; a click shows their rows."""
    browser = page(row=7, columns="trace_id,question_id")
    browser.click("[aria-label='groups of question_id']")
    browser.wait_for_text("#chooser h3", "20 texts, 20 of them repeated")
    browser.click("#chooser .line", "question 3")
    browser.wait_for_total(f"2 of {N_ROWS}")
    assert (
        browser.evaluate("document.querySelector('#filter').value") == 'question_id == "question 3"'
    )


@pytest.mark.parametrize("text", HOSTILE[:6])
def test_every_text_can_be_a_group(page, traces, text):
    """Quotes and all."""
    browser = page(row=7)
    browser.click("[aria-label='groups of answer']")
    n = sum(row["answer"] == text for _, row in traces)
    lines = "[...document.querySelectorAll('#chooser .line')]"
    name = text or "(empty)"
    click = f"{lines}.find((each) => each.lastChild.textContent === {json.dumps(name)}).click()"
    browser.wait_for("document.querySelector('#chooser .line')")
    browser.evaluate(click)
    browser.wait_for_total(f"{n} of {N_ROWS}")


def test_picked_rows_are_copied(page, traces):
    """With Shift and an arrow; texts are whole, a tab between two columns."""
    browser = page(row=2, columns="trace_id,question", sort="trace_id", descending=1)
    browser.wait_for("document.querySelector('#rows .on')")
    browser.evaluate("document.querySelector('#scroll').focus()")
    browser.send(
        "Input.dispatchKeyEvent", type="keyDown", key="ArrowDown", modifiers=8,
        windowsVirtualKeyCode=40,
    )  # fmt: skip
    browser.wait_for("document.querySelectorAll('#rows .picked').length === 2")
    # a click with Shift selects texts
    browser.evaluate("getSelection().selectAllChildren(document.querySelector('#rows'))")
    browser.evaluate(
        """document.querySelector("#rows .on").dispatchEvent(
            new MouseEvent("click", { shiftKey: true, bubbles: true }))"""
    )
    browser.evaluate("navigator.clipboard.writeText = async (text) => (globalThis.copied = text)")
    browser.evaluate("document.execCommand('copy')")
    browser.wait_for("globalThis.copied")
    text = browser.evaluate("copied")
    expected = [(trace_id, row["question"]) for trace_id, row in (traces[2], traces[1])]
    found = list(csv.reader(io.StringIO(text), delimiter="\t"))
    assert found == [["trace_id", "question"], *map(list, expected)]


@pytest.fixture(scope="module")
def get(traces_path, run_path):
    """Text of an answer about the rows with label 1."""
    client = client_of([traces_path], [run_path])

    def ask(path, **query):
        answer = client.get(f"/api/0/1/{path}", params={"filter": "label == 1", **query})
        assert answer.status_code == 200, answer.text
        return answer

    return ask


def test_rows_are_saved_as_csv_and_json_lines(get, traces):
    """All of the filter, or those at some positions; NaN is empty, or null."""
    wanted = [(trace_id, row) for trace_id, row in traces if row["label"] == 1]
    names = "trace_id,answer,score"
    found = list(csv.reader(io.StringIO(get("save/csv", columns=names).text)))
    assert found[0] == names.split(",")
    for line, (trace_id, row) in zip(found[1:], wanted, strict=True):
        assert line[:2] == [trace_id, row["answer"]]
        assert (np.float32(line[2]) if line[2] else np.nan) == pytest.approx(
            row["score"], nan_ok=True
        )
    answer = get("save/jsonl", positions="1-2,4-4,3-90")
    assert 'filename="traces.jsonl"' in answer.headers["Content-Disposition"]
    records = [json.loads(line) for line in answer.text.splitlines()]
    assert [record["trace_id"] for record in records] == [name for name, _ in wanted[1:]]
    assert records[0]["question"] == wanted[1][1]["question"]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_rows_are_saved_as_the_command_exports_them(traces_path, tmp_path, kind):
    """Byte for byte, with returns within texts, NaN, infinity and lists."""
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    names = [*TraceStore.open(traces_path).schema.stored]
    names = [name for name in names if TraceStore.open(traces_path).schema.stored[name].is_single]
    exported = tmp_path / f"traces.{kind}"
    export_table(TraceStore.open(traces_path), exported, names)
    columns = dict.fromkeys(["trace_id", "question_id", *names])
    params = {"columns": ",".join(columns)}
    saved = client_of([traces_path]).get(f"/api/0/1/save/{kind}", params=params)
    assert saved.content == exported.read_bytes()


def test_what_cannot_be_saved(traces_path):
    """Is refused."""
    client = client_of([traces_path])
    for path, said in (("save/xlsx", "expected one of: ids"), ("save/ids?positions=-1", "ranges")):
        answer = client.get(f"/api/0/1/{path}")
        assert answer.status_code >= 400
        assert said in answer.json()["error"]
