"""The page in a real browser as a stranger meets it: what it says of itself, and to whom."""

import os
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")

ROOT = Path(__file__).parents[3]
AXE = Path(os.environ.get("AXE", ROOT / ".venv/axe/node_modules/axe-core/axe.min.js"))
TABS = ("trace", "layers", "attention", "map", "scores")


def test_the_title_says_what_this_is(page):
    """The store, its rows and classes, and the run."""
    browser = page(row=7)
    assert browser.text("#what") == (
        "traces.zarr 40 traces · 13 right, 13 hallucination · runs first, "
        "<img src=x onerror=alert(1)>"
    )


def test_conditions_are_chips(page):
    """A lasso among them; a click leaves one out."""
    lasso = 'inside(map_pca, "-9,-9 9,-9 9,9 -9,9")'
    browser = page(row=7, filter=f"label == 1 and {lasso}")
    chips = "[...document.querySelectorAll('#chips button')].map((chip) => chip.textContent)"
    assert browser.evaluate(chips) == ["label == 1 ×", "lasso on map_pca ×"]
    browser.click("#chips button", "lasso")
    browser.wait_for("document.querySelector('#filter').value === 'label == 1'")


def test_no_rows_offer_the_next_step(page):
    """The filter is cleared where it hides everything."""
    browser = page(row=7, filter="label == 77")
    browser.click("#rows button", "clear the filter")
    browser.wait_for_total("40 of 40")


def test_an_empty_store_offers_the_next_step(page):
    """Also where the address names a row."""
    browser = page(store=1, row=0)
    browser.wait_for_text("#panel", "python -m store extract")
    assert browser.evaluate("document.querySelector('#error').hidden")


def test_a_histogram_has_axes(page):
    """Counts upwards, by logarithm on request; it pushes nothing away."""
    browser = page(row=7)
    top = "document.querySelector('#scroll').getBoundingClientRect().top"
    before = browser.evaluate(top)
    browser.click("[aria-label='histogram of score']")
    browser.wait_for("document.querySelector('#chooser .picture')")
    assert browser.evaluate(top) == before
    pixels = "document.querySelector('#chooser .picture').innerHTML"
    linear = browser.evaluate(pixels)
    browser.click("#chooser [type=checkbox]")
    assert browser.evaluate(pixels) != linear
    assert "log=1" in browser.evaluate("location.hash")


def test_a_finger_reads_a_token(page):
    """What a tap shows stays when the finger is lifted."""
    browser = page(row=7)
    browser.wait_for("document.querySelector('.tokens [data-i]')")
    browser.evaluate("""(() => {
        const token = document.querySelector(".tokens [data-i]");
        const touch = (kind, bubbles) =>
            new PointerEvent(kind, { bubbles, pointerType: "touch", clientX: 700, clientY: 300 });
        token.dispatchEvent(touch("pointermove", true));
        token.closest(".walk").dispatchEvent(touch("pointerleave", false));
    })()""")
    browser.wait_for_text("#tip:not([hidden])", "most likely here")


def test_a_window_at_400_percent_has_a_table(page):
    """Of more than a row; the page scrolls downwards alone."""
    browser = page(row=7)
    browser.resize(360, 225)
    try:
        browser.wait_for("document.querySelectorAll('#rows .row').length >= 6")
        assert browser.evaluate("document.documentElement.scrollWidth") <= 360
        assert browser.evaluate("document.documentElement.scrollHeight") > 400
    finally:
        browser.resize(1440, 900)


def test_print_shows_the_trace_whole(page):
    """In its colours, without the table."""
    browser = page(row=7)
    browser.send("Emulation.setEmulatedMedia", media="print")
    try:
        assert browser.evaluate("document.querySelector('#table').offsetHeight") == 0
        style = "getComputedStyle(document.querySelector('#side'))"
        assert browser.evaluate(f"{style}.overflow") == "visible"
        assert browser.evaluate(f"{style}.printColorAdjust") == "exact"
    finally:
        browser.send("Emulation.setEmulatedMedia", media="")


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core: npm install --prefix .venv/axe axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("tab", TABS)
def test_axe_finds_nothing(page, tab, scheme):
    """Roles, names and contrast, by the rules of WCAG."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser = page(row=7, tab=tab, other="score_my_model", filter="label > -2", edge="0.05")
    browser.send("Emulation.setEmulatedMedia", features=[feature])
    try:
        browser.wait_for("document.querySelector('#panel').ariaBusy === 'false'")
        browser.wait_for("document.querySelector('#panel').textContent.length > 5")
        browser.evaluate(f"{AXE.read_text()}; 0")
        found = browser.evaluate("""axe.run(document).then((found) => found.violations.map((each) =>
            [each.id, ...each.nodes.slice(0, 3).map((node) => node.html.slice(0, 150))]))""")
    finally:
        browser.send("Emulation.setEmulatedMedia", features=[])
    assert found == []
