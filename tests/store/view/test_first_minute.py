"""The page in a real browser as a stranger meets it: on any screen, by any hand, for any eyes."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
AXE = Path(os.environ.get("AXE", ROOT / ".venv/axe/node_modules/axe-core/axe.min.js"))
TABS = ("trace", "layers", "attention", "map", "scores")


def test_a_finger_reads_a_token(page):
    """What a tap shows stays when the finger is lifted."""
    browser = page(row=7)
    browser.wait_until(".tokens [data-i]")
    browser.of(
        ".tokens [data-i]",
        """["pointermove", "pointerleave"].forEach((kind) => {
            const options = { pointerType: "touch", clientX: 700, clientY: 300 };
            const event = new PointerEvent(kind, { bubbles: kind === "pointermove", ...options });
            (event.bubbles ? it : it.closest(".walk")).dispatchEvent(event);
        })""",
    )
    browser.wait_for_text("#tip:not([hidden])", "most likely here")


def test_a_window_at_400_percent_has_a_table(page):
    """Of more than a row; the page scrolls downwards alone."""
    browser = page(row=7)
    with browser.resized(360, 225):
        browser.wait_for("document.querySelectorAll('#rows .row').length >= 6")
        assert browser.of("html", "it.scrollWidth") <= 360
        assert browser.of("html", "it.scrollHeight") > 400


@pytest.mark.parametrize("height", [600, 1200])
def test_what_fits_has_no_scrollbar_below(page, height):
    """Of a trace of few tokens, whether or not the panel scrolls downwards."""
    browser = page()
    with browser.resized(1440, height):
        for tab in TABS:
            browser.change(row=7, tab=tab)
            browser.wait_until("#tabs .on", f"it?.textContent === '{tab}'")
            browser.wait_for_panel()
            wider = browser.of_each("#side, #side .wide", "it.scrollWidth - it.clientWidth")
            assert not any(wider), tab


def test_print_shows_the_trace_whole(page):
    """In its colours, without the table."""
    browser = page(row=7)
    with browser.shown_on("print"):
        assert browser.of("#table", "it.offsetHeight") == 0
        assert browser.of("#side", "getComputedStyle(it).overflow") == "visible"
        assert browser.of("#side", "getComputedStyle(it).printColorAdjust") == "exact"


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core: npm install --prefix .venv/axe axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page, scheme):
    """Roles, names and contrast, by the rules of WCAG, on every tab."""
    browser = page()
    browser.evaluate(f"{AXE.read_text()}; 0")
    with browser.shown_on(prefers_color_scheme=scheme):
        for tab in TABS:
            browser.change(row=7, tab=tab, other="score_my_model", filter="label > -2", edge="0.05")
            browser.wait_until("#tabs .on", f"it?.textContent === '{tab}'")
            browser.wait_for_panel()
            found = browser.evaluate("""axe.run(document).then((found) => found.violations.map(
                (each) => [each.id, ...each.nodes.map((node) => node.html.slice(0, 150))]))""")
            assert found == [], tab
