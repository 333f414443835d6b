"""Drives Chromium through a pipe with the DevTools protocol: no driver, no package."""

import json
import os
import select
import shutil
import subprocess
import time
from contextlib import contextmanager, suppress

NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT_S = 20.0
SIZE = (1440, 900)  # in CSS pixels
# what Chromium answers for a page that is gone
LEFT = ("Inspected target navigated or closed", "Execution context was destroyed")
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36}
KEYS |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
PIXELS = """async (place) => {  // of a canvas, or of the image in a picture
    let source = place;
    if (place.matches("svg")) {
        source = new Image();
        source.src = place.querySelector("image").getAttribute("href");
        await source.decode();
    }
    const { width, height } = source;
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    canvas.getContext("2d").drawImage(source, 0, 0);
    return canvas.getContext("2d").getImageData(0, 0, width, height);
}"""


def find_chromium():
    """The path of the program, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class PageLeftError(Exception):
    """The page was left for another one before it answered."""


class Browser:
    """A headless browser with one page.

    `requested` are the URLs that were asked for, `complaints` the errors and warnings of the
    console and the exceptions of scripts.
    """

    def __init__(self, program, profile):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={profile}"]
        # the browser speaks over its file descriptors 3 and 4
        shell = 'exec 8<&"$1" 9>&"$2"; exec 3<&8 4>&9; shift 2; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "sh", str(to_browser), str(from_browser), program, *flags],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._session = None
        self.requested = []
        self.complaints = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self._resize(*SIZE)

    def send(self, method, **parameters):
        """Ask for something, and return the answer; raises PageLeftError."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if any(words in str(answer.get("error")) for words in LEFT):
                    raise PageLeftError(answer)
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], WAIT_S)
            assert ready, "the browser does not answer"
            received = os.read(self._in, 1 << 20)
            assert received, "the browser has ended"
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method, parameters):
        if method == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.complaints.append(parameters["args"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"])

    def leave(self):
        """Leave the page, whose server may have ended."""
        if self.evaluate("location.href") != "about:blank":
            self.send("Page.navigate", url="about:blank")
            self.wait_for("location.href === 'about:blank'")

    def open(self, url):
        """Load a page anew, and wait until it shows what its address says."""
        self.leave()
        self.send("Page.navigate", url=url)
        self.wait_until("body", "it?.dataset.ready === '1'")

    @contextmanager
    def only_from(self, origin):
        """Nobody complains in this block, and nobody but the origin is asked."""
        self.leave()
        self.requested.clear()
        self.complaints.clear()
        yield
        known = (origin, "about:", "data:")
        assert [url for url in self.requested if not url.startswith(known)] == []
        assert self.complaints == []

    def _resize(self, width, height):
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    @contextmanager
    def resized(self, width, height):
        """Within the block the page has this size, in CSS pixels."""
        self._resize(width, height)
        try:
            yield
        finally:
            self._resize(*SIZE)

    @contextmanager
    def shown_on(self, media="", **features):
        """Within the block the page is shown on a medium, to a user with these preferences."""
        given = [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()
        ]
        self.send("Emulation.setEmulatedMedia", media=media, features=given)
        try:
            yield
        finally:
            self.send("Emulation.setEmulatedMedia", media="", features=[])

    def evaluate(self, code):
        """The value of an expression, after what it awaits."""
        found = self.send(
            "Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, code):
        """Evaluate an expression until it is true."""
        end_s = time.monotonic() + WAIT_S
        while time.monotonic() < end_s:
            with suppress(PageLeftError):  # the next page answers
                if self.evaluate(f"!!({code})"):
                    return
            time.sleep(0.01)
        raise AssertionError(f"never became true: {code}; {self.complaints}")

    def of(self, selector, code):
        """A value of the first element, which the code calls `it`."""
        return self.evaluate(f"((it) => {code})(document.querySelector({json.dumps(selector)}))")

    def of_each(self, selector, code="it.textContent"):
        """A value of each element, which the code calls `it`; its text."""
        every = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return self.evaluate(f"{every}.map((it) => {code})")

    def text(self, selector):
        """The text of the first element; None where there is none."""
        return self.of(selector, "it?.textContent")

    def is_hidden(self, selector):
        return self.of(selector, "it.hidden")

    def wait_until(self, selector, code="it"):
        """Wait for a first element, and until the code is true, which calls it `it`."""
        self.wait_for(f"((it) => {code})(document.querySelector({json.dumps(selector)}))")

    def wait_for_text(self, selector, text):
        """Wait until the first element, or one that takes its place, has this in its text."""
        self.wait_until(selector, f"it?.textContent.includes({json.dumps(text)})")

    def wait_for_count(self, selector, n):
        """Wait until there are so many elements."""
        self.wait_for(f"document.querySelectorAll({json.dumps(selector)}).length === {n}")

    def wait_for_total(self, text):
        """Wait until the page says so of the number of rows, and no more."""
        self.wait_until("#total", f"it.textContent === {json.dumps(text)}")

    def wait_for_address(self, text):
        """Wait until the address has this in its fragment."""
        self.wait_for(f"location.hash.includes({json.dumps(text)})")

    def wait_for_panel(self):
        """Wait until the panel shows what was chosen."""
        self.wait_until("#panel", "it.ariaBusy === 'false' && it.textContent.length > 5")

    def click(self, selector, text=""):
        """Click on the first element with this in its text, once it is there."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})]"
        found += f".find((each) => each.textContent.includes({json.dumps(text)}))"
        self.wait_for(found)
        with suppress(PageLeftError):  # a link leads away
            self.evaluate(f"{found}.click()")

    @contextmanager
    def frame(self):
        """Within the block, the page is that of a frame which is apart from the page around it."""
        outer = self._session
        target = None
        end_s = time.monotonic() + WAIT_S
        while target is None and time.monotonic() < end_s:  # until it has a process
            targets = self.send("Target.getTargets")["targetInfos"]
            target = next((each["targetId"] for each in targets if each["type"] == "iframe"), None)
        assert target, targets
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.send("Runtime.enable")
        yield
        self._session = outer

    def choose(self, selector, value, *events):
        """Choose an option of a menu, or set what stands in a box."""
        events = json.dumps(events or ["change"])
        self.evaluate(f"""((place) => {{
            place.value = {json.dumps(str(value))};
            {events}.forEach((name) => place.dispatchEvent(new Event(name)));
            place.dispatchEvent(new KeyboardEvent("keydown", {{ key: "Enter" }}));
        }})(document.querySelector({json.dumps(selector)}))""")

    def painted(self):
        """Whether each picture of the panel has marks, and each image in one, or map, colours."""
        return self.evaluate(f"""Promise.all(
            [...document.querySelectorAll("#panel .picture, #panel canvas")].map(async (each) => {{
                if (each.matches("svg:not(:has(image))")) return each.children.length > 0;
                return (await ({PIXELS})(each)).data.some(Boolean);
            }})).then((found) => found.every(Boolean))""")

    def opacity(self, x, y):
        """Of a pixel in the image of the first picture: 0 to 255."""
        place = f"data[4 * ({y} * width + {x}) + 3]"
        return self.of("#panel .picture", f"({PIXELS})(it).then(({{ data, width }}) => {place})")

    def change(self, fragment="", **state):
        """What the page's address says from now on."""
        self.evaluate(f"location.hash = {json.dumps(fragment_of(fragment, state))}")

    def focus(self, selector):
        self.of(selector, "it.focus()")

    def press(self, *keys, modifiers=0):
        """Press keys of one character, or with a name, in turn."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            text = {"text": "\r"} if key == "Enter" else text
            code = KEYS.get(key, ord(key[0].upper()))
            for kind in ("keyDown", "keyUp"):
                self.send(
                    "Input.dispatchKeyEvent",
                    type=kind, key=key, windowsVirtualKeyCode=code, modifiers=modifiers, **text,
                )  # fmt: skip

    def drag(self, places, shift=False):
        """Press the mouse at the first place, move it along the others, and let it go; a click
        where there is one."""
        kinds = ["mousePressed", *["mouseMoved"] * len(places[1:]), "mouseReleased"]
        for kind, (x, y) in zip(kinds, [*places, places[-1]], strict=True):
            self.send(
                "Input.dispatchMouseEvent",
                type=kind, x=x, y=y, button="left", buttons=1, clickCount=1,
                modifiers=8 if shift else 0,
            )  # fmt: skip

    def type(self, text):
        """Put a text where the cursor is."""
        self.send("Input.insertText", text=text)

    def close(self):
        """End the browser."""
        self._session = None
        os.write(self._out, b'{"id":0,"method":"Browser.close"}\0')
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)


def fragment_of(fragment, state):
    """The part of an address behind #: as given, or of a state."""
    return fragment or "&".join(f"{key}={value}" for key, value in state.items())
