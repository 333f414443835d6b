"""The page without a mouse: everything can be reached, seen and used with the keyboard."""

import pytest

CONTROLS = "a[href], button, input, select, [tabindex='0']"  # but those that arrows lead to
FOCUS = """
    (() => {
        const at = document.activeElement;
        const style = getComputedStyle(at);
        return {
            number: at.dataset.number ?? null,
            isSeen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1,
        };
    })()
"""
NUMBER_ALL = f"""
    [...document.querySelectorAll({CONTROLS!r})]
        .filter((each) => each.offsetParent !== null && !each.disabled && each.tabIndex >= 0)
        .map((each, i) => (each.dataset.number = String(i)))
"""


def tab_to(browser, condition):
    """Press Tab until an expression is true of what has the focus."""
    for _ in range(200):
        if browser.evaluate(f"((at) => !!({condition}))(document.activeElement)"):
            return
        browser.press("Tab")
    raise AssertionError(f"Tab never comes to: {condition}")


def test_a_walk_from_the_filter_through_all_tabs(page, traces):
    """Filter, row, tab, picture: with / and Tab, arrows and Enter alone."""
    browser = page(columns="trace_id,label", other="score_my_model", edge="0")
    browser.press("/")
    browser.type("prompt_len >= 3")
    browser.press("Enter")
    wanted = [i for i, (_, row) in enumerate(traces) if row["prompt_len"] >= 3]
    browser.wait_for_total(f"{len(wanted)} of 40")
    tab_to(browser, "at.id === 'scroll'")
    for key, row in (("Home", wanted[0]), ("ArrowDown", wanted[1])):
        browser.press(key)
        browser.wait_for_address(f"row={row}")
    browser.wait_for_panel()
    for tab in ("trace", "layers", "attention", "scores"):
        tab_to(browser, "at.role === 'tab'")
        while browser.evaluate("document.activeElement.textContent") != tab:
            browser.press("ArrowRight")
        picture = ".walk" if tab == "trace" else ".picture"
        browser.wait_until("#tabs .on", f"it.textContent === {tab!r}")
        browser.wait_for_panel()
        assert browser.evaluate("document.activeElement.textContent") == tab
        tab_to(browser, f"at.closest('#panel') && at.matches({picture!r})")
        browser.press("ArrowRight")
        browser.wait_until("#tip", "!it.hidden && it.textContent")
        browser.press("Tab")
        browser.wait_until("#tip", "it.hidden")
        browser.focus("#filter")
    assert browser.is_hidden("#error")


@pytest.mark.parametrize("tab", ["trace", "layers", "attention", "map", "scores"])
def test_tab_reaches_every_control(page, tab):
    """And what has the focus shows it."""
    state = {"row": 7, "tab": tab, "columns": "trace_id,label", "filter": "label > -2"}
    browser = page(**state, other="score_my_model")
    browser.wait_for_panel()
    numbers = set(browser.evaluate(NUMBER_ALL))
    assert len(numbers) > 10
    reached = set()
    for _ in range(len(numbers) + 3):
        browser.press("Tab")
        found = browser.evaluate(FOCUS)
        assert found["isSeen"] or found["number"] is None, found
        reached.add(found["number"])
    assert numbers - reached == set(), browser.of_each("[data-number]", "it.outerHTML")


def test_keys_work_after_any_click(page):
    """A choice draws the panel again, and the keyboard goes on from there; on a box to tick and a
    slider too; ? shows the keys."""
    browser = page(row=7, tab="attention")
    browser.wait_until("#panel input[type=range]")
    tab_to(browser, "at.ariaLabel === 'layer'")
    before = browser.evaluate("document.activeElement.value")
    browser.press("ArrowLeft")
    browser.wait_for(f"document.activeElement.value !== {before!r}")
    browser.wait_for("document.activeElement.ariaLabel === 'layer'")
    for kind, key, row in (("checkbox", "j", 8), ("range", "k", 7)):
        browser.focus(f"#panel input[type={kind}]")
        browser.press(key)
        browser.wait_for_address(f"row={row}")
        browser.wait_for_panel()
    browser.press("?")
    browser.wait_until("#keys", "it.open")
    browser.press("Escape")
    browser.wait_until("#keys", "!it.open")
    tab_to(browser, "at.ariaLabel === 'columns'")
    browser.press("Enter")
    browser.wait_for("document.activeElement.type === 'checkbox'")
    browser.press("Escape")
    browser.wait_for("document.activeElement.id === 'choose'")


def test_a_bar_becomes_a_filter(page, traces):
    """Of the histogram of a column, with Enter; the next bar takes its place."""
    browser = page(columns="trace_id,label")
    tab_to(browser, "at.closest('#head')")
    while browser.evaluate("document.activeElement.ariaLabel") != "histogram of label":
        browser.press("ArrowRight")
    browser.press("Enter")
    browser.wait_for("document.activeElement.matches('.picture')")
    for label in (-1, 0):
        browser.press("ArrowRight", "Enter")
        n = sum(row["label"] == label for _, row in traces)
        browser.wait_for_total(f"{n} of 40")
    assert browser.of("#filter", "it.value").count("label") == 2
    browser.press("Escape")
    tab_to(browser, "at.id === 'clear'")
    browser.press("Enter")
    browser.wait_for_total("40 of 40")
    assert browser.evaluate("document.activeElement.id") == "filter"
