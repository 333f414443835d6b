"""Finished requests of a serving engine, appended to a store by a thread.

It knows no engine: whoever serves hands over tokens and states, and goes on. What does not fit is
left out by name. What goes wrong otherwise stops the recording, is said once, and never reaches a
request.
"""

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any, Protocol

import numpy as np

from store.errors import SchemaError
from store.format.schema import Schema
from store.read.store import TraceStore
from store.traces.columns import TRACE_COLUMNS
from store.traces.origin import LAYERS
from store.write.files import DISK, Files
from store.write.writer import StoreWriter

__all__ = [
    "DEFAULT_STATES",
    "RUN",
    "STATES",
    "WHOLE",
    "Recorder",
    "Request",
    "Settings",
    "client_id",
    "client_ids",
    "schema_of",
]

WHOLE = "hidden_states"
DEFAULT_STATES = ("hs_prompt", "hs_last", "hs_mean")
STATES = (*DEFAULT_STATES, WHOLE)
ALWAYS = ("tokens", "prompt_len", "answer_len", "finish_reason")
# in the provenance of all that is appended: a model is its weights, whatever path it came from
WEIGHTS = ("weights_sha256", "weights_crc32c")
RUN = "run"  # whose scores are recorded with the traces, where there are any
# behind a client's id: 8 random characters; and before these the number of one of its prompts
ADDED = (re.compile(r"-[0-9a-f]{8}$"), re.compile(r"(-\d+)?-[0-9a-f]{8}$"))
MAX_WAITING = 4096  # requests that are served and not yet written


@dataclass(frozen=True)
class Settings:
    """What an engine is told: where to, which columns of `STATES`, how often a commit comes."""

    store: str
    columns: tuple[str, ...] = DEFAULT_STATES
    commit_s: float = 30.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        unknown = [name for name in self.columns if name not in STATES]
        if unknown or not self.columns:
            raise SchemaError(
                f"columns: expected some of {', '.join(STATES)}, found {unknown or 'none'}"
            )

    def part(self, rank: int, n_ranks: int) -> Path:
        """The store of a data-parallel rank: each has its own, to be merged."""
        path = Path(self.store)
        if n_ranks == 1:
            return path
        return path.with_name(f"{path.stem}.{rank + 1}-of-{n_ranks}{path.suffix}")


def client_ids(own_id: str) -> list[str]:
    """What a client may call a request of vLLM's id: that, and without what vLLM adds."""
    return [own_id, *(added.sub("", own_id) for added in ADDED)]


def client_id(own_id: str) -> str:
    """The id that the client has of a request; those of one with several prompts have numbers."""
    return client_ids(own_id)[1].removesuffix("-0")


class Recorded(Protocol):
    """What becomes a trace; where `trace_id` is taken it is called `own_id`."""

    @property
    def trace_id(self) -> str: ...

    @property
    def own_id(self) -> str: ...

    def row(self) -> Mapping[str, Any]:
        """The values of its trace; raises SchemaError for one that is to be left out."""
        ...


@dataclass(frozen=True)
class Request:
    """A request that was answered.

    `trace_id` is the client's; where that is taken `own_id`, the engine's, is written instead.
    `tokens` are those that have states: prompt and answer but for the last, which was never an
    input. `states` waits for a copy to end and returns the columns of `STATES` that are kept.
    """

    trace_id: str
    own_id: str
    tokens: np.ndarray
    prompt_len: int
    finish_reason: str
    states: Callable[[], Mapping[str, Any]]

    def row(self) -> dict[str, Any]:
        """The values of its trace; raises SchemaError for states that the engine did not keep."""
        states = self.states()
        for name, value in states.items():
            if not bool(value.any()):
                raise SchemaError(f"{name}: expected states, found zeros: the engine kept none")
        return {
            "tokens": self.tokens,
            "prompt_len": self.prompt_len,
            "answer_len": len(self.tokens) - self.prompt_len,
            "finish_reason": self.finish_reason,
            **states,
        }


def schema_of(states: Sequence[str], dtype: str, n_layers: int, hidden: int) -> Schema:
    """The schema of a store of requests with these columns of `STATES`."""
    sizes = {"layers": n_layers, "hidden": hidden}
    return Schema({name: TRACE_COLUMNS[name].stored(sizes, dtype) for name in (*ALWAYS, *states)})


class Recorder:
    """Appends requests to the store at `path`, new or one that it made before.

    A commit comes every `commit_s` seconds, and at the end. `say` is told what goes wrong.

    Attributes
    ----------
    n_written, n_left_out
        Requests so far, in the store or to be committed to it, and those that are lost. Once the
        recording has stopped, all after the last commit are.
    has_stopped
        Whether something went wrong, and nothing is written any more.

    Raises
    ------
    SchemaError
        Another store is at `path`: of other columns, another model, other weights, other layers or
        the scores of another run.
    LockedError
        Another process records there.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        provenance: dict[str, Any],
        commit_s: float,
        say: Callable[[str], None],
        files: Files = DISK,
    ) -> None:
        self.path = path
        self.has_stopped = False
        self._n_put = 0
        self._n_refused = 0
        self._commit_s = commit_s
        self._say = say
        self._writer = _open(path, schema, provenance, files)
        self._n_before = len(self._writer)
        self._waiting: Queue[Recorded | None] = Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="store-recorder", daemon=True)
        self._thread.start()

    @property
    def n_written(self) -> int:
        return len(self._writer) - self._n_before

    @property
    def n_left_out(self) -> int:
        return self._n_put - self.n_written if self.has_stopped else self._n_refused

    def put(self, request: Recorded) -> None:
        """Have a request written; returns at once. It is left out if too many wait."""
        self._n_put += 1
        try:
            self._waiting.put_nowait(request)
        except Full:
            self._leave_out(request, f"{MAX_WAITING:,} requests wait for the disk")

    def close(self) -> None:
        """Write what waits, and commit it."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()

    def _leave_out(self, request: Recorded, why: object) -> None:
        self._n_refused += 1
        self._say(f"{self.path}: request {request.own_id} is left out: {why}")

    def _run(self) -> None:
        committed = time.monotonic()
        is_open = True
        try:
            while is_open:
                is_open = self._write_next(committed + self._commit_s - time.monotonic())
                if time.monotonic() - committed >= self._commit_s:
                    self._writer.commit()
                    committed = time.monotonic()
            self._writer.close()
        except Exception as error:  # noqa: BLE001 - it must not reach who serves
            self._say(f"{self.path}: recording has stopped, serving goes on: {error!r}")
            self._writer.discard()
            self.has_stopped = True
            while is_open:  # or nobody could put into it
                is_open = self._waiting.get() is not None

    def _write_next(self, timeout_s: float) -> bool:
        """Write a request if one comes in time; False after the last one."""
        try:
            request = self._waiting.get(timeout=max(0.0, timeout_s))
        except Empty:
            return True
        if request is not None:
            self._write(request)
        return request is not None

    def _write(self, request: Recorded) -> None:
        """Append a request, or say why it is no trace; raises what stops all recording."""
        trace_id = request.own_id if request.trace_id in self._writer else request.trace_id
        try:
            self._writer.append(trace_id, request.row())
        except SchemaError as error:
            self._leave_out(request, error)


def _open(path: Path, schema: Schema, provenance: dict[str, Any], files: Files) -> StoreWriter:
    """A writer of the store; raises SchemaError if it is another's."""
    if not path.exists():
        return StoreWriter.create(path, schema, provenance, files)
    store = TraceStore.open(path)
    found = store.schema.columns
    if found != schema.columns:
        raise SchemaError(
            f"{path}: expected the columns {', '.join(schema.columns)} as this engine gives them, "
            f"found {', '.join(found)}; record into another store"
        )
    knows_weights = provenance.get(WEIGHTS[0]) is not None  # an engine may not
    keys = (*WEIGHTS, LAYERS, RUN)
    for key in keys if knows_weights else ("model", *keys):
        known = store.provenance.get(key)
        given = provenance.get(key)
        if known != given:
            raise SchemaError(
                f"{path}: expected {key} {known!r:.80}, found {given!r:.80}; record into another "
                "store"
            )
    return StoreWriter.open(path, files)
