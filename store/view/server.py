"""The server of the page: GET requests to this machine, answered from stores.

It hands out the files of the package's folder `page`, and what the pure modules of this package
compute of the stores that it was started with. A request names stores by number, never by path.
Handlers run one after the other: reads are short, and a store is then used by one thread.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from starlette.applications import Starlette
from starlette.convertors import register_url_convertor
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from store.errors import NotFoundError, SchemaError, StoreError
from store.format.schema import TRACE_ID
from store.view.answers import Number, integer, json_response, kept_response, number, raw_response
from store.view.attention import attention_edges
from store.view.calibration import calibrate
from store.view.columns import Table, json_number
from store.view.describe import describe
from store.view.filters import complete
from store.view.guard import Guard
from store.view.heads import head_summary, head_values
from store.view.histograms import histogram
from store.view.layers import layer_picture
from store.view.maps import levels_of
from store.view.scores import mistakes, rank_density, rank_limits
from store.view.snapshots import Snapshots, Wanted
from store.view.traces import Texts, candidates, token_values, trace_values

__all__ = ["build_app"]

PAGE = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
MAX_ROWS = 500  # of a table in one answer
CELL_CHARACTERS = 300  # of a text in a table
IDS_BLOCK = 8192  # ids of a download that are read at once
SEARCHED = ("question", "answer", "references")
SHOWN = ("trace_id", "question", "answer")  # of a trace that a score gets wrong
N_MISTAKES = 25


class Shown(NamedTuple):
    """A store that the page shows, and the tokenizer of its traces, if it was given."""

    snapshots: Snapshots
    tokenizer: Texts | None


def build_app(
    stores: Sequence[Snapshots], token: str, cookie: str = "view", tokenizer: Texts | None = None
) -> ASGIApp:
    """The application that serves the page.

    A request must carry `token`, or have it in the cookie of the name `cookie`, which servers on
    other ports of this machine see as well. `tokenizer` is for the texts of tokens that a store
    does not hold.
    """
    handlers = Handlers([Shown(snapshots, tokenizer) for snapshots in stores])
    register_url_convertor("number", Number())
    of_state = "/api/{store:number}/{generation:number}"
    routes = {
        "/": page_file,
        "/page/{name}": page_file,
        "/api/stores": handlers.stores,
        f"{of_state}/table": handlers.table,
        f"{of_state}/find": handlers.find,
        f"{of_state}/ids": handlers.ids,
        f"{of_state}/complete": handlers.complete,
        f"{of_state}/histogram": handlers.histogram,
        f"{of_state}/map/{{name}}": handlers.map,
        f"{of_state}/levels/{{name}}": handlers.levels,
        f"{of_state}/mask": handlers.mask,
        f"{of_state}/trace/{{row:number}}": handlers.trace,
        f"{of_state}/trace/{{row:number}}/tokens/{{name}}": handlers.tokens,
        f"{of_state}/trace/{{row:number}}/candidates/{{token:number}}": handlers.candidates,
        f"{of_state}/trace/{{row:number}}/layers/{{what}}": handlers.layers,
        f"{of_state}/trace/{{row:number}}/attention/{{layer:number}}": handlers.attention,
        f"{of_state}/trace/{{row:number}}/heads/{{name}}": handlers.heads,
        f"{of_state}/mistakes": handlers.mistakes,
        f"{of_state}/calibration": handlers.calibration,
        f"{of_state}/density": handlers.density,
        f"{of_state}/limits": handlers.limits,
    }
    app = Starlette(routes=[Route(path, _answered(handler)) for path, handler in routes.items()])
    return Guard(app, token, cookie)


def _answered(
    handler: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """A handler whose errors are answers of one line, which the page shows."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except NotFoundError as error:
            return json_response({"error": str(error)}, 404)
        except (StoreError, IndexError, ValueError) as error:
            return json_response({"error": str(error)}, 400)
        except OSError as error:  # the store was moved or removed
            return json_response({"error": f"the store cannot be read: {error}"}, 500)

    return answer


async def page_file(request: Request) -> Response:
    """A file of the page; names with a slash do not get here, and only files of the folder fit."""
    name = request.path_params.get("name", "index.html")
    known = {path.name: path for path in PAGE.iterdir() if path.suffix in TYPES}
    if name not in known:
        raise NotFoundError("expected a file of the page")
    headers = {"Cache-Control": "no-cache"}
    return Response(known[name].read_bytes(), headers=headers, media_type=TYPES[known[name].suffix])


class Handlers:
    """Answers of the API; see `docs/view.md`."""

    def __init__(self, shown: Sequence[Shown]) -> None:
        self.shown = shown

    async def stores(self, request: Request) -> Response:
        """Every store: its columns, and the generations that are open and committed."""
        described = []
        for shown in self.shown:
            newest, problem = newest_state(shown.snapshots)
            asked = request.query_params.get("newest")
            shows = newest if asked else shown.snapshots.opened
            table = shown.snapshots.table(shows)
            of_runs = {"thresholds": shown.snapshots.thresholds(table)}
            known = describe(table, shown.snapshots.path)
            states = {"generation": shows, "newest": newest, "problem": problem}
            described.append(known | of_runs | states)
        return json_response({"stores": described})

    async def table(self, request: Request) -> Response:
        """Some rows of those wanted, from a position on."""
        _, table = self._table(request)
        rows = self._rows(request)
        start = max(0, integer(request, "start", 0))
        count = min(MAX_ROWS, max(0, integer(request, "count", 60)))
        names = [name for name in request.query_params.get("columns", "").split(",") if name]
        shown = rows[start : start + count].astype(np.int64)
        columns = {name: table_cells(table, name, shown) for name in dict.fromkeys(names)}
        return json_response(
            {"total": len(rows), "start": start, "rows": shown.tolist(), "columns": columns}
        )

    async def find(self, request: Request) -> Response:
        """The position of the next row after another that has an id or a text."""
        _, table = self._table(request)
        rows = self._rows(request)
        text = request.query_params.get("text", "")
        after = integer(request, "after", -1)
        if "row" in request.query_params:
            found = rows == integer(request, "row", 0)
        else:
            found = table.find(text, SEARCHED)[rows]
        positions = np.flatnonzero(found)
        later = positions[positions > after]
        first = next(iter([*later[:1], *positions[:1]]), None)
        position = None if first is None else int(first)
        row = None if position is None else int(rows[position])
        return json_response({"position": position, "row": row, "n": len(positions)})

    async def ids(self, request: Request) -> Response:
        """The ids of the rows wanted, one a line, for `python -m store subset --ids`."""
        _, table = self._table(request)
        rows = self._rows(request)
        check_ids(table, rows)
        headers = {"Content-Disposition": 'attachment; filename="ids.txt"'}
        return StreamingResponse(id_lines(table, rows), media_type="text/plain", headers=headers)

    async def complete(self, request: Request) -> Response:
        """What may follow a filter that is being typed."""
        _, table = self._table(request)
        return json_response(
            complete(request.query_params.get("text", ""), table.kinds, table.maps)
        )

    async def histogram(self, request: Request) -> Response:
        """How often the rows wanted have which values, for each label."""
        _, table = self._table(request)
        rows = self._rows(request)
        values = table.numbers(request.query_params.get("column", ""))[rows]
        groups = {"all": np.ones(len(rows), bool)}
        if table.kinds.get("label") == "number":
            labels = table.numbers("label")[rows]
            groups = {"0": labels == 0, "1": labels == 1, "none": (labels != 0) & (labels != 1)}
        found = histogram(values, list(groups.values()))
        counts = dict(zip(groups, found.counts.tolist(), strict=True))
        edges = [json_number(edge) for edge in found.edges.tolist()]
        return json_response({"edges": edges, "counts": counts, "missing": found.n_missing})

    async def map(self, request: Request) -> Response:
        """Two coordinates of all rows, as raw bytes."""
        _, table = self._table(request)
        name = request.path_params["name"]
        return kept_response(request, table, name, lambda: (table.points(name), {}))

    async def levels(self, request: Request) -> Response:
        """A column of numbers as colours, as raw bytes; what they mean is in the headers."""
        _, table = self._table(request)
        name = request.path_params["name"]

        def build() -> tuple[np.ndarray, dict[str, str]]:
            found = levels_of(table.numbers(name))
            meaning = {"X-Low": str(found.low), "X-High": str(found.high)}
            return found.levels, meaning | {"X-Classes": ",".join(map(str, found.classes))}

        return kept_response(request, table, name, build)

    async def mask(self, request: Request) -> Response:
        """Which rows are wanted, eight in a byte, the first one in its lowest bit."""
        _, table = self._table(request)
        is_wanted = np.zeros(len(table), bool)
        is_wanted[self._rows(request)] = True
        return raw_response(np.packbits(is_wanted, bitorder="little"))

    async def trace(self, request: Request) -> Response:
        """The texts, numbers and tokens of a trace."""
        _, table = self._table(request)
        tokenizer = self.shown[request.path_params["store"]].tokenizer
        return json_response(trace_values(table, request.path_params["row"], tokenizer))

    async def tokens(self, request: Request) -> Response:
        """A number for each token of a trace, as raw bytes."""
        _, table = self._table(request)
        parameters = request.path_params
        layer = integer(request, "layer", -1)
        chosen = None if layer < 0 else layer
        return raw_response(
            token_values(table.store, parameters["row"], parameters["name"], chosen)
        )

    async def candidates(self, request: Request) -> Response:
        """The most likely tokens at a place."""
        _, table = self._table(request)
        parameters = request.path_params
        tokenizer = self.shown[parameters["store"]].tokenizer
        return json_response(
            candidates(table.store, parameters["row"], parameters["token"], tokenizer)
        )

    async def layers(self, request: Request) -> Response:
        """A number for each token and layer, as raw bytes."""
        _, table = self._table(request)
        parameters = request.path_params
        return raw_response(layer_picture(table.store, parameters["row"], parameters["what"]))

    async def attention(self, request: Request) -> Response:
        """The strongest edges of a layer."""
        _, table = self._table(request)
        parameters = request.path_params
        threshold = number(request, "threshold", 0.0)
        skip_first = request.query_params.get("skip_first") == "1"
        edges = attention_edges(
            table.store, parameters["row"], parameters["layer"], threshold, skip_first
        )
        return json_response(
            {
                "queries": edges.queries.tolist(),
                "keys": edges.keys.tolist(),
                "weights": edges.weights.tolist(),
                "n_above": edges.n_above,
            }
        )

    async def heads(self, request: Request) -> Response:
        """A number for each head: of each token in a layer, else of each layer."""
        _, table = self._table(request)
        row, name = request.path_params["row"], request.path_params["name"]
        if "layer" not in request.query_params:
            return raw_response(head_summary(table.store, row, name))
        layer = integer(request, "layer", 0)
        return raw_response(head_values(table.store, row, name, layer))

    async def calibration(self, request: Request) -> Response:
        """Of the rows wanted, how often scores come true; null if they are no probabilities."""
        _, table = self._table(request)
        rows = self._rows(request)
        scores = table.numbers(request.query_params.get("column", ""))[rows]
        found = calibrate(scores, table.numbers("label")[rows])
        if found is None:
            return json_response(None)
        lists = {
            name: getattr(found, name).tolist() for name in ("scores", "shares", "counts", "edges")
        }
        return json_response(lists | {"error": found.error})

    async def mistakes(self, request: Request) -> Response:
        """Of the rows wanted, those whose score contradicts the label most."""
        _, table = self._table(request)
        rows = self._rows(request)
        scores = table.numbers(request.query_params.get("column", ""))[rows]
        labels = table.numbers("label")[rows]
        found = mistakes(scores, labels, N_MISTAKES)
        shown = [name for name in SHOWN if name in table.kinds]
        answer = {}
        for kind, places in found._asdict().items():
            chosen = rows[places].astype(np.int64)
            columns = {name: table_cells(table, name, chosen) for name in shown}
            values = [json_number(value) for value in scores[places].tolist()]
            answer[kind] = {"rows": chosen.tolist(), "scores": values, "columns": columns}
        return json_response(answer)

    async def density(self, request: Request) -> Response:
        """Of the rows wanted, how many have which ranks in two scores."""
        _, table = self._table(request)
        rows = self._rows(request)
        x, y = (table.numbers(request.query_params.get(axis, ""))[rows] for axis in ("x", "y"))
        return raw_response(rank_density(x, y).astype(np.int32))

    async def limits(self, request: Request) -> Response:
        """Of the rows wanted, the lowest and the highest score in each cell of `density`."""
        _, table = self._table(request)
        rows = self._rows(request)
        x, y = (table.numbers(request.query_params.get(axis, ""))[rows] for axis in ("x", "y"))
        return raw_response(rank_limits(x, y))

    def _table(self, request: Request) -> tuple[Snapshots, Table]:
        number = request.path_params["store"]
        if number >= len(self.shown):
            raise IndexError(f"store: expected 0 to {len(self.shown) - 1}, found {number}")
        snapshots = self.shown[number].snapshots
        return snapshots, snapshots.table(request.path_params["generation"])

    def _rows(self, request: Request) -> np.ndarray:
        snapshots, _ = self._table(request)
        query = request.query_params
        is_descending = query.get("descending") == "1"
        wanted = Wanted(query.get("filter", "").strip(), query.get("sort", ""), is_descending)
        return snapshots.rows(request.path_params["generation"], wanted)


def newest_state(snapshots: Snapshots) -> tuple[int, str | None]:
    """The number of the newest state, and why no newer one can be seen, if so.

    A store that was moved or removed is still read, as far as its files are open, and does not
    keep the others from being shown.
    """
    try:
        return snapshots.newest(), None
    except (StoreError, OSError) as error:
        return snapshots.last_seen(), str(error)


def table_cells(table: Table, name: str, rows: np.ndarray) -> list:
    """A column in some rows; long texts are cut, the whole text is in the trace."""
    return table.cells(name, rows, CELL_CHARACTERS)


def check_ids(table: Table, rows: np.ndarray) -> None:
    """Raise SchemaError for an id that is more than a line."""
    for end in "\n\r":
        has_end = table.rows_with(TRACE_ID, end)[rows]
        if has_end.any():
            row = rows[[has_end.argmax()]].astype(np.int64)
            (trace_id,) = table.texts(TRACE_ID, row)
            raise SchemaError(
                f"row {row[0]}: expected ids of one line, found {trace_id!r:.80}; "
                "filter it out, and choose its rows in Python"
            )


async def id_lines(table: Table, rows: np.ndarray) -> AsyncIterator[str]:
    """The ids of rows, one a line, in blocks."""
    for start in range(0, len(rows), IDS_BLOCK):
        ids = table.texts(TRACE_ID, rows[start : start + IDS_BLOCK].astype(np.int64))
        yield "".join(f"{trace_id}\n" for trace_id in ids)
