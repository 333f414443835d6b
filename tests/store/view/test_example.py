"""The embedded example as a new user sees it: made, trained on, and looked at."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
N_TRACES = 400


def call(*words):
    subprocess.run([sys.executable, "-m", *map(str, words)], cwd=ROOT, check=True)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Address of the page, with a map and the scores of a run."""
    from store.sources.example import ExampleSource, example_questions
    from store.write.build import build_store

    folder = tmp_path_factory.mktemp("example")
    store, run = folder / "example.zarr", folder / "run"
    build_store(store, ExampleSource(example_questions(N_TRACES)))
    call("store", "project", store, "--column", "hs_last", "--layer", "2", "--name", "map_pca")
    options = ["--models", "logreg_pca", "--epochs", "1", "--force-cpu"]
    call("train", "--store", store, "--output-dir", run, *options)
    command = ["store", "view", store, "--run", run, "--no-browser"]
    server = subprocess.Popen(
        [sys.executable, "-m", *map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    yield server.stdout.readline().strip()
    server.send_signal(signal.SIGINT)
    server.wait(30)
    server.stdout.close()


def test_two_clicks_to_the_most_confident_mistake(browser, example):
    """The tab of scores, and the first line of its list."""
    browser.leave()
    browser.open(example)
    browser.click("#tabs button", "scores")
    browser.wait_for("document.querySelector('.list .line')")
    box = browser.evaluate("document.querySelector('.list .line').getBoundingClientRect().bottom")
    assert box < 900  # in sight at once
    question = browser.text(".list .line .grow")
    browser.click(".list .line")
    browser.wait_for("document.querySelector('#panel .prose')")
    assert browser.text("#panel .prose") == question
    browser.wait_for_text("#rows .on", question)
    assert browser.complaints == []


@pytest.mark.parametrize(
    "tab, n_pictures, words",
    [
        ("trace", 0, "scores, and the thresholds of the run"),
        ("layers", 1, "norm of the state"),
        ("attention", 3, "share of all attention that goes to the first token"),
        ("map", 1, "hs_last, layer 2"),
        ("scores", 3, "most confident mistakes"),
    ],
)
def test_every_view(browser, example, tab, n_pictures, words):
    """Painted, with words that say what it is; nobody complains, and nobody else is asked."""
    browser.leave()
    state = "filter=score_logreg_pca > 0&other=score_mean_logprob&edge=0.05"
    browser.open(f"{example}#tab={tab}&{state}")
    browser.wait_for_text("#panel", words)
    browser.wait_for(f"document.querySelectorAll('#panel .picture').length >= {n_pictures}")
    end_s = time.monotonic() + 10
    while not browser.painted() and time.monotonic() < end_s:
        time.sleep(0.03)
    assert browser.painted()
    origin = example.partition("/?")[0]
    assert [
        url for url in browser.requested if not url.startswith((origin, "about:", "data:"))
    ] == []
    assert browser.complaints == []
