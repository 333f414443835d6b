"""The page in a real browser: which tokens, which layer, which head, and what to note of it."""

import json
import time
from xml.etree import ElementTree

import numpy as np
import pytest
from browser import fragment_of
from view_traces import N_LAYERS, SCHEMA, make_row, write_run, write_traces

from store import Column, Schema
from store.labels.notes import write_note
from store.traces.notes import Note, notes_path, read_notes

PIXELS = "it.getAttribute('href')"


@pytest.fixture(scope="module")
def closer_path(tmp_path_factory):
    """A store with edges and a score of each token, and states of each trace."""
    more = {
        "attentions": Column("float16", (N_LAYERS, 2), "squares", ("layers", "heads")),
        "score_token_gvae": Column("float32", axis="tokens"),
        "hs_last": Column("float32", (N_LAYERS, 4), axis_names=("layers", "hidden")),
    }
    rows = []
    for i in range(12):
        rng = np.random.default_rng([9, i])
        row = make_row(i + 5)
        n = len(row["tokens"])
        row["attentions"] = rng.random((n * n, N_LAYERS, 2)).astype(np.float16)
        row["score_token_gvae"] = rng.standard_normal(n).astype(np.float32)
        row["hs_last"] = rng.standard_normal((N_LAYERS, 4)).astype(np.float32)
        row["topk_id"][:, 0] = row["tokens"]
        rows.append((f"trace-{i:02}", row))
    schema = Schema({**SCHEMA.columns, **more})
    return write_traces(tmp_path_factory.mktemp("closer") / "closer.zarr", schema, rows)


@pytest.fixture(scope="module")
def closer(browser, closer_path, tmp_path_factory, serve):
    """Opens a state of that store's page, with a run of two detectors and a probe of layers (some
    are none), and a score without a threshold, which one row lacks and which is infinite in one of
    label 1."""
    free = [*map(str, range(12))]
    free[2], free[9] = "", "inf"
    lines = [[f"trace-{i:02}", "test", i / 12, 1 - i / 12, free[i]] for i in range(12)]
    header = ["trace_id", "split", "gvae", "probe", "free"]
    run = write_run(tmp_path_factory.mktemp("runs") / "closer", header, lines)
    layers = {"layers": [1, 2, "b", None, 3], "layer_val_auroc": [0.5, None, 0.6, 0.7, 0.875]}
    models = {name: {"test": {"threshold": 0.5}} for name in ("gvae", "probe")}
    models["probe"] |= layers
    (run / "results.json").write_text(json.dumps({"models": models}))
    (run / "report.html").write_text('<a data-trace="trace-03">trace-03</a>')
    address = serve([closer_path], [run])

    def go(**state):
        browser.open(f"{address}#{fragment_of('', state)}")
        return browser

    return go


def test_detectors_of_a_trace(closer):
    """By a click those that are wrong alone: label 0 of trace-02, where gvae says 0 and probe 1;
    by another the tokens that drove a score. The token that was taken is marked among the likely
    ones."""
    browser = closer(row=2)
    browser.wait_for_text("#panel h2", "trace-02")
    assert browser.of_each("#panel .broad dt") == ["score_probe", "score_gvae"]
    browser.wait_for("document.querySelectorAll('#panel [data-i]').length > 1")
    browser.focus("#panel .walk")
    browser.press("ArrowRight")
    browser.wait_for_text("#tip", "most likely here:\n✓")
    browser.click("#panel dt button", "score_gvae")
    browser.wait_for_address("color=score_token_gvae")
    browser.click("#panel label", "only the 1 of 2 that disagree with the label")
    browser.wait_for_count("#panel .broad dt", 1)
    assert browser.of_each("#panel .broad dt") == ["score_probe"]


def test_a_threshold_is_taken_from_the_curve(closer):
    """AUROC and confusion beside it; a cell of it leads to the rows."""
    browser = closer(tab="scores", score="score_gvae")
    browser.wait_for_text("#panel", "AUROC")
    browser.wait_for_text("#panel .confusion", "≥ 0.5000")
    browser.focus("#panel .picture[aria-label^=ROC]")
    browser.press("ArrowRight", "Enter")
    browser.wait_for_address("threshold=")
    browser.click("#panel .confusion button", "found")
    browser.wait_for_address("label+%3D%3D+1")


def test_a_score_without_a_threshold(closer):
    """The middle of all rows parts them, whatever the filter; an infinite one is in no cell."""
    browser = closer(tab="scores", score="score_free", filter="score_free<5")
    browser.wait_for_text("#panel .confusion", "≥ 5.500")
    browser.change(tab="scores", score="score_free")
    browser.click("#panel .confusion button", "found 1")
    browser.wait_for_text("#total", "1 of 12")
    closer(row=9).wait_for_text("#panel dl", "inf")


def test_layers_that_tell_the_labels_apart(closer):
    """What the run's probes reach, by layer; by a click each layer has colours of its own."""
    browser = closer(row=2, tab="layers")
    browser.wait_for_text("#panel", "AUROC of probes by layer")
    browser.focus("#panel .picture[aria-label^=AUROC]")
    browser.press(*["ArrowRight"] * 3)
    assert browser.text("#tip") == "layer 3\n0.8750  probe"
    before = browser.of("#panel .picture image", PIXELS)
    browser.click("#panel label", "colours of each layer apart")
    browser.wait_for_count("#panel .bar .legend", 0)
    assert browser.of("#panel .picture image", PIXELS) != before


def test_edges_of_a_head(closer):
    """Chosen from a list."""
    browser = closer(row=2, tab="attention", layer=1, first=1, edge=0)
    browser.wait_for_panel()
    browser.choose("#panel [aria-label='edges of']", 1)
    browser.wait_for_text("#panel", "edges, head 1: an arc")


def test_two_traces_are_aligned(closer):
    """The one that was kept, and the one that is chosen: their parts begin at one height, and
    tokens that the other has not are marked."""
    browser = closer(row=2, beside=3)
    browser.wait_for_count("#panel article", 2)
    titles = browser.of_each("#panel h2")
    assert ["trace-03" in titles[0], "trace-02" in titles[1]] == [True, True]
    tops = "[...it.children].map((part) => Math.round(part.getBoundingClientRect().top))"
    first, second = browser.of_each("#panel article", tops)
    assert first == second
    assert len(first) == 10
    assert browser.of_each("#panel .differs")
    assert len(browser.of_each("#panel [aria-label='tokens by']")) == 1


def test_nearest_traces(closer):
    """In a column and layer of one's choice, of the rows of the filter; a click opens one."""
    browser = closer(row=2)
    browser.wait_for_panel()
    browser.choose("#panel [aria-label=by]", "hs_last 2")
    browser.wait_for_count("#panel .list .line", 8)
    browser.change(row=2, near="hs_last 2", filter="score_gvae>0.7")  # 3 traces, and not this one
    browser.wait_for_count("#panel .list .line", 3)
    browser.click("#panel .list .line")
    browser.wait_for("!location.hash.includes('row=2&')")


def test_a_note_is_kept_beside_the_store(closer, closer_path):
    """Label, tags and text, as soon as the box is left; a click on a tag chooses its rows by the
    filter, and the table follows what is noted."""
    browser = closer(row=4)
    browser.wait_until("#panel input.tags")
    browser.choose("#panel [aria-label='my label']", 1)
    browser.choose("#panel input.tags", "odd, late")
    browser.wait_for_count("#panel .noted .chip", 2)
    for _ in range(100):
        if read_notes(notes_path(closer_path)).get("trace-04", Note()).tags:
            break
        time.sleep(0.03)
    assert read_notes(notes_path(closer_path)) == {"trace-04": Note("1", "odd late", "")}
    browser = closer(row=4)
    browser.wait_until("#panel input.tags", "it?.value === 'odd late'")
    browser.click("#panel .chip", "odd")
    browser.wait_for_text("#total", "1 of 12")
    browser.wait_for_text("#chips", 'tag == "odd"')
    write_note(notes_path(closer_path), "trace-04", note="of another window")
    browser.choose("#panel input.tags", "")
    browser.wait_for_text("#total", "0 of 12")
    browser.wait_until("#panel input.note", "it.value === 'of another window'")


SAVES = """(() => {
    globalThis.saved = [];
    HTMLAnchorElement.prototype.click = function () { saved.push([this.download, files.at(-1)]); };
    globalThis.files = [];
    URL.createObjectURL = (blob) => { files.push(blob); return "data:,"; };
})()"""


@pytest.mark.parametrize("tab, n", [("scores", 3), ("map", 1), ("layers", 3)])
def test_pictures_are_saved(closer, tab, n):
    """As PNG, and as SVG that needs nothing of the page."""
    browser = closer(row=2, tab=tab)
    browser.wait_for_panel()
    browser.wait_for_count("#panel .picture", n)
    browser.evaluate(SAVES)
    browser.choose("#save", "png")
    browser.wait_for(f"saved.length === {n}")
    names = [f"closer.zarr-{tab}{f'-{i}' if i > 1 else ''}.png" for i in range(1, n + 1)]
    assert browser.evaluate("saved.map(([name]) => name)") == names
    size = "createImageBitmap(saved[0][1]).then(({ width, height }) => [width, height])"
    assert min(browser.evaluate(size)) > 50
    browser.choose("#save", "svg")
    browser.wait_for("saved.at(-1)[0].endsWith('.svg')")
    text = browser.evaluate("saved.at(-1)[1].text()")
    root = ElementTree.fromstring(text)  # noqa: S314 - our own page wrote it
    assert root.tag.endswith("svg")
    assert "var(" not in text
    links = [each.get("href") for each in root.iter() if each.get("href")]
    assert all(link.startswith("data:image/png") for link in links)


def test_from_the_report_to_a_trace_and_back(closer):
    """A click each."""
    browser = closer(row=1)
    browser.click("#what a", "closer")
    browser.wait_for("location.pathname === '/runs/0/report.html'")
    browser.click("a", "trace-03")
    browser.wait_for_text("#panel h2", "trace-03")
