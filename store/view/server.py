"""The server of the page: GET requests to this machine, answered from stores.

It hands out the files of the package's folder `page`, and what the pure modules of this package
compute of the stores that it was started with. A request names stores by number, never by path.
Handlers run in threads, so a read from far away keeps nobody else waiting; notes are written one
after the other.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import register_url_convertor
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from store.errors import NotFoundError, StoreError
from store.labels.notes import write_note
from store.read.filters.filter import complete, words_of
from store.traces.notes import Note, read_notes
from store.view import PAGE
from store.view.answers import BINARY, Asked, Number, json_response, packed, raw_response
from store.view.attention import attention_edges, edges_of_head, head_summary, head_values
from store.view.columns import CELL_CHARACTERS, LISTED, N_GROUPS, Table, json_number, json_object
from store.view.describe import REPORT, describe, describe_run, distinct_names
from store.view.layers import layer_picture
from store.view.maps import levels_of
from store.view.neighbours import nearest
from store.view.safety import Guard
from store.view.saved import FORMATS, check_ids, positions_of, save_parquet, saved_lines
from store.view.scores import calibrate, farthest, mistakes, rank_density, rank_limits, roc
from store.view.snapshots import Snapshots, check_texts
from store.view.traces import Texts, candidates, token_values, trace_values

__all__ = ["build_app"]

TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
MAX_ROWS = 500  # of a table in one answer
STATE = "/api/{store:number}/{generation:number}"
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def build_app(
    stores: Sequence[Snapshots],
    token: str,
    cookie: str = "view",
    tokenizer: Texts | None = None,
    kept_s: int | None = None,
) -> ASGIApp:
    """The application that serves the page.

    A request must carry `token`, or have it in the cookie of the name `cookie`, which servers on
    other ports of this machine see as well. `tokenizer` is for the texts of tokens that a store
    does not hold. A browser keeps the cookie for `kept_s`; None: until it is closed.
    """
    register_url_convertor("number", Number())

    def route(path: str, answer: Callable[[Request], Any]) -> Route:
        async def handle(request: Request) -> Response:
            found = await run_in_threadpool(answer_or_say, answer, request)
            return packed(found) if "gzip" in request.headers.get("accept-encoding", "") else found

        return Route(path, handle)

    def about_a_state(path: str, handler: Callable[[Asked], Any]) -> Route:
        return route(f"{STATE}/{path}", lambda request: handler(Asked(request, stores, tokenizer)))

    async def take_note(request: Request) -> Response:
        body = await request.body()
        return answer_or_say(lambda _: note(Asked(request, stores, tokenizer), body), request)

    def report(request: Request) -> Response:
        return report_page(request.path_params["run"], stores)

    routes = [
        route("/", page_file),
        route("/runs/{run:number}/report.html", report),
        route("/page/{name}", page_file),
        route("/api/stores", lambda request: describe_stores(request, stores)),
        *(about_a_state(path, handler) for path, handler in HANDLERS.items()),
        Route(f"{STATE}/trace/{{row:number}}/note", take_note, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), token, cookie, kept_s)


def answer_or_say(answer: Callable[[Request], Any], request: Request) -> Response:
    """The answer to a request: arrays are sent as raw bytes, other values as JSON.

    An error is a line, which the page shows.
    """
    try:
        found = answer(request)
    except NotFoundError as error:
        return json_response({"error": str(error)}, 404)
    except (StoreError, IndexError, ValueError) as error:
        return json_response({"error": str(error)}, 400)
    except OSError as error:  # the store was moved or removed
        return json_response({"error": f"the store cannot be read: {error}"}, 500)
    if isinstance(found, Response):
        return found
    return raw_response(found) if isinstance(found, np.ndarray) else json_response(found)


def page_file(request: Request) -> Response:
    """A file of the page; names with a slash do not get here, and only files of the folder fit."""
    name = request.path_params.get("name", "index.html")
    known = {path.name: path for path in PAGE.iterdir() if path.suffix in TYPES}
    if name not in known:
        raise NotFoundError("expected a file of the page")
    headers = {"Cache-Control": "no-cache"}
    return Response(known[name].read_bytes(), headers=headers, media_type=TYPES[known[name].suffix])


def describe_stores(request: Request, stores: Sequence[Snapshots]) -> dict[str, Any]:
    """Every store: its columns, and the generations that are open and committed."""
    described = []
    names = distinct_names([snapshots.path.resolve() for snapshots in stores])
    for name, snapshots in zip(names, stores, strict=True):
        newest, *problems = newest_state(snapshots)
        problems += [run.problem() for run in snapshots.runs]
        problem = "; ".join(filter(None, problems)) or None
        shows = newest if request.query_params.get("newest") else snapshots.opened
        uuid = snapshots.table(shows).store.uuid
        runs = [describe_run(run, number, uuid) for number, run in enumerate(snapshots.runs)]
        known = {"name": name, "runs": runs} | describe(snapshots.table(shows), snapshots.path)
        described.append(known | {"generation": shows, "newest": newest, "problem": problem})
    return {"stores": described}


def report_page(number: int, stores: Sequence[Snapshots]) -> Response:
    """The report of a run, whose trace ids lead to the traces in the first store that has them."""
    runs = stores[0].runs
    if number >= len(runs) or not (runs[number].path / REPORT).is_file():
        raise NotFoundError("expected the number of a run with a report")
    first = runs[number].ids[:1]
    has_it = (any(one in each.first.store for one in first) for each in stores)
    of = next((i for i, is_there in enumerate(has_it) if is_there), 0)
    text = (runs[number].path / REPORT).read_text(encoding="utf-8")
    linked = text.replace('<a data-trace="', f'<a href="/#store={of}&amp;trace=')
    return Response(
        linked, headers={"Content-Security-Policy": REPORT_POLICY}, media_type="text/html"
    )


def newest_state(snapshots: Snapshots) -> tuple[int, str | None]:
    """The number of the newest state, and why no newer one can be seen, if so.

    A store that was moved or removed is still read, as far as its files are open, and does not
    keep the others from being shown.
    """
    try:
        return snapshots.newest(), None
    except (StoreError, OSError) as error:
        return snapshots.last_seen(), f"No newer state can be seen: {error}"


def some_rows(asked: Asked) -> dict[str, Any]:
    """Some of the rows wanted, from a position on."""
    rows = asked.rows
    start = max(0, asked.integer("start", 0))
    count = min(MAX_ROWS, max(0, asked.integer("count", 60)))
    names = [name for name in asked.text("columns").split(",") if name]
    shown = rows[start : start + count].astype(np.int64)
    columns = asked.table.cells(names, shown)
    return {"total": len(rows), "start": start, "rows": shown.tolist(), "columns": columns}


def find(asked: Asked) -> dict[str, Any]:
    """The position of the next row after another that has an id or a text."""
    rows = asked.rows
    after = asked.integer("after", -1)
    if "id" in asked.query:
        found = rows == asked.store.ids.find(asked.text("id"))
    elif "row" in asked.query:
        found = rows == asked.integer("row", 0)
    else:
        found = asked.table.find(asked.text("text"))[rows]
    positions = np.flatnonzero(found)
    if not len(positions):
        return {"position": None, "row": None, "n": 0}
    later = positions[positions > after]
    position = int([*later[:1], *positions[:1]][0])
    return {"position": position, "row": int(rows[position]), "n": len(positions)}


def groups(asked: Asked) -> dict[str, Any]:
    """Which texts the rows wanted have in a column, and how often; the most frequent first."""
    rows = asked.rows
    name = asked.text("column")
    check_texts(f"groups of {name}", len(rows))
    counts = Counter(asked.table.texts(name, rows.astype(np.int64)))
    listed = [(text[:CELL_CHARACTERS], n) for text, n in counts.most_common(N_GROUPS)]
    return {"n": len(counts), "repeated": sum(n > 1 for n in counts.values()), "groups": listed}


def save(asked: Asked) -> Response:
    """The rows wanted as a file, or those of them that are at `positions`, as in "3-7,12-12"."""
    if asked.name not in FORMATS:
        raise NotFoundError(
            f"save: expected one of: {', '.join(FORMATS)}; found {asked.name!r:.80}"
        )
    rows = asked.rows
    if ranges := asked.text("positions"):
        rows = rows[positions_of(ranges, len(rows))]
    known = asked.table.kinds
    names = [name for name in asked.text("columns").split(",") if name in known] or [*known]
    if asked.name == "ids":
        check_ids(asked.table, rows)
    headers = {"Content-Disposition": f'attachment; filename="{FORMATS[asked.name]}"'}
    if asked.name == "parquet":
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / FORMATS["parquet"]
            save_parquet(file, asked.table, rows, names)
            return Response(file.read_bytes(), headers=headers, media_type=BINARY)
    lines = saved_lines(asked.table, rows, asked.name, names)
    return StreamingResponse(lines, media_type="text/plain", headers=headers)


def colours(asked: Asked) -> Response:
    """A column of numbers as colours; what they mean is in the headers."""

    def build() -> tuple[np.ndarray, dict[str, str]]:
        found = levels_of(asked.table.numbers(asked.name))
        return found.levels, found.headers

    return asked.kept(build)


def mask(asked: Asked) -> np.ndarray:
    """Which rows are wanted, eight in a byte, the first one in its lowest bit."""
    is_wanted = np.zeros(len(asked.table), bool)
    is_wanted[asked.rows] = True
    return np.packbits(is_wanted, bitorder="little")


def trace(asked: Asked) -> dict[str, Any]:
    """A trace, and what was noted about it, or why that cannot be read."""
    found = trace_values(asked.table, asked.row, asked.tokenizer)
    path = asked.notes_path
    if path is None:
        return found | {"note": None}
    try:
        return found | {"note": read_notes(path).get(asked.trace_id, Note())._asdict()}
    except (StoreError, OSError) as error:
        return found | {"note": str(error)}


def note(asked: Asked, body: bytes) -> dict[str, Any]:
    """Change the label, the tags or the text noted about a trace; returns all of it."""
    given = json.loads(body)
    path = asked.notes_path
    is_note = isinstance(given, dict) and all(isinstance(text, str) for text in given.values())
    if path is None or not is_note or not given.keys() <= {*Note._fields}:
        raise ValueError("note: expected label, tags and note, of a store on this machine")
    try:
        write_note(path, asked.trace_id, **given)
    except OSError as error:
        raise NotFoundError(f"{path}: the note cannot be written: {error}") from error
    return read_notes(path).get(asked.trace_id, Note())._asdict()


def neighbours(asked: Asked) -> dict[str, Any]:
    """Of the rows wanted, those whose states in a column are most like those of a trace."""
    found = nearest(asked.store, asked.row, asked.rows, asked.name, asked.layer)
    return listed_rows(asked.table, found.rows, found.cosines)


def listed_rows(table: Table, rows: np.ndarray, numbers: np.ndarray) -> dict[str, Any]:
    """Rows for a list of traces, with a number each."""
    names = [name for name in LISTED if name in table.kinds]
    values = [json_number(value) for value in numbers.tolist()]
    return {"rows": rows.tolist(), "scores": values, "columns": table.cells(names, rows)}


def attention(asked: Asked) -> dict[str, Any] | None:
    """The strongest edges of a layer, of one head or the mean of all."""
    threshold = asked.number("threshold", 0.0)
    skip_first = asked.text("skip_first") == "1"
    about = asked.store, asked.row, asked.path["layer"]
    head = asked.integer("head", -1)
    if head < 0:
        return json_object(attention_edges(*about, threshold, skip_first))
    return json_object(edges_of_head(*about, head, threshold, skip_first))


def heads(asked: Asked) -> np.ndarray:
    """A number for each head: of each token in a layer, else of each layer."""
    if "layer" not in asked.query:
        return head_summary(asked.store, asked.row, asked.name)
    return head_values(asked.store, asked.row, asked.name, asked.integer("layer", 0))


def measured(
    asked: Asked, measure: Callable[[np.ndarray, np.ndarray], Any]
) -> dict[str, Any] | None:
    """What a measure of scores and labels says of the rows wanted; null where it says nothing."""
    scores = asked.column_named_by("column")
    return json_object(measure(scores, asked.table.numbers("label")[asked.rows]))


def worst_rows(asked: Asked) -> dict[str, Any]:
    """Of the rows wanted, those on the wrong side of a threshold: how many, and the farthest."""
    scores, labels = asked.column_named_by("column"), asked.table.numbers("label")[asked.rows]
    threshold = asked.number("threshold", 0.5)
    answer = {}
    for kind, places in mistakes(scores, labels, threshold)._asdict().items():
        listed = farthest(scores, places, threshold)
        chosen = asked.rows[listed].astype(np.int64)
        answer[kind] = {"n": len(places), **listed_rows(asked.table, chosen, scores[listed])}
    return answer


# of the API, by the path behind store and generation; see `docs/view.md`
HANDLERS: dict[str, Callable[[Asked], Any]] = {
    "table": some_rows,
    "find": find,
    "groups": groups,
    "save/{name}": save,
    "complete": lambda asked: complete(asked.text("text"), words_of(asked.table)),
    "histogram": lambda asked: asked.table.value_counts(asked.text("column"), asked.rows),
    "map/{name}": lambda asked: asked.kept(lambda: (asked.table.points(asked.name), {})),
    "levels/{name}": colours,
    "mask": mask,
    "trace/{row:number}": trace,
    "trace/{row:number}/tokens/{name}": lambda asked: token_values(
        asked.store, asked.row, asked.name, asked.layer
    ),
    "trace/{row:number}/candidates/{token:number}": lambda asked: candidates(
        asked.store, asked.row, asked.path["token"], asked.pieces
    ),
    "trace/{row:number}/layers/{name}": lambda asked: layer_picture(
        asked.store, asked.row, asked.name
    ),
    "trace/{row:number}/attention/{layer:number}": attention,
    "trace/{row:number}/heads/{name}": heads,
    "trace/{row:number}/near/{name}": neighbours,
    "mistakes": worst_rows,
    "calibration": lambda asked: measured(asked, calibrate),
    "roc": lambda asked: measured(asked, roc),
    "density": lambda asked: rank_density(
        asked.column_named_by("x"), asked.column_named_by("y")
    ).astype(np.int32),
    "limits": lambda asked: rank_limits(asked.column_named_by("x"), asked.column_named_by("y")),
}
