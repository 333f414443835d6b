"""Is the page of `python -m store view` there at once, over millions of rows?

Two stores are made: one of many rows (numbers, texts, a map, a run's scores of some of them), and
one of a long trace with the states of all layers. The command is started as a user starts it, and
the page is timed in Chromium, from the click until the picture is painted. Without Chromium these
lines are left out; those called "answer" are of the server alone.

"first" is of something that was not asked for before, "again" the same once more; the files are in
the page cache. Memory is private memory of the server at its highest, over that of a server of a
store of one row. "share" is of the goal: at most 1 where it is met. "server_cpu_ms" is what the
server had of a core meanwhile: what does not grow when other programs use the machine.
"""

import json
import statistics
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import distribution, requires
from pathlib import Path
from typing import NamedTuple

import numpy as np
from packaging.requirements import Requirement

import store
from benchmarks.data import made_once
from benchmarks.harness import parser, run, watching
from benchmarks.program import needs_extra
from benchmarks.tables import finish
from benchmarks.view_page import Page, Server, browsing, serving
from benchmarks.view_stores import write_long_trace, write_scores, write_table
from store import TraceStore

PAINTED_MS = 2000
FIRST_MS = 300
AGAIN_MS = 50
LAYERS_MS = 150
MAP_MS = 500
PAN_MS = 40
MEMORY_MB = 300
SCRIPTS_KB = 150
EXTRA_MB = 6
SCRIPTS = Path(store.__file__).parent / "view" / "page"


class Stores(NamedTuple):
    """The stores and the run that are looked at."""

    table: Path
    points: Path
    one_row: Path
    long_trace: Path
    scores: Path


def main(args: Namespace) -> None:
    """Write the stores, and start the command as often as there are epochs."""
    with needs_extra("view"):
        import starlette  # noqa: F401 - minutes are spent before the command would miss it
    stores = write_stores(args)
    figures = Figures()
    with browsing() as browser:
        page = Page(browser) if browser else None
        with (
            serving(stores.one_row) as server,
            watching(server.pid, every_s=0.01) as idle_bytes,
        ):
            look_around(server, page)
        for _ in range(args.epochs):
            measure_table(stores, figures, page, idle_bytes() / 1e6)
            measure_long_trace(stores, figures, page)
            measure_map(stores, figures, page)
        if browser:
            urls = browser.requested
            own = ("http://127.0.0.1:", "about:", "data:")
            foreign = [url for url in urls if not url.startswith(own)]
            figures.add("requests to others", "n", 0, len(foreign))
            figures.add("complaints of the console", "n", 0, len(browser.complaints))
    figures.add("scripts", "kB", SCRIPTS_KB, folder_bytes(SCRIPTS, "*.js") / 1e3)
    figures.add("packages of the extra", "MB", EXTRA_MB, extra_bytes() / 1e6)
    finish("view", args.results, figures.rows(), "share", main="median", named_by=["what"])


def write_stores(args: Namespace) -> Stores:
    """The stores and the run, unless an earlier run with --keep left them."""
    shape = (args.tokens, args.layers, args.hidden_size)
    stores = Stores(
        args.dir / f"view-{args.rows}.zarr",
        args.dir / f"view-{args.points}-points.zarr",
        args.dir / "view-1.zarr",
        args.dir / f"view-{'-'.join(map(str, shape))}.zarr",
        args.dir / f"view-{args.rows}-{args.scored}",
    )
    made_once(stores.table, partial(write_table, n_rows=args.rows))
    made_once(stores.points, partial(write_table, n_rows=args.points))
    made_once(stores.one_row, partial(write_table, n_rows=1))
    made_once(stores.long_trace, lambda path: write_long_trace(path, *shape))
    made_once(stores.scores, lambda path: write_scores(path, args.rows, args.scored))
    return stores


def measure_table(stores: Stores, figures: "Figures", page: Page | None, idle_mb: float) -> None:
    """The table: until it is there, its orders and filters, and the memory of all that."""
    with serving(stores.table, "--run", stores.scores) as server:
        figures.add("command to address", "ms", None, server.start_ms)
        with watching(server.pid, every_s=0.01) as most:
            if page:
                measure_page(stores, figures, page, server)
            measure_answers(figures, server, ("entropy", "score_gvae"))
        figures.add("memory of the server", "MB", MEMORY_MB, most() / 1e6 - idle_mb)


def measure_page(stores: Stores, figures: "Figures", page: Page, server: Server) -> None:
    """What a user waits for, in the order in which he asks for it."""
    table = TraceStore.open(stores.table)
    score, confidence, n_words = map(table.column_array, ("score", "confidence", "n_words"))
    highest = int(score.argmax())
    n_low, n_high = int((score < np.float32(0.5)).sum()), int((score > np.float32(0.9)).sum())
    texts = 'question ~ "capital of"'
    time = partial(figures.time, server)
    figures.add("command to table painted", "ms", PAINTED_MS, page.open(server))
    time("first sort, float32", FIRST_MS, lambda: page.sort("score", highest))
    most = int(confidence.argmax())
    time("first sort, float64", FIRST_MS, lambda: page.sort("confidence", most))
    longest = int(n_words.argmax())
    time("first sort, int32", FIRST_MS, lambda: page.sort("n_words", longest))
    time("sort again", AGAIN_MS, lambda: page.sort("score", highest))
    time("first filter, numbers", FIRST_MS, lambda: page.filter("score < .5", n_low))
    page.filter("score > .9", n_high)
    time("filter again", AGAIN_MS, lambda: page.filter("score < .5", n_low))
    time("first filter, texts", FIRST_MS, lambda: page.filter(texts))
    page.filter("score > .9", n_high)
    time("filter of texts again", AGAIN_MS, lambda: page.filter(texts))


def measure_answers(figures: "Figures", server: Server, columns: Sequence[str]) -> None:
    """The server alone: a table in a new order, a histogram, and what is of scores."""
    base = base_of(described(server))
    for column in columns:
        query = {"sort": column, "columns": "trace_id,question,score"}
        figures.ask(server, f"table by {column}", FIRST_MS, f"{base}/table", query)
    figures.ask(server, "histogram", None, f"{base}/histogram", {"column": "entropy"})
    figures.ask(server, "mistakes", None, f"{base}/mistakes", {"column": "score"})
    figures.ask(server, "density", None, f"{base}/density", {"x": "score", "y": "entropy"})


def measure_long_trace(stores: Stores, figures: "Figures", page: Page | None) -> None:
    """Tokens by layers of the long trace."""
    with serving(stores.long_trace) as server:
        layers = f"{base_of(described(server))}/trace/0/layers"
        for what in ("norm", "cosine"):
            figures.ask(server, f"layers, {what}", LAYERS_MS, f"{layers}/{what}", {})
        if page:
            page.open(server, row=0)
            figures.time(server, "layers of the long trace", LAYERS_MS, lambda: page.tab("layers"))


def measure_map(stores: Stores, figures: "Figures", page: Page | None) -> None:
    """A map of many points, and the frames while it is dragged."""
    with serving(stores.points) as server:
        found = described(server)
        if not found.get("maps"):
            return
        figures.ask(server, "map", MAP_MS, f"{base_of(found)}/map/map_pca", {})
        if page:
            page.open(server)
            figures.time(server, "map of the points", MAP_MS, lambda: page.tab("map"))
            figures.add("map, a step of a drag", "ms", PAN_MS, page.drag("#panel canvas"))


def described(server: Server) -> dict:
    """What the server says of its only store."""
    answer, _ = server.ask("/api/stores")
    (found,) = json.loads(answer)["stores"]
    return found


def base_of(found: dict) -> str:
    """Where the answers of a store are."""
    return f"/api/0/{found['generation']}"


def look_around(server: Server, page: Page | None) -> None:
    """What is done with the large store as well, so that the rest is what its rows take."""
    if page:
        page.open(server)
    measure_answers(Figures(), server, ["entropy"])


class Goal(NamedTuple):
    """What is measured, in which unit, and the most that it may be."""

    what: str
    unit: str
    most: float | None


class Figures:
    """What was measured, in the order in which it was first."""

    def __init__(self) -> None:
        self.values: dict[Goal, list[float]] = {}
        self.busy_ms: dict[Goal, list[float]] = {}

    def add(self, what: str, unit: str, most: float | None, value: float) -> Goal:
        """Note a value of a goal."""
        goal = Goal(what, unit, most)
        self.values.setdefault(goal, []).append(value)
        return goal

    def time(self, server: Server, what: str, most: float | None, act: Callable[[], float]) -> None:
        """Note the milliseconds that an act returns, and those of a core that the server took."""
        before_ms = server.busy_ms()
        goal = self.add(what, "ms", most, act())
        self.busy_ms.setdefault(goal, []).append(server.busy_ms() - before_ms)

    def ask(
        self, server: Server, what: str, most: float | None, path: str, query: dict[str, str]
    ) -> None:
        """Note how long an answer of the server takes."""
        self.time(server, f"answer: {what}", most, lambda: server.ms(path, **query))

    def rows(self) -> list[dict]:
        """A result for each goal."""
        return [self.describe(goal) for goal in self.values]

    def describe(self, goal: Goal) -> dict:
        """Median and best of a goal, and which share of it the median is."""
        median = statistics.median(self.values[goal])
        most = goal.most
        busy = self.busy_ms.get(goal)
        return {
            "what": goal.what,
            "unit": goal.unit,
            "median": float(round(median, 1)),
            "best": round(min(self.values[goal]), 1),
            "server_cpu_ms": round(statistics.median(busy), 1) if busy else "",
            "goal": "" if most is None else most,
            "share": round(median / most, 3) if most else float(median > 0 and most == 0),
        }


def folder_bytes(folder: Path, pattern: str) -> int:
    """Bytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.glob(pattern))


def extra_bytes() -> int:
    """Bytes of the packages that the extra `view` installs, and of those that they need."""
    found: set[str] = set()
    for line in requires("trace-store") or ():
        needed = Requirement(line)
        if needed.marker and needed.marker.evaluate({"extra": "view"}) and "view" in line:
            add_package(needed.name, found)
    files = [file for name in found for file in distribution(name).files or ()]
    return sum(path.stat().st_size for file in files if (path := Path(file.locate())).is_file())


def add_package(name: str, found: set[str]) -> None:
    """Add a package, and what it needs without any extra of its own."""
    name = name.lower().replace("_", "-")
    if name in found:
        return
    found.add(name)
    for line in requires(name) or ():
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            add_package(needed.name, found)


OPTIONS = {
    "--rows": (5_000_000, "rows of the table"),
    "--points": (1_000_000, "points of the map"),
    "--scored": (50_000, "rows that the run scored"),
    "--tokens": (512, "tokens of the long trace"),
    "--layers": (32, "its layers"),
    "--hidden-size": (4096, "its width"),
}

if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=0, epochs=3, options=OPTIONS))
