"""The page in a real browser: what it shows, what it must not run, and that it asks nobody else."""

import json
from pathlib import Path

import numpy as np
import pytest
from damage import flip
from view_traces import HOSTILE, N_ROWS

from store import StoreWriter, TraceStore
from store.cli.main import main

ROOT = Path(__file__).parents[3]
pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")


def lines(browser):
    return browser.evaluate("[...document.querySelectorAll('#rows .row')].map((r) => r.innerText)")


def test_the_table_and_the_first_trace_appear(page, traces):
    """With as many rows in the document as are in sight, and the token gone from the address."""
    browser = page()
    assert browser.text("#total") == f"{N_ROWS} of {N_ROWS}"
    assert 10 < len(lines(browser)) <= 60
    browser.wait_for_text("#panel h2", "trace-00")
    assert "token" not in browser.evaluate("location.href")
    assert browser.evaluate("document.cookie") == ""


def test_hostile_texts_are_texts(page, traces):
    """Nothing of them runs or becomes an element."""
    browser = page()
    for row in range(len(HOSTILE)):
        browser.change(row=row)
        browser.wait_for_text("#panel h2", f"{row:02}")
        shown = browser.evaluate("document.querySelector('#panel').textContent")
        assert traces[row][1]["question"] in shown
    assert browser.evaluate("document.title").startswith("traces.zarr")
    assert browser.evaluate("document.querySelectorAll('main img, main script').length") == 0
    heights = "[...document.querySelectorAll('#rows .cell')].map((cell) => cell.offsetHeight)"
    assert max(browser.evaluate(heights)) <= 28


def test_keys_walk_and_filter(page, traces):
    """j and k walk, / goes to the filter, Enter applies it; the URL holds all of it."""
    browser = page(row=3)
    browser.wait_for("document.querySelector('#rows .on')")
    browser.press("j")
    browser.wait_for("location.hash.includes('row=4')")
    browser.press("k")
    browser.wait_for("location.hash.includes('row=3')")
    browser.press("/")
    assert browser.evaluate("document.activeElement.id") == "filter"
    browser.type("label == 1 and sc")
    browser.wait_for_text("#completions:not([hidden]) li", "score")
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.value") == "label == 1 and score "
    browser.type("!= nan")
    browser.press("Enter")
    wanted = [i for i, (_, r) in enumerate(traces) if r["label"] == 1 and r["score"] == r["score"]]
    browser.wait_for_total(f"{len(wanted)} of 40")
    assert "filter=label" in browser.evaluate("location.hash")


def test_a_wrong_filter_is_explained(page):
    """In the server's words, with a caret; the rows that were there stay, as does the history."""
    browser = page(row=3)
    n = browser.evaluate("history.length")
    browser.press("/")
    browser.type("score > 0 and lable == 1")
    browser.press("Enter")
    browser.wait_for("!document.querySelector('#error').hidden")
    assert "closest: 'label'" in browser.text("#error")
    line, caret = browser.text("#caret").split("\n")
    assert line[caret.index("^") :].startswith("lable")
    assert browser.text("#total") == f"{N_ROWS} of {N_ROWS}"
    assert browser.evaluate("document.querySelector('#filter').className") == "bad"
    assert browser.evaluate("document.activeElement.selectionStart") == line.index("lable")
    assert browser.evaluate("history.length") == n
    assert "lable" not in browser.evaluate("location.href")
    forget_refusals(browser)


def test_a_wrong_filter_of_an_address_is_explained(page):
    """The rows that were there stay; nothing is saved that is not the filter's."""
    browser = page(row=3)
    browser.change(row=3, filter="lable%20==%201")
    browser.wait_for_text("#error", "closest: 'label'")
    assert browser.text("#total") == f"{N_ROWS} of {N_ROWS}"
    assert browser.evaluate("document.querySelector('#save').hidden")
    browser.change(row=3)
    browser.wait_for("!document.querySelector('#save').hidden")
    assert browser.evaluate("document.querySelector('#error').hidden")
    assert browser.evaluate("document.querySelector('#caret').hidden")
    forget_refusals(browser)


def forget_refusals(browser):
    """The browser's console notes each request that is refused, and nothing else."""
    assert all(entry.get("source") == "network" for entry in browser.complaints)
    browser.complaints.clear()


def test_a_trace_that_cannot_be_read_leaves_no_other(page):
    """Under its row; the error goes when another trace is chosen."""
    browser = page(row=3)
    browser.wait_for("document.querySelector('#panel h2')")
    browser.change(row=999)
    browser.wait_for("!document.querySelector('#error').hidden")
    assert browser.text("#panel") == ""
    browser.change(row=4)
    browser.wait_for_text("#panel h2", "trace-04")
    assert browser.evaluate("document.querySelector('#error').hidden")
    forget_refusals(browser)


@pytest.mark.parametrize("row", ["-1", "40", "abc"])
def test_a_row_that_is_not_there_is_hidden_by_no_filter(page, row):
    """Below the first one, beyond the last, and no number."""
    browser = page(row=3, filter="label == 1")
    browser.wait_for("!document.querySelector('#outside').hidden")
    browser.change(row=row, filter="label == 1")
    browser.wait_for_text("#error:not([hidden])", f"row: expected 0 to 39, found {row}")
    browser.wait_for("document.querySelector('#outside').hidden")


def test_quick_steps_end_at_the_right_row(page):
    """Quicker than the answers come that they need."""
    browser = page(store=5, row=0)
    browser.wait_for("document.querySelector('#rows .on')")
    browser.evaluate("""(async () => {
        for (let i = 0; i < 150; i += 1) {
            dispatchEvent(new KeyboardEvent("keydown", { key: "j" }));
            if (i % 3 === 0) await new Promise((resolve) => setTimeout(resolve, 1));
        }
    })()""")
    browser.wait_for_text("#panel h2", "many-150")
    browser.wait_for_text("#rows .on", "many-150")
    assert "row=150" in browser.evaluate("location.hash")


def test_another_store_begins_anew(page):
    """Nothing that was said of the last one is kept but the tab; the chooser goes as well."""
    state = {"beside": 4, "sort": "label", "descending": 1, "layer": 2, "tab": "scores"}
    browser = page(row=7, **state)
    browser.click("#choose")
    browser.choose("#store", 1)
    browser.wait_for_total("0 of 0")
    assert browser.evaluate("location.hash") == "#store=1&tab=scores"
    assert browser.evaluate("document.querySelector('#chooser').hidden")
    n = browser.evaluate("history.length")
    browser.click("#tabs .on")
    assert browser.evaluate("history.length") == n


def test_stores_of_one_name_show_their_folders(page, growing, many):
    """As much of their paths as tells them apart, in the menu and in the title."""
    browser = page(store=5)
    names = browser.evaluate("[...document.querySelectorAll('#store option')].map((o) => o.text)")
    expected = [f"{path.parent.name}/{path.name}" for path in (growing, many)]
    assert [names[0], *names[4:]] == ["traces.zarr", *expected]
    assert browser.evaluate("document.title") == f"{expected[1]} – traces"


def test_a_histogram_follows_the_filter(page, traces):
    """As long as it is open."""
    browser = page(row=7)
    browser.click("[aria-label='histogram of score']")
    browser.wait_for_text("#chooser h3", "of 40 rows")
    browser.change(row=7, filter="label == 1")
    n = sum(row["label"] == 1 for _, row in traces)
    browser.wait_for_text("#chooser h3", f"of {n} rows")


def test_the_last_column_can_be_hidden(page):
    """The table then shows those of the start, and the boxes say so."""
    browser = page(row=7, columns="label")
    browser.click("#choose")
    browser.click("#chooser :checked")
    browser.wait_for("document.querySelectorAll('#head .cell').length > 3")
    shown = browser.evaluate("document.querySelectorAll('#head .cell').length")
    assert browser.evaluate("document.querySelectorAll('#chooser :checked').length") == shown


def test_find_says_what_the_filter_hides(page):
    """An id or a text that other rows have."""
    browser = page(row=7, filter="label%20==%201")
    browser.choose("#find", "trace-01")
    browser.wait_for_text("#error", "the filter hides")


def test_a_sorted_column(page, traces):
    """The highest come first at the first click on its name, NaN last."""
    browser = page(columns="trace_id,exact")
    browser.click("#head .name", "exact")
    browser.wait_for_text("#rows .row", "trace-06")
    assert "sort=exact" in browser.evaluate("location.hash")


def test_tokens_are_coloured(page, traces):
    """A span for each, underlined in hallucinated spans."""
    row = max(range(N_ROWS), key=lambda i: len(traces[i][1]["tokens"]))
    browser = page(row=row, color="logprob")
    n = len(traces[row][1]["tokens"])
    browser.wait_for(f"document.querySelectorAll('.tokens span').length === {n}")
    colours = browser.evaluate(
        "[...document.querySelectorAll('.tokens span')].map((s) => s.style.backgroundColor)"
    )
    assert len(set(colours)) > 2
    marked = browser.evaluate("document.querySelectorAll('.tokens .marked').length")
    assert marked == int((traces[row][1]["token_label"] == 1).sum())


def test_a_token_shows_what_else_was_likely(page):
    """Where the pointer is."""
    browser = page(row=7)
    browser.wait_for("document.querySelector('.tokens span')")
    over = "new PointerEvent('pointermove', {bubbles: true})"
    browser.evaluate(f"document.querySelector('.tokens span').dispatchEvent({over})")
    browser.wait_for_text("#tip", "most likely here")


def test_all_answers_to_a_question(page, traces):
    """A button of a trace filters them."""
    browser = page(row=6)
    browser.click(".beside-name")
    browser.wait_for_total("2 of 40")
    assert browser.text("#panel h2").startswith("trace-06")


def test_two_traces_stand_beside_each_other(page):
    """The one that was kept, and the one that is chosen."""
    browser = page(row=7, beside=4)
    browser.wait_for("document.querySelectorAll('#panel article').length === 2")
    titles = browser.evaluate("[...document.querySelectorAll('#panel h2')].map((h) => h.innerText)")
    assert ["trace-04" in titles[0], "trace-07" in titles[1]] == [True, True]


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


def test_a_picture_narrows_the_filter(page):
    """What it wrote before gives way; quotes and brackets stay whole."""
    code = f"""import("/page/narrow.js").then((found) =>
        {json.dumps(list(NARROWED))}.map((text) => found.narrowed(text, "x < 1", ["x"])))"""
    assert page().evaluate(code) == list(NARROWED.values())


def test_heads_of_layers_without_a_mean_can_be_chosen(page):
    """Every layer that any column of attention has."""
    layers = """import("/page/attention.js").then((found) =>
        found.allLayers({ attention: [4, 8], heads: { attn_colsum: [2, 4, 10], x: [] } }))"""
    assert page().evaluate(layers) == [2, 4, 8, 10]


@pytest.mark.parametrize("tab", ["layers", "attention", "scores"])
def test_tabs_paint(page, tab):
    """Marks, and images with something in them."""
    browser = page(row=7, tab=tab, other="score_my_model", edge="0.2")
    browser.wait_for("document.querySelector('#panel .picture')")
    assert browser.painted()


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
    code = f"""{json.dumps(places.tolist())}.map(([x, y]) =>
        map.getContext("2d").getImageData(x, y, 1, 1).data[3])"""
    assert min(browser.evaluate(code)) > 60
    corner = browser.evaluate("map.getContext('2d').getImageData(0, 0, 3, 3).data.some(Boolean)")
    assert not corner

    left, top = browser.evaluate("(({x, y}) => [x, y])(map.getBoundingClientRect())")
    middle = float(np.sort(pixels[:, 0])[19:21].mean())  # no point lies there
    height = browser.evaluate("map.clientHeight")
    ring = [[middle, 1], [1, 1], [1, height - 2], [middle, height - 2], [middle, height / 2]]
    browser.drag([[left + x, top + y] for x, y in ring], shift=True)
    browser.wait_for("document.querySelector('#filter').value.startsWith('inside(map_pca')")
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
    browser.press("+")
    browser.press("ArrowLeft")
    browser.wait_for("location.hash.includes('view=')")
    browser.press("0")
    browser.wait_for("!location.hash.includes('view=')")


def test_the_nearest_point_is_that_of_numpy(page):
    """In pixels; far points and those of no coordinates are none."""
    rng = np.random.default_rng(3)
    points = rng.standard_normal((400, 2)).round(3)
    places = rng.uniform(-4, 4, (60, 2)).round(3)
    browser = page(tab="map", row=0)
    code = """(async (points, places) => {
        const { nearest } = await import("/page/map_points.js");
        const all = Float32Array.from([...points.flat(), NaN, 0]);
        return places.map((place) => nearest(all, place, [50, 20], 14, (i) => i % 5 > 0));
    })"""
    found = browser.evaluate(f"{code}({points.tolist()}, {places.tolist()})")
    distances = np.linalg.norm((places[:, None] - points) * [50, 20], axis=2)
    distances[:, ::5] = np.inf
    expected = np.where(distances.min(1) < 14, distances.argmin(1), -1)
    assert found == expected.tolist()
    assert 5 < (expected < 0).sum() < 55


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


def test_a_lasso_joins_the_filter(page):
    """And takes the place of the last one, as short as the rest of the filter wants it."""
    browser = page(tab="map", row=0)
    code = """(async (filters) => {
        const { polygonText, withLasso } = await import("/page/map_points.js");
        const path = Array.from({ length: 500 }, (_, i) =>
            [300 + 200 * Math.cos(i / 80), 300 + 150 * Math.sin(i / 80)]);
        const text = polygonText(path, ([x, y]) => [x / 7, y / 9], [1 / 14, 1 / 18], 250);
        return [text, filters.map((filter) => withLasso(filter, "m", text))];
    })"""
    text, found = browser.evaluate(f"{code}({json.dumps([*JOINED])})")
    assert found == [after.format(f'inside(m, "{text}")') for after in JOINED.values()]
    assert len(text) <= 250
    assert 8 < len(text.split()) <= 48


def test_a_layer_leads_to_its_map(page):
    """Or to the command that makes it; arrow keys choose a layer, from the lowest upwards."""
    browser = page(tab="layers", row=7)
    browser.wait_for("document.querySelector('#panel .picture')")
    browser.evaluate("document.querySelector('#panel .picture').focus()")
    for key in ("ArrowDown", "Enter"):
        browser.press(key)
    assert "--column hs_last --layer 1" in browser.text(".command")
    assert "store derive" in browser.text(".command")
    browser.evaluate("document.querySelector('#panel .picture').focus()")
    for key in ("ArrowUp", "Enter"):
        browser.press(key)
    browser.wait_for("document.querySelector('.map-tab')")
    assert "map=map_pca" in browser.evaluate("location.hash")


TABS = ("trace", "layers", "attention", "map", "scores")


@pytest.mark.parametrize("store", [1, 2, 3])
def test_awkward_stores_are_shown(page, store):
    """An empty one, one row of 100,000 tokens without texts, and one without texts and attention,
    whose names are hostile, whose labels are texts and whose scores are all NaN."""
    browser = page(store=store)
    row = ["", 0, 1][store - 1]
    for tab in TABS:
        browser.change(store=store, row=row, tab=tab)
        browser.wait_for(f"document.querySelector('#tabs .on')?.textContent === '{tab}'")
        browser.wait_for("document.querySelector('#panel').textContent.length > 5")
        assert browser.evaluate("document.querySelector('#error').hidden"), tab
        assert len(lines(browser)) == [0, 1, len(HOSTILE)][store - 1]
    assert browser.evaluate("document.querySelectorAll('img, main script').length") == 0


def test_a_long_trace_is_shown_in_parts(page):
    """Of 100,000 tokens some thousands are in the document; without texts they are ids."""
    browser = page(store=2)
    browser.wait_for("document.querySelectorAll('.tokens span').length > 100")
    browser.wait_for("document.querySelector('#panel').ariaBusy === 'false'")
    assert browser.evaluate("document.querySelectorAll('.tokens span').length") <= 4000
    browser.click("#panel button", "later")
    browser.wait_for_text(".tokens span", "4000")
    assert "tokens 4,000 to 7,999 of 100,000" in browser.text("#panel")


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
    browser.wait_for(f"document.querySelector('#total').textContent.endsWith(' of {n_rows}')")
    assert browser.evaluate("document.querySelector('#newer').hidden")
    assert page(store=4).text("#total") == f"{n_rows} of {n_rows}"


def newer(browser, words):
    """Come back to the page, which then says that the store has changed."""
    browser.evaluate("dispatchEvent(new Event('focus'))")
    browser.wait_for_text("#newer", words)


def test_a_phone_can_read_it(page):
    """Nothing is wider than the screen."""
    browser = page()
    browser.resize(390, 844)
    try:
        for tab in TABS:
            browser.change(row=7, tab=tab)
            browser.wait_for(f"document.querySelector('#tabs .on')?.textContent === '{tab}'")
            browser.wait_for("document.querySelector('#panel').textContent.length > 5")
            assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    finally:
        browser.resize(1440, 900)


def test_the_page_is_small():
    """Its scripts fit in 200 KB, and name no other host."""
    files = list((ROOT / "store" / "view" / "page").iterdir())
    assert sum(file.stat().st_size for file in files if file.suffix == ".js") < 200_000
    for file in files:
        text = file.read_text()
        assert "innerHTML" not in text
        assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https:" not in text
