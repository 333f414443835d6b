"""The page in a real browser: what it shows, what it must not run, and that it asks nobody else."""

import json

import numpy as np
import pytest
from damage import flip
from view_traces import HOSTILE, N_ROWS

from store import StoreWriter, TraceStore
from store.cli.main import main
from store.view import PAGE

ALL = f"{N_ROWS} of {N_ROWS}"
TABS = ("trace", "layers", "attention", "map", "scores")
WHAT = "traces.zarr 40 traces · 13 right, 13 hallucination · runs first, <img src=x onerror=alert(1"
# what an address says, what is clicked on, and what can be read then
CLICKS = [
    ("row=7", [], {"#what": WHAT}),
    ("row=7&filter=label == 77", [("#rows button", "clear the filter")], {"#total": ALL}),
    ("store=1&row=0", [], {"#panel": "python -m store extract"}),
    ("row=6", [(".beside-name", "")], {"#total": "2 of 40", "#panel h2": "trace-06"}),
    (
        "row=7&filter=trace_id == 'trace-03'",
        [("#outside:not([hidden]) button", "")],
        {"#total": ALL, "#rows .on": "trace-07", "#outside[hidden]": ""},
    ),
    ("columns=trace_id,exact", [("#head .name", "exact")], {"#rows .row": "trace-06"}),
    ("store=2", [("#panel button", "later")], {"#panel": "tokens 4,000 to 7,999 of 100,000"}),
    ("row=2", [], {"#panel": "--tokens --to-store"}),
    ("row=7&tab=layers", [], {"#panel": "--only logreg_best"}),
    ("row=7&tab=attention", [], {"#panel": "edges of one head: none is stored"}),
]
# what an address says in vain, and what is said of it
IGNORED = {
    "score=lost&tab=scores": "score=lost is not in this store: score_gvae is shown",
    "threshold=abc&tab=scores": "threshold=abc: expected a number, 0.2500 is shown",
    "map=lost&tab=map": "map=lost is not in this store: map_pca is shown",
    "layer=77&tab=attention": "layer=77: expected 0 to 2",
    "edge=abc&tab=attention": "edge=abc: expected 0 to 1",
    "color=lost": "color=lost",
    "beside=99": "beside=99: expected 0 to 39, 7 is shown",
    "columns=label,lost": "columns: this store has no lost",
    "sort=lost&descending=1": "sort=lost is not in this store: it is left out",
    "tab=lost": "tab=lost",
    "store=99": "store=99",
}
CONDITIONS = 'label == 1 and inside(map_pca, "-9,-9 9,-9 9,9 -9,9")'


@pytest.mark.parametrize("state, clicks, read", CLICKS)
def test_a_click_leads_on(page, state, clicks, read):
    """From an empty table to all rows, from a question to all answers, from column to order; what
    a store lacks is said, with the command that makes it."""
    browser = page(state)
    for selector, text in clicks:
        browser.click(selector, text)
    for selector, text in read.items():
        browser.wait_for_text(selector, text)
    assert browser.is_hidden("#error")


def test_what_an_address_says_in_vain_is_said(page):
    """And no more, once another tab is shown."""
    browser = page()
    for said, answer in IGNORED.items():
        browser.change(f"row=7&{said}")
        browser.wait_for_text("#ignored:not([hidden])", answer)
        browser.change(row=7, tab="layers")
        browser.wait_until("#ignored", "it.hidden")


def test_the_table_and_the_first_trace_appear(page):
    """With as many rows in the document as are in sight, and the token gone from the address."""
    browser = page()
    browser.wait_for_text("#panel h2", "trace-00")
    assert browser.text("#total") == ALL
    assert 10 < len(browser.of_each("#rows .row")) <= 60
    assert "token" not in browser.evaluate("location.href")
    assert browser.evaluate("document.cookie") == ""


def test_hostile_texts_are_texts(page, traces):
    """Nothing of them runs or becomes an element."""
    browser = page()
    for row in range(len(HOSTILE)):
        browser.change(row=row)
        browser.wait_for_text("#panel h2", f"{row:02}")
        assert traces[row][1]["question"] in browser.text("#panel")
    assert browser.evaluate("document.title").startswith("traces.zarr")
    assert browser.of_each("main img, main script") == []
    assert max(browser.of_each("#rows .cell", "it.offsetHeight")) <= 28


def test_a_filter_is_typed(page, traces):
    """/ leads there, Tab takes a completion, Enter applies it; the address holds it, and chips."""
    browser = page(row=3)
    browser.press("/")
    browser.type("label == 1 and sc")
    browser.wait_for_text("#completions:not([hidden]) li", "score")
    browser.press("Tab")
    assert browser.of("#filter", "it.value") == "label == 1 and score "
    browser.type("!= nan")
    browser.press("Enter")
    wanted = [i for i, (_, r) in enumerate(traces) if r["label"] == 1 and r["score"] == r["score"]]
    browser.wait_for_total(f"{len(wanted)} of 40")
    assert "filter=label" in browser.evaluate("location.hash")
    browser = page(row=7, filter=CONDITIONS)
    browser.wait_for_text("#chips", "lasso")
    assert browser.of_each("#chips button") == ["label == 1 ×", "lasso on map_pca ×"]
    browser.click("#chips button", "lasso")
    browser.wait_until("#filter", "it.value === 'label == 1'")


def test_a_wrong_filter_is_explained(page):
    """In the server's words, with a caret; the rows that were there stay, as does the history."""
    browser = page(row=3)
    n = browser.evaluate("history.length")
    browser.press("/")
    browser.type("score > 0 and lable == 1")
    browser.press("Enter")
    browser.wait_for_text("#error:not([hidden])", "closest: 'label'")
    line, caret = browser.text("#caret").split("\n")
    assert line[caret.index("^") :].startswith("lable")
    assert browser.text("#total") == ALL
    assert browser.of("#filter", "[it.className, it.selectionStart]") == [
        "bad",
        line.index("la", 9),
    ]
    assert browser.evaluate("history.length") == n
    assert "lable" not in browser.evaluate("location.href")
    browser.change(row=3, filter="lable%20==%202")  # nothing is saved that is not the filter's
    browser.wait_until("#save", "it.hidden")
    assert browser.text("#total") == ALL
    browser.change(row=3)
    browser.wait_until("#save", "!it.hidden")
    assert browser.is_hidden("#error")
    assert browser.is_hidden("#caret")
    forget_refusals(browser)


def forget_refusals(browser):
    """The browser's console notes each request that is refused, and nothing else."""
    assert all(entry.get("source") == "network" for entry in browser.complaints)
    browser.complaints.clear()


def test_a_trace_that_cannot_be_read_leaves_no_other(page):
    """Below the first row, beyond the last, no number: no filter hides it; the error goes when
    another trace is chosen."""
    browser = page(row=3, filter="label == 1")
    for row in ("-1", "abc", "999"):
        browser.wait_until("#outside", "!it.hidden")
        browser.change(row=row, filter="label == 1")
        browser.wait_for_text("#error:not([hidden])", f"row: expected 0 to 39, found {row}")
        browser.wait_until("#outside", "it.hidden")
        assert browser.text("#panel") == ""
        browser.change(row=4, filter="label == 1")
        browser.wait_for_text("#panel h2", "trace-04")
        assert browser.is_hidden("#error")
    browser.choose("#find", "trace-01")
    browser.wait_for_text("#error", "the filter hides")
    forget_refusals(browser)


def test_quick_steps_end_at_the_right_row(page):
    """Quicker than the answers come that they need."""
    browser = page(store=5, row=0)
    browser.wait_until("#rows .on")
    browser.evaluate("""(async () => {
        for (let i = 0; i < 150; i += 1) {
            dispatchEvent(new KeyboardEvent("keydown", { key: "j" }));
            if (i % 3 === 0) await new Promise((resolve) => setTimeout(resolve, 1));
        }
    })()""")
    browser.wait_for_text("#panel h2", "many-150")
    browser.wait_for_text("#rows .on", "many-150")
    assert "row=150" in browser.evaluate("location.hash")


def test_another_store_begins_anew(page, growing, many):
    """Nothing that was said of the last one is kept but the tab; stores of one name show as much
    of their paths as tells them apart."""
    browser = page(row=7, beside=4, sort="label", descending=1, layer=2, tab="scores")
    browser.click("#choose")
    browser.choose("#store", 1)
    browser.wait_for_total("0 of 0")
    assert browser.evaluate("location.hash") == "#store=1&tab=scores"
    assert browser.is_hidden("#chooser")
    n = browser.evaluate("history.length")
    browser.click("#tabs .on")
    assert browser.evaluate("history.length") == n
    expected = [f"{path.parent.name}/{path.name}" for path in (growing, many)]
    names = browser.of_each("#store option")
    assert [names[0], *names[4:]] == ["traces.zarr", *expected]
    browser.change(store=5)
    browser.wait_for(f"document.title === {f'{expected[1]} – traces'!r}")


def test_a_histogram_follows_the_filter(page, traces):
    """As long as it is open; it has counts upwards, by logarithm on request, and pushes nothing
    away."""
    browser = page(row=7)
    top = browser.of("#scroll", "it.getBoundingClientRect().top")
    browser.click("[aria-label='histogram of score']")
    browser.wait_for_text("#chooser h3", "of 40 rows")
    assert browser.of("#scroll", "it.getBoundingClientRect().top") == top
    linear = browser.of("#chooser .picture", "it.innerHTML")
    browser.click("#chooser [type=checkbox]")
    assert browser.of("#chooser .picture", "it.innerHTML") != linear
    assert "log=1" in browser.evaluate("location.hash")
    browser.change(row=7, filter="label == 1")
    n = sum(row["label"] == 1 for _, row in traces)
    browser.wait_for_text("#chooser h3", f"of {n} rows")


def test_the_last_column_can_be_hidden(page):
    """The table then shows those of the start, and the boxes say so."""
    browser = page(row=7, columns="label")
    browser.click("#choose")
    browser.click("#chooser :checked")
    browser.wait_for("document.querySelectorAll('#head .cell').length > 3")
    assert len(browser.of_each("#chooser :checked")) == len(browser.of_each("#head .cell"))


def test_an_order_by_a_column_that_is_not_there_leaves_the_table(page):
    """Row by row; a filter can still be set, and another order."""
    browser = page(row=7, sort="lost", descending=1)
    browser.wait_for_total(ALL)
    browser.wait_for_text("#rows .row", "trace-00")
    browser.choose("#filter", "trace_id == 'trace-03'")
    browser.wait_for_total("1 of 40")
    browser.click("#head button", "trace_id")
    browser.wait_until("#ignored", "it.hidden")
    assert "sort=trace_id" in browser.evaluate("location.hash")


def test_tokens_are_coloured(page, traces):
    """A span for each, underlined in hallucinated spans; it shows what else was likely."""
    row = max(range(N_ROWS), key=lambda i: len(traces[i][1]["tokens"]))
    browser = page(row=row, color="logprob")
    browser.wait_for_count(".tokens span", len(traces[row][1]["tokens"]))
    assert len(set(browser.of_each(".tokens span", "it.style.backgroundColor"))) > 2
    n_marked = int((traces[row][1]["token_label"] == 1).sum())
    assert len(browser.of_each(".tokens .marked")) == n_marked
    browser.of(".tokens span", "it.dispatchEvent(new PointerEvent('pointermove', {bubbles: true}))")
    browser.wait_for_text("#tip", "most likely here")


NARROWED = {
    "": "x < 1",
    "label == 1": "label == 1 and x < 1",
    "x >= 3 and x < 4 and label == 1": "label == 1 and x < 1",
    "label == 1 or x < 4": "(label == 1 or x < 4) and x < 1",
    "(a == 1 or x < 4) and x >= 2": "(a == 1 or x < 4) and x < 1",
    'q ~ "x and x < 3 or" and not x > 2': 'q ~ "x and x < 3 or" and not x > 2 and x < 1',
    "xy > 3": "xy > 3 and x < 1",
    "x > y and x>=.5 and x == nan": "x > y and x < 1",
}
LASSO = 'inside(m, "0,0 1,0 1,1")'
JOINED = {
    "": "{}",
    LASSO: "{}",
    "x == 1": "x == 1 and {}",
    f"x == 1 and {LASSO}": "x == 1 and {}",
    f"not {LASSO}": f"not {LASSO} and {{}}",
    'inside(n, "0,0 1,0 1,1")': 'inside(n, "0,0 1,0 1,1") and {}',
    "x == 1 or y == 1": "(x == 1 or y == 1) and {}",
    f"(x == 1 or y == 1) and {LASSO}": "(x == 1 or y == 1) and {}",
    'q ~ "this or that"': 'q ~ "this or that" and {}',
}
NUMBERS = [-14202.12, 9999.7, 999999.2, 1234.6, 999.96, 1234567.8, 0.00012]
NUMBERS += [1e20, 2**53, "9007199254740993"]
TEXTS = ["-14202", "10000", "999999", "1235", "1000", "1.23e+6", "1.20e-4"]
TEXTS += ["1.00e+20", "9007199254740992", "9007199254740993", "-inf", "inf"]
PAIRS = [(0.56951, 0.56954), (1, 1), (0.5, 0.25), (123444.9, 123445.1)]
TOLD_APART = [["0.56951", "0.56954"], ["1", "1"], ["0.5000", "0.2500"], ["123444.9", "123445.1"]]
DIFFERENCES = {"a b c d|a c d": [1], "a b|a b": [], "x a y|a": [0, 2], "|a": [], "a b|": [0, 1]}


def imported(browser, name, code):
    """The value of an expression that calls what a script of the page exports `found`."""
    return browser.evaluate(f'import("/page/{name}.js").then((found) => {code})')


def test_functions_of_the_page(page):
    """A picture narrows the filter, and what it wrote before gives way; a lasso joins it, as short
    as the rest wants it; numbers that are compared differ; heads of layers without a mean can be
    chosen; tokens that another text lacks are told."""
    browser = page(tab="map", row=0)
    code = f'{json.dumps([*NARROWED])}.map((text) => found.narrowed(text, "x < 1", ["x"]))'
    assert imported(browser, "narrow", code) == [*NARROWED.values()]
    code = f"[...{NUMBERS}, -Infinity, 'inf'].map(found.numberText)"
    assert imported(browser, "dom", code) == TEXTS
    code = f"{json.dumps(PAIRS)}.map((pair) => found.numberTexts(...pair))"
    assert imported(browser, "dom", code) == TOLD_APART
    layers = "{ attention: [4, 8], heads: { attn_colsum: [2, 4, 10], x: [] } }"
    assert imported(browser, "attention", f"found.allLayers({layers})") == [2, 4, 8, 10]
    code = f"""{json.dumps([*DIFFERENCES])}.map((pair) => [...found.uncommon(
        ...pair.split("|").map((text) => text.split(" ").filter(Boolean)))])"""
    assert imported(browser, "differences", code) == [*DIFFERENCES.values()]
    code = f"""(() => {{
        const path = Array.from({{ length: 500 }}, (_, i) =>
            [300 + 200 * Math.cos(i / 80), 300 + 150 * Math.sin(i / 80)]);
        const text = found.polygonText(path, ([x, y]) => [x / 7, y / 9], [1 / 14, 1 / 18], 250);
        return [text, {json.dumps([*JOINED])}.map((filter) => found.withLasso(filter, "m", text))];
    }})()"""
    text, filters = imported(browser, "map_points", code)
    assert filters == [after.format(f'inside(m, "{text}")') for after in JOINED.values()]
    assert len(text) <= 250
    assert 8 < len(text.split()) <= 48


def test_the_nearest_point_is_that_of_numpy(page):
    """In pixels; far points and those of no coordinates are none."""
    rng = np.random.default_rng(3)
    points = rng.standard_normal((400, 2)).round(3)
    places = rng.uniform(-4, 4, (60, 2)).round(3)
    code = f"""{places.tolist()}.map((place) => found.nearest(
        Float32Array.from([...{points.tolist()}.flat(), NaN, 0]), place, [50, 20], 14,
        (i) => i % 5 > 0))"""
    nearest = imported(page(tab="map", row=0), "map_points", code)
    distances = np.linalg.norm((places[:, None] - points) * [50, 20], axis=2)
    distances[:, ::5] = np.inf
    expected = np.where(distances.min(1) < 14, distances.argmin(1), -1)
    assert nearest == expected.tolist()
    assert 5 < (expected < 0).sum() < 55


def pixels_of(browser, traces):
    """Where the map draws each trace, by the numbers of the store: float64 (n, 2), NaN for one."""
    points = np.array([row["map_pca"][:2] for _, row in traces], np.float64)
    low, high = np.nanmin(points, 0), np.nanmax(points, 0)
    low, high = low - 0.04 * (high - low), high + 0.04 * (high - low)
    size = browser.evaluate("(({width, height}) => [width, height])(map.getBoundingClientRect())")
    shares = (points - low) / (high - low)
    shares[:, 1] = 1 - shares[:, 1]
    return shares * size


def test_a_map_is_drawn_and_its_lasso_filters_the_table(page, traces):
    """Each trace where NumPy places it; a click chooses one, and keys move the map."""
    browser = page(tab="map", row=0)
    browser.wait_for_text(".map-note", "39 traces")
    assert "1 have no coordinates" in browser.text(".map-note")
    assert "component 1 (50.0%)" in browser.text(".map-note")
    browser.evaluate("globalThis.map = document.querySelector('.map-frame canvas')")
    pixels = pixels_of(browser, traces)
    places = pixels[np.isfinite(pixels[:, 0])].astype(int)
    code = f"""{places.tolist()}.map(([x, y]) =>
        map.getContext("2d").getImageData(x, y, 1, 1).data[3])"""
    assert min(browser.evaluate(code)) > 60
    corner = browser.evaluate("map.getContext('2d').getImageData(0, 0, 3, 3).data.some(Boolean)")
    assert not corner

    left, top = browser.evaluate("(({x, y}) => [x, y])(map.getBoundingClientRect())")
    middle = float(np.sort(pixels[:, 0])[19:21].mean())  # no point lies there
    height = browser.evaluate("map.clientHeight")
    ring = [[middle, 1], [1, 1], [1, height - 2], [middle, height - 2], [middle, height / 2]]
    browser.drag([[left + x, top + y] for x, y in ring], shift=True)
    browser.wait_until("#filter", "it.value.startsWith('inside(map_pca')")
    wanted = int((pixels[:, 0] < middle).sum())
    browser.wait_for_total(f"{wanted} of 40")
    browser.wait_for_text(".map-note", f"{wanted} traces")

    inside = np.flatnonzero(pixels[:, 0] < middle)
    others = np.linalg.norm(pixels[inside, None] - pixels[inside], axis=2)
    row = int(inside[np.argmax(np.sort(others)[:, 1])])  # the furthest from the next one
    x, y = pixels[row]
    browser.drag([[left + x, top + y]])
    browser.wait_for_text("#rows .on", f"trace-{row:02}")
    assert f"row={row}" in browser.evaluate("location.hash")

    browser.evaluate("map.focus()")
    browser.press("+", "ArrowLeft")
    browser.wait_for_address("view=")
    browser.press("0")
    browser.wait_for("!location.hash.includes('view=')")


def test_a_layer_leads_to_its_map(page):
    """Or to the command that makes it; arrow keys choose a layer, from the lowest upwards."""
    browser = page(tab="layers", row=7)
    browser.wait_until("#panel .picture")
    browser.focus("#panel .picture")
    browser.press("ArrowDown", "Enter")
    assert "--column hs_last --layer 1" in browser.text(".command")
    assert "store derive" in browser.text(".command")
    browser.focus("#panel .picture")
    browser.press("ArrowUp", "Enter")
    browser.wait_until(".map-tab")
    assert "map=map_pca" in browser.evaluate("location.hash")


@pytest.mark.parametrize("store, row, n_rows", [(0, 7, None), (1, "", 0), (2, 0, 1), (3, 1, 7)])
def test_every_tab_shows_every_store(page, store, row, n_rows):
    """Usual ones are painted; an empty one, one row of 100,000 tokens without texts, some
    thousands of which are in the document, and one without texts and attention, whose names are
    hostile, whose labels are texts and whose scores are all NaN. On a phone, too, nothing is wider
    than the screen."""
    browser = page(store=store)
    for tab in TABS:
        browser.change(store=store, row=row, tab=tab, other="score_my_model", edge=0.2)
        browser.wait_until("#tabs .on", f"it?.textContent === '{tab}'")
        browser.wait_for_panel()
        assert browser.is_hidden("#error"), tab
        assert len(browser.of_each(".tokens span")) <= 4000
        if store:
            assert len(browser.of_each("#rows .row")) == n_rows
            continue
        if tab in ("layers", "attention", "scores"):
            browser.wait_until("#panel .picture")
            assert browser.painted()
        with browser.resized(390, 844):
            assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    assert browser.of_each("img, main script") == []


def test_the_page_goes_on_while_the_store_changes(page, growing, traces):
    """A commit, and a repair that puts another store in its place, are offered; what is shown
    stays as it was until they are taken."""
    browser = page(store=4, filter="label == 1")
    shown = browser.text("#total")
    with StoreWriter.open(growing) as writer:
        for trace_id, row in traces[10:20]:
            writer.append(trace_id, {"label": row["label"]})
    newer(browser, "generation 2")
    flip(growing / "label/c/0", 7)
    assert main(["repair", str(growing), "--yes"]) == 0
    newer(browser, "has taken the place")
    browser.click("#rows .row:last-child")
    browser.wait_for_text("#panel h2", "trace-0")
    assert browser.text("#total") == shown == "3 of 10"
    browser.click("#newer button")
    n_rows = len(TraceStore.open(growing))
    browser.wait_until("#total", f"it.textContent.endsWith(' of {n_rows}')")
    assert browser.is_hidden("#newer")
    assert page(store=4).text("#total") == f"{n_rows} of {n_rows}"


def newer(browser, words):
    """Come back to the page, which then says that the store has changed."""
    browser.evaluate("dispatchEvent(new Event('focus'))")
    browser.wait_for_text("#newer", words)


def test_the_page_is_small():
    """Its scripts fit in 200 KB, and name no other host."""
    files = list(PAGE.iterdir())
    assert sum(file.stat().st_size for file in files if file.suffix == ".js") < 200_000
    for file in files:
        text = file.read_text()
        assert "innerHTML" not in text
        assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https:" not in text
