"""The embedded example as a new user sees it: made, trained on, and looked at."""

import shutil

import pytest

from store.cli.main import main
from train.commands.main import main as train

pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")

pytestmark = pytest.mark.slow
TABS = [
    ("trace", 0, "scores, and the thresholds of the run"),
    ("layers", 1, "norm of the state"),
    ("attention", 3, "share of all attention that goes to the first token"),
    ("map", 1, "hs_last, layer 2"),
    ("scores", 3, "most confident mistakes"),
]


@pytest.fixture(scope="module")
def example(tmp_path_factory, example_store, serve):
    """Address of the page, with a map and the scores of a run."""
    folder = tmp_path_factory.mktemp("example")
    store, run = shutil.copytree(example_store.path, folder / "example.zarr"), folder / "run"
    words = ["project", store, "--column", "hs_last", "--layer", 2, "--name", "map_pca"]
    assert main([*map(str, words)]) == 0
    words = ["--store", store, "--output-dir", run, "--models", "logreg_pca", "--epochs", 1]
    assert train([*map(str, words), "--force-cpu"]) == 0
    return serve([store], [run])


def test_the_example_is_looked_at(browser, example):
    """Two clicks lead to the most confident mistake: the tab of scores, and the first line of its
    list, in sight at once. Every view is painted, with words that say what it is."""
    with browser.only_from(example.partition("/?")[0]):
        browser.open(example)
        browser.click("#tabs button", "scores")
        browser.wait_until(".list .line")
        assert browser.of(".list .line", "it.getBoundingClientRect().bottom") < 900
        question = browser.text(".list .line .grow")
        browser.click(".list .line")
        browser.wait_until("#panel .prose")
        assert browser.text("#panel .prose") == question
        browser.wait_for_text("#rows .on", question)
        for tab, n_pictures, words in TABS:
            state = "filter=score_logreg_pca > 0&other=score_mean_logprob&edge=0.05"
            browser.open(f"{example}#tab={tab}&{state}")
            browser.wait_for_text("#panel", words)
            browser.wait_for(f"document.querySelectorAll('#panel .picture').length >= {n_pictures}")
            browser.wait_for_panel()
            assert browser.painted()
