"""The page of `python -m store view` in Chromium, and its server, timed; for `benchmarks.view`."""

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from benchmarks.view_stores import trace_id

if TYPE_CHECKING:
    from tests.store.view.browser import Browser

__all__ = ["Page", "Server", "browsing", "check", "serving"]

SETTLED_S = 0.3  # what the page still asks for after it has painted
N_STEPS = 12  # of a drag


@contextmanager
def serving(*arguments: str | Path) -> Iterator["Server"]:
    """The command, from its start until it has printed its address, and its end."""
    command = [sys.executable, "-m", "store", "view", *map(str, arguments), "--no-browser"]
    started_s = time.time()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
        start_ms = 1000 * (time.time() - started_s)
        if not address:
            raise SystemExit(process.wait() or 2)  # it has said why
        yield Server(process.pid, address, started_s, start_ms)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


@dataclass(frozen=True)
class Server:
    """A command that serves the page: its process, its address, its start in seconds since 1970,
    and how long after that it printed the address."""

    pid: int
    address: str
    started_s: float
    start_ms: float

    def ask(self, path: str, **query: object) -> tuple[bytes, float]:
        """An answer, and milliseconds until its last byte."""
        url = urlsplit(self.address)
        token = url.query.partition("=")[2]
        connection = HTTPConnection(url.hostname, url.port)
        start = time.perf_counter()
        connection.request("GET", f"{path}?{urlencode({'token': token, **query})}")
        answer = connection.getresponse()
        body = answer.read()
        ms = 1000 * (time.perf_counter() - start)
        connection.close()
        check(path, answer.status, 200)
        return body, ms

    def ms(self, path: str, **query: object) -> float:
        """Milliseconds of an answer."""
        _, ms = self.ask(path, **query)
        return ms

    def busy_ms(self) -> float:
        """Time of a core that the thread that answers has had since its start."""
        nanoseconds, *_ = Path(f"/proc/{self.pid}/schedstat").read_text().split()
        return int(nanoseconds) / 1e6


@contextmanager
def browsing() -> Iterator["Browser | None"]:
    """Chromium, driven as the tests of the page drive it; None where it is not installed."""
    try:
        from tests.store.view.browser import Browser, find_chromium

        program = find_chromium()
    except ModuleNotFoundError:  # an installed copy has no tests
        program = None
    if program is None:
        print("no Chromium, or no checkout: the lines of the page are left out", file=sys.stderr)
        yield None
        return
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(program, profile)
        try:
            yield browser
        finally:
            browser.close()


class Page:
    """The page in a browser, which notes when it has painted what was asked for."""

    # a message that is sent from a frame's callback comes after the frame was painted
    PAINTED = """const painted = (then) => requestAnimationFrame(() => {
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = then;
        port2.postMessage(null);
    })"""
    AFTER = """(selector, act) => new Promise((done) => {
        const start = performance.now();
        const place = document.querySelector(selector);
        const seen = new MutationObserver(() => {
            seen.disconnect();
            const first = place.firstChild?.textContent ?? "";
            const total = document.querySelector("#total").textContent;
            painted(() => done([performance.now() - start, first, total]));
        });
        seen.observe(place, { childList: true });
        act();
    })"""
    NOTE = """new MutationObserver((_, seen) => {
        if (!document.querySelector("#rows .row .cell")) return;
        seen.disconnect();
        painted(() => { window.paintedAt = performance.timeOrigin + performance.now(); });
    }).observe(document, { childList: true, subtree: true })"""

    MOVES = """window.movedMs = [];
        addEventListener("pointermove", () => {
            const start = performance.now();
            painted(() => window.movedMs.push(performance.now() - start));
        }, true)"""

    def __init__(self, browser: "Browser") -> None:
        self.browser = browser
        browser.send(
            "Page.addScriptToEvaluateOnNewDocument", source=f"{{ {self.PAINTED}; {self.NOTE} }}"
        )

    def open(self, server: Server, **state: object) -> float:
        """Load it; milliseconds from the start of the command until the table was painted."""
        self.browser.open(f"{server.address}#{urlencode(state)}")
        self.browser.wait_for("window.paintedAt")
        time.sleep(SETTLED_S)
        return self.browser.evaluate("window.paintedAt") - 1000 * server.started_s

    def after(self, selector: str, act: str) -> tuple[float, str, str]:
        """Milliseconds from an act until an element's new children are painted; the text of the
        first, and what the page says of the number of rows."""
        call = f"{{ {self.PAINTED}; ({self.AFTER})({json.dumps(selector)}, () => {{ {act} }}) }}"
        ms, first, total = self.browser.evaluate(call)
        time.sleep(SETTLED_S)
        check("the page", self.browser.evaluate("document.querySelector('#error').innerText"), "")
        return ms, first, total

    def sort(self, column: str, expected: int) -> float:
        """Click on the name of a column; the row that is to come first is compared."""
        button = json.dumps(f".name[title^='{column}:']")
        ms, first, _ = self.after("#rows", f"document.querySelector({button}).click()")
        check(f"sort by {column}", first[: len(trace_id(0))], trace_id(expected))
        return ms

    def filter(self, text: str, expected: int | None = None) -> float:
        """Type a filter, and Enter; the number of rows is compared."""
        box = 'const box = document.querySelector("#filter")'
        enter = 'box.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }))'
        act = f"{box}; box.value = {json.dumps(text)}; {enter}"
        ms, _, total = self.after("#rows", act)
        if expected is not None:
            check(text, total.partition(" of ")[0], f"{expected:,}")
        return ms

    def tab(self, name: str) -> float:
        """Click on a tab."""
        tabs = "[...document.querySelectorAll('#tabs button')]"
        act = f"{tabs}.find((tab) => tab.innerText === {json.dumps(name)}).click()"
        ms, _, _ = self.after("#panel", act)
        return ms

    def drag(self, selector: str) -> float:
        """Drag from the middle of an element; milliseconds until a step is painted, the median."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        middle = "({ x, y, width, height }) => [x + width / 2, y + height / 2]"
        x, y = self.browser.evaluate(f"({middle})({box})")
        self.browser.evaluate(f"{{ {self.PAINTED}; {self.MOVES} }}")
        steps = [(x + 4 * i, y + 2 * i) for i in range(N_STEPS)]
        self.browser.drag(steps, pause_s=SETTLED_S / 3)
        return statistics.median(self.browser.evaluate("window.movedMs"))


def check(what: str, found: object, expected: object) -> None:
    """What was timed must be what was asked for."""
    if found != expected:
        raise SystemExit(f"{what}: expected {expected!r}, found {found!r}")
