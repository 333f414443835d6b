"""The page in a real browser shows nothing wrong: scores, thresholds, numbers, marks, addresses."""

import numpy as np
import pytest
from view_traces import write_run, write_traces

from store import Column, Schema

pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")

N_TOKENS = 20_000
PEAK = 12_345  # a token between two that are drawn
CLOSE = 0.56951, 0.56954  # numbers that four digits do not tell apart


@pytest.fixture(scope="module")
def own_address(tmp_path_factory, serve):
    """A store without a run, with its own names of the classes and a column `score`, and tokens of
    which some have no finite number; and one whose row is very long."""
    folder = tmp_path_factory.mktemp("truth")
    schema = Schema(
        {
            "label": Column("int8"),
            "score": Column("float32"),
            "tokens": Column("int32", axis="tokens"),
            "logprob": Column("float32", axis="tokens"),
            "lens_entropy": Column("float32", (2,), "tokens", ("layers",)),
        }
    )

    def row_of(i, logprob):
        lens = np.zeros((len(logprob), 2), np.float32)
        lens[PEAK % len(logprob)] = 9
        tokens = np.arange(len(logprob), dtype=np.int32)
        return {
            "label": i % 2,
            "score": i,
            "tokens": tokens,
            "logprob": logprob,
            "lens_entropy": lens,
        }

    short = np.array([np.nan, -1, -np.inf, -2], np.float32)
    long = np.zeros(N_TOKENS, np.float32)
    rows = [("short", row_of(0, short)), ("long", row_of(1, long)), ("other", row_of(2, short))]
    names = {"label_names": {"0": "faithful", "1": "made up"}}
    return serve(write_traces(folder / "own.zarr", schema, rows, names))


def test_the_ground_truth_is_no_detector(browser, own_address):
    """A store without scores says how to get some."""
    browser.open(f"{own_address}#tab=scores")
    browser.wait_for_text("#panel", "python -m train --store")
    assert browser.evaluate("document.querySelectorAll('#panel .picture').length") == 0


def test_classes_are_called_as_the_store_calls_them(browser, own_address):
    """In the title, the trace and the legends."""
    browser.open(f"{own_address}#row=1")
    assert "2 faithful, 1 made up" in browser.text("#what")
    browser.wait_for_text("#panel .label-1", "made up (1)")
    browser.click("[aria-label='histogram of score']")
    browser.wait_for_text("#chooser", "faithful (label 0)")


def test_mistakes_are_those_of_the_threshold(page, traces):
    """The slider changes them; the run's threshold is in force at first."""
    browser = page(row=7, tab="scores")
    scores = [i / 20 for i in range(20)]  # of every second row
    labels = [row["label"] for _, row in traces[::2]]

    def expected(threshold):
        kept = [(s, y) for i, (s, y) in enumerate(zip(scores, labels, strict=True)) if i != 3]
        false_alarms = sum(s >= threshold and y == 0 for s, y in kept)
        return (
            f"{false_alarms} false alarms",
            f"{sum(s < threshold and y == 1 for s, y in kept)} misses",
        )

    for threshold in (None, 0.6, 0.85):
        if threshold:
            browser.evaluate(f"""(() => {{
                const slider = document.querySelector("#panel [type=range]");
                slider.value = {threshold};
                slider.dispatchEvent(new Event("input"));
                slider.dispatchEvent(new Event("change"));
            }})()""")
        for said in expected(threshold or 0.25):
            browser.wait_for(f"document.querySelector('#panel').textContent.includes({said!r})")
    browser.evaluate("document.querySelector('#panel [type=range]').focus()")
    browser.press("ArrowLeft")
    browser.wait_for("!location.hash.includes('threshold=0.85')")


IGNORED = {
    "score=lost&tab=scores": "score=lost is not in this store: score_gvae is shown",
    "threshold=abc&tab=scores": "threshold=abc: expected a number, 0.2500 is shown",
    "map=lost&tab=map": "map=lost is not in this store: map_pca is shown",
    "layer=77&tab=attention": "layer=77: expected 0 to 2",
    "edge=abc&tab=attention": "edge=abc: expected 0 to 1",
    "color=lost": "color=lost",
    "columns=label,lost": "columns: this store has no lost",
    "sort=lost&descending=1": "sort=lost is not in this store: it is left out",
    "tab=lost": "tab=lost",
    "store=99": "store=99",
}


@pytest.mark.parametrize("said", IGNORED)
def test_what_an_address_says_in_vain_is_said(page, said):
    """And no more, once another tab is shown."""
    browser = page()
    browser.evaluate(f"location.hash = 'row=7&{said}'")
    browser.wait_for_text("#ignored:not([hidden])", IGNORED[said])
    browser.evaluate("location.hash = 'row=7&tab=layers'")
    browser.wait_for("document.querySelector('#ignored').hidden")


def test_an_order_by_a_column_that_is_not_there_leaves_the_table(page):
    """Row by row; a filter can still be set, and another order."""
    browser = page(row=7, sort="lost", descending=1)
    browser.wait_for_total("40 of 40")
    browser.wait_for_text("#rows .row", "trace-00")
    browser.choose("#filter", "trace_id == 'trace-03'")
    browser.wait_for_total("1 of 40")
    browser.click("#head button", "trace_id")
    browser.wait_for("document.querySelector('#ignored').hidden")
    assert "sort=trace_id" in browser.evaluate("location.hash")


def test_a_threshold_of_an_address_is_in_force(page):
    """Also when the address changes."""
    browser = page(row=7, tab="scores", threshold="0.5")
    browser.wait_for_text("#panel", "at least 0.5000")
    browser.change(row=7, tab="scores", threshold="0.75")
    browser.wait_for_text("#panel", "at least 0.7500")


@pytest.fixture(scope="module")
def kept_address(tmp_path_factory, serve):
    """A store that has scores of its own, beside those of a run."""
    folder = tmp_path_factory.mktemp("kept")
    schema = Schema({"score_a": Column("float32"), "label": Column("int8")})
    rows = [(f"t{i}", {"score_a": i / 8, "label": i % 2}) for i in range(8)]
    lines = [[f"t{i}", "test", i / 8] for i in range(4)]
    run = write_run(folder / "run", ["trace_id", "split", "b"], lines)
    (run / "results.json").write_text('{"models": {"b": {"test": {"threshold": 0.25}}}}')
    return serve(write_traces(folder / "kept.zarr", schema, rows), "--run", run)


def test_scores_of_a_run_come_before_stored_ones(browser, kept_address):
    """Those of the store may be of traces of training, which is said of them alone."""
    browser.open(f"{kept_address}#row=0&tab=scores")
    browser.wait_for_text("#panel", "as the run scored them")
    names = "[...document.querySelector('#panel [aria-label=score]').options].map((o) => o.value)"
    assert browser.evaluate(names) == ["score_b", "score_a"]
    assert "trained on" not in browser.text("#panel")
    browser.evaluate("location.hash = 'row=0&tab=scores&score=score_a'")
    browser.wait_for_text("#panel", "may include traces that the detector was trained on")
    assert "as the run scored them" not in browser.text("#panel")


def test_numbers_that_are_compared_differ(page):
    """With as many digits as that takes."""
    code = f"""import("/page/dom.js").then(({{ numberTexts }}) => [
        numberTexts({CLOSE[0]}, {CLOSE[1]}), numberTexts(1, 1), numberTexts(0.5, 0.25)])"""
    assert page().evaluate(code) == [["0.56951", "0.56954"], ["1", "1"], ["0.5000", "0.2500"]]


def test_numbers_below_a_million_have_no_exponent(page):
    """Nor have those that are told apart."""
    code = """import("/page/dom.js").then(({ numberText, numberTexts }) => [
        ...[-14202.12, 9999.7, 999999.2, 1234.6, 999.96, 1234567.8, 0.00012].map(numberText),
        numberTexts(123444.9, 123445.1)])"""
    texts = ["-14202", "10000", "999999", "1235", "1000", "1.23e+6", "1.20e-4"]
    assert page().evaluate(code) == [*texts, ["123444.9", "123445.1"]]


def test_tokens_without_a_finite_number_are_marked(browser, own_address):
    """-inf is the most surprising; NaN has a mark of its own."""
    browser.open(f"{own_address}#row=0&color=logprob")
    browser.wait_for("document.querySelectorAll('#panel .tokens [data-i]').length === 4")
    tokens = "[...document.querySelectorAll('#panel .tokens [data-i]')]"
    looks = browser.evaluate(
        f"{tokens}.map((each) => [each.className, each.style.backgroundColor])"
    )
    assert [name for name, _ in looks] == ["nan", "", "infinite", ""]
    assert looks[0][1] == ""
    assert looks[2][1] == looks[3][1] != looks[1][1]  # the strongest colour
    assert "infinite" in browser.text("#panel .bar:has(.legend)")


def test_no_token_of_a_long_trace_is_dropped(browser, own_address):
    """Of the tokens that share a column of pixels the highest is drawn; a cue says what is seen."""
    browser.open(f"{own_address}#row=1&tab=layers")
    browser.wait_for_text("#panel .cue", "the highest of 3 tokens")
    assert "% of it is in sight: scroll to the right" in browser.text("#panel .cue")
    assert browser.opacity(PEAK // 3, 0) == 255


def test_the_threshold_is_moved_where_it_is_drawn(page):
    """The slider is as wide as the bars above it, also on a phone."""
    browser = page(row=7)
    browser.resize(390, 844)
    try:
        browser.change(row=7, tab="scores")
        browser.wait_for("document.querySelector('#panel [type=range]')")
        edge = "document.querySelector('#panel {}').getBoundingClientRect().right"
        ends = [browser.evaluate(edge.format(part)) for part in (".picture", "[type=range]")]
        assert ends[0] == pytest.approx(ends[1], abs=1)
    finally:
        browser.resize(1440, 900)


def test_a_trace_that_the_filter_hides_is_marked(page):
    """A click shows all rows again."""
    browser = page(row=7, filter="trace_id == 'trace-03'")
    browser.wait_for("!document.querySelector('#outside').hidden")
    browser.click("#outside button")
    browser.wait_for_total("40 of 40")
    browser.wait_for("document.querySelector('#outside').hidden")
    browser.wait_for_text("#rows .on", "trace-07")


def test_detectors_that_say_hallucination_come_first(page):
    """Those without a threshold come last."""
    browser = page(row=14)  # gvae: 0.35, from 0.25 on
    browser.wait_for_text("#panel h2", "trace-14")
    names = "[...document.querySelectorAll('#panel .broad dt')].map((each) => each.textContent)"
    assert browser.evaluate(names) == ["score_gvae", "score_my_model"]
