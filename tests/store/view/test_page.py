"""The page in a real browser: what it shows, what it must not run, and that it asks nobody else."""

import json
from pathlib import Path

import pytest
from view_traces import HOSTILE, N_ROWS

ROOT = Path(__file__).parents[3]
pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")


def text_of(browser, selector):
    return browser.evaluate(f"document.querySelector({json.dumps(selector)})?.textContent")


def lines(browser):
    return browser.evaluate("[...document.querySelectorAll('#rows .row')].map((r) => r.innerText)")


def test_the_table_and_the_first_trace_appear(page, traces):
    """With as many rows in the document as are in sight, and the token gone from the address."""
    browser = page()
    assert text_of(browser, "#total") == f"{N_ROWS} of {N_ROWS}"
    assert 10 < len(lines(browser)) <= 60
    browser.wait_for("document.querySelector('#panel h2')?.textContent.includes('trace-00')")
    assert "token" not in browser.evaluate("location.href")
    assert browser.evaluate("document.cookie") == ""


def test_hostile_texts_are_texts(page, traces):
    """Nothing of them runs or becomes an element."""
    browser = page()
    for row in range(len(HOSTILE)):
        browser.evaluate(f"location.hash = 'row={row}'")
        browser.wait_for(f"document.querySelector('#panel h2')?.textContent.includes('{row:02}')")
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
    browser.wait_for("!document.querySelector('#completions').hidden")
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.value") == "label == 1 and score "
    browser.type("!= nan")
    browser.press("Enter")
    wanted = [i for i, (_, r) in enumerate(traces) if r["label"] == 1 and r["score"] == r["score"]]
    browser.wait_for(f"document.querySelector('#total').textContent === '{len(wanted)} of 40'")
    assert "filter=label" in browser.evaluate("location.hash")


def test_a_wrong_filter_is_explained(page):
    """In the server's words; the browser's console notes the refused request."""
    browser = page(filter="lable%20==%201")
    browser.wait_for("!document.querySelector('#error').hidden")
    assert "closest: 'label'" in text_of(browser, "#error")
    refused = [entry for entry in browser.complaints if entry.get("source") == "network"]
    assert len(refused) == len(browser.complaints)
    browser.complaints.clear()


def test_a_sorted_column(page, traces):
    """The highest come first at the first click on its name, NaN last."""
    browser = page(columns="trace_id,exact")
    code = "[...document.querySelectorAll('#head .name')].find((b) => b.textContent === 'exact')"
    browser.evaluate(f"{code}.click()")
    browser.wait_for("document.querySelector('#rows .row')?.innerText.includes('trace-06')")
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
    over = "new PointerEvent('pointerover', {bubbles: true})"
    browser.evaluate(f"document.querySelector('.tokens span').dispatchEvent({over})")
    browser.wait_for("document.querySelector('#tip').textContent.includes('most likely here')")


def test_two_traces_stand_beside_each_other(page):
    """The one that was kept, and the one that is chosen."""
    browser = page(row=7, beside=4)
    browser.wait_for("document.querySelectorAll('#panel article').length === 2")
    titles = browser.evaluate("[...document.querySelectorAll('#panel h2')].map((h) => h.innerText)")
    assert ["trace-04" in titles[0], "trace-07" in titles[1]] == [True, True]


@pytest.mark.parametrize("tab", ["layers", "attention", "scores"])
def test_tabs_paint(page, tab):
    """Something is on their canvas."""
    browser = page(row=7, tab=tab, other="score_my_model", edge="0.2")
    browser.wait_for("document.querySelector('#panel canvas')")
    painted = browser.evaluate("""
        [...document.querySelectorAll("#panel canvas")].every((canvas) =>
            canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height)
                .data.some(Boolean))
    """)
    assert painted


@pytest.mark.parametrize("tab", ["trace", "layers", "attention", "scores"])
@pytest.mark.parametrize("store", [1, 2])
def test_awkward_stores_are_shown(page, store, tab):
    """An empty one, and a trace of 100,000 tokens without texts."""
    browser = page(store=store, tab=tab)
    browser.wait_for("document.querySelector('#panel').textContent.length > 5")
    assert browser.evaluate("document.querySelector('#error').hidden")


def test_a_phone_can_read_it(page):
    """Nothing is wider than the screen."""
    browser = page()
    browser.resize(390, 844)
    try:
        for tab in ("trace", "layers", "attention", "scores"):
            browser.evaluate(f"location.hash = 'row=7&tab={tab}'")
            browser.wait_for(f"document.querySelector('#tabs .on')?.textContent === '{tab}'")
            browser.wait_for("document.querySelector('#panel').textContent.length > 5")
            assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    finally:
        browser.resize(1440, 900)


def test_the_page_is_small():
    """Its scripts fit in 150 KB, and name no other host."""
    files = list((ROOT / "store" / "view" / "page").iterdir())
    assert sum(file.stat().st_size for file in files if file.suffix == ".js") < 150_000
    for file in files:
        text = file.read_text()
        assert "innerHTML" not in text
        assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https:" not in text
