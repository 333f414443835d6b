"""The page in a real browser shows nothing wrong: scores, thresholds, numbers, marks, addresses."""

import numpy as np
import pytest
from view_traces import write_run, write_traces

from store import Column, Schema

N_TOKENS = 20_000
PEAK = 12_345  # a token between two that are drawn


@pytest.fixture(scope="module")
def own_address(tmp_path_factory, serve):
    """A store without a run, with its own names of the classes and a column `score`, and tokens of
    which some have no finite number; and one whose row is very long."""
    schema = Schema(
        {
            "label": Column("int8"),
            "score": Column("float32"),
            "tokens": Column("int32", axis="tokens"),
            "logprob": Column("float32", axis="tokens"),
            "lens_entropy": Column("float32", (2,), "tokens", ("layers",)),
        }
    )
    short = np.array([np.nan, -1, -np.inf, -2], np.float32)
    rows = []
    for i, logprob in enumerate((short, np.zeros(N_TOKENS, np.float32), short)):
        lens = np.zeros((len(logprob), 2), np.float32)
        lens[PEAK % len(logprob)] = 9
        tokens = np.arange(len(logprob), dtype=np.int32)
        row = {"label": i % 2, "score": i, "tokens": tokens, "logprob": logprob}
        rows.append((f"t{i}", row | {"lens_entropy": lens}))
    names = {"label_names": {"0": "faithful", "1": "made up"}}
    return serve([write_traces(tmp_path_factory.mktemp("truth") / "own.zarr", schema, rows, names)])


def test_a_store_without_scores_says_how_to_get_some(browser, own_address):
    """The ground truth is no detector; classes are called as the store calls them."""
    browser.open(f"{own_address}#tab=scores")
    browser.wait_for_text("#panel", "python -m train --store")
    assert browser.of_each("#panel .picture") == []
    browser.change(row=1)
    assert "2 faithful, 1 made up" in browser.text("#what")
    browser.wait_for_text("#panel .label-1", "made up (1)")
    browser.click("[aria-label='histogram of score']")
    browser.wait_for_text("#chooser", "faithful (label 0)")


def test_tokens_without_a_finite_number_are_marked(browser, own_address):
    """-inf is the most surprising; NaN has a mark of its own."""
    browser.open(f"{own_address}#row=0&color=logprob")
    tokens = "#panel .tokens [data-i]"
    browser.wait_for_count(tokens, 4)
    looks = browser.of_each(tokens, "[it.className, it.style.backgroundColor]")
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


def test_mistakes_are_those_of_the_threshold(page, traces):
    """The slider changes them, as does the address; the run's threshold is in force at first."""
    browser = page(row=7, tab="scores")
    scores = [i / 20 for i in range(20)]  # of every second row
    labels = [row["label"] for _, row in traces[::2]]
    kept = [(s, y) for i, (s, y) in enumerate(zip(scores, labels, strict=True)) if i != 3]
    slider = "#panel [type=range]"
    for threshold in (0.25, 0.6, 0.85):
        if threshold != 0.25:
            browser.choose(slider, threshold, "input", "change")
        false_alarms = sum(s >= threshold and y == 0 for s, y in kept)
        misses = sum(s < threshold and y == 1 for s, y in kept)
        alarms = "false alarm" if false_alarms == 1 else "false alarms"
        for said in (f"{false_alarms} {alarms}:", f"{misses} misses:"):
            browser.wait_for_text("#panel", said)
    assert "left out, without a finite score: 21" in browser.text("#panel")
    browser.focus(slider)
    browser.press("ArrowLeft")
    browser.wait_for("!location.hash.includes('threshold=0.85')")
    for threshold in ("0.5", "0.75"):
        browser.change(row=7, tab="scores", threshold=threshold)
        browser.wait_for_text("#panel", f"at least {threshold:0<6}")
    browser = page(row=7)
    with browser.resized(390, 844):  # the slider is as wide as the bars above it
        browser.change(row=7, tab="scores")
        browser.wait_until(slider)
        edge = "it.getBoundingClientRect().right"
        ends = [browser.of(part, edge) for part in ("#panel .picture", slider)]
        assert ends[0] == pytest.approx(ends[1], abs=1)


def test_scores_of_a_run_come_before_stored_ones(browser, serve, tmp_path):
    """Those of the store may be of traces of training, which is said of them alone."""
    schema = Schema({"score_a": Column("float32"), "label": Column("int8")})
    rows = [(f"t{i}", {"score_a": i / 8, "label": i % 2}) for i in range(8)]
    lines = [[f"t{i}", "test", i / 8] for i in range(4)]
    run = write_run(tmp_path / "run", ["trace_id", "split", "b"], lines)
    (run / "results.json").write_text('{"models": {"b": {"test": {"threshold": 0.25}}}}')
    address = serve([write_traces(tmp_path / "kept.zarr", schema, rows)], [run])
    browser.open(f"{address}#row=0&tab=scores")
    browser.wait_for_text("#panel", "as the run scored them")
    assert browser.of_each("#panel [aria-label=score] option") == ["score_b", "score_a"]
    assert "trained on" not in browser.text("#panel")
    browser.change(row=0, tab="scores", score="score_a")
    browser.wait_for_text("#panel", "may include traces that the detector was trained on")
    assert "as the run scored them" not in browser.text("#panel")


def test_detectors_that_say_hallucination_come_first(page):
    """Those without a threshold come last."""
    browser = page(row=14)  # gvae: 0.35, from 0.25 on
    browser.wait_for_text("#panel h2", "trace-14")
    assert browser.of_each("#panel .broad dt") == ["score_gvae", "score_my_model"]
