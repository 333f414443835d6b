"""The fetching process of a cache directory: `python -m store.remote.fetcher DIRECTORY`.

Readers start it; the one that gets the lock stays, listens on a socket in the directory, and ends
when nobody has been connected for a while. It alone talks to object stores and writes the cache.
What it leaves when it is killed is a socket's name and files that the next one counts and checks.
"""

import fcntl
import gc
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import DamagedItemsError, StoreError, VersionError
from store.format.manifest import GROUP_FILE
from store.format.ranges import cells
from store.remote.cache import DiskCache, Ticket
from store.remote.cached_column import CachedColumn
from store.remote.cached_store import SOURCE_NAME, CachedStore, state_digest
from store.remote.chunk_index import CHUNK_MARGIN
from store.remote.faults import disk_fault
from store.remote.inventory import BASE_BYTES
from store.remote.messages import PROTOCOL, receive, send
from store.remote.mirror import LOCK_FILE, SOCKET_FILE, STORES_DIR, socket_address
from store.remote.objects import Objects, open_objects
from store.remote.source import source_name

__all__ = ["Server", "listen", "main"]

IDLE_S = 2.0  # without a connection
POLL_S = 0.25
FREE_SHARE = 0.5  # of the free disk, where nobody names a limit
LOG_FILE = "fetcher.log"
LEAST_PORTIONS = 4
PORTION_BYTES = 32 * 1024 * 1024


def main(argv: list[str]) -> int:
    """Become the fetching process, unless there is one."""
    directory = Path(argv[0])
    lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    listener = listen(directory)
    # the lock goes on in the child; whoever started us reads what it says until it has a log
    if os.fork():
        return 0
    _raise_file_limit()
    server = Server(directory, listener)
    _detach(directory)
    # what is imported stays: to look through it again and again takes a tenth
    gc.freeze()
    server.serve()
    os._exit(0)  # the lock goes with it: not after threads that still wait for an answer


def listen(directory: Path) -> socket.socket:
    """A socket in a cache directory, in place of one that was left there."""
    with suppress(FileNotFoundError):
        (directory / SOCKET_FILE).unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with socket_address(directory) as address:
        listener.bind(address)
    listener.listen(512)
    return listener


def _detach(directory: Path) -> None:
    """Write to the log from now on."""
    log = os.open(directory / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, stream in ((null, 0), (log, 1), (log, 2)):
        os.dup2(fd, stream)
    os.close(null)
    os.close(log)


def _raise_file_limit() -> None:
    """Use as many descriptors as the system allows: each thread of a reader takes one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Server:
    """Answers the readers of a cache directory, whose lock this process has.

    `listener` is a socket that listens, `open_source` makes objects of an address and settings.
    """

    def __init__(
        self,
        directory: Path,
        listener: socket.socket,
        open_source: Callable[..., Objects] = open_objects,
    ) -> None:
        self.directory = directory
        self.listener = listener
        self.open_source = open_source
        self.is_over = False
        self.lock = threading.Lock()
        self.sessions: dict[int, _Session] = {}
        self.stores: dict[tuple[str, str], _Opened] = {}
        self.sources: dict[str, tuple[Mapping[str, str], Objects | None]] = {}
        self.socket_status = (directory / SOCKET_FILE).stat()
        self.default_limit = _default_limit(directory)  # now: what is free shrinks with the cache
        self.cache = DiskCache(directory, self.default_limit)

    def serve(self) -> None:
        """Answer until nobody has been connected for `IDLE_S`."""
        self.listener.settimeout(POLL_S)
        last_used = time.monotonic()
        while not self.is_over and self._is_reachable() and time.monotonic() < last_used + IDLE_S:
            try:
                link, _ = self.listener.accept()
                link.settimeout(None)
                _Session(self, link).start()
            except TimeoutError:
                pass
            except OSError:  # no descriptor is free: who connects waits, others go on
                time.sleep(POLL_S)
            self._close_unused()
            if self.sessions:
                last_used = time.monotonic()
        if self._is_reachable():
            with suppress(FileNotFoundError):
                (self.directory / SOCKET_FILE).unlink()
        self.listener.close()
        self.cache.close()

    def _is_reachable(self) -> bool:
        """Whether our socket is where readers look: else somebody has removed the directory, and
        in the one that has its name now another process may fetch."""
        with suppress(OSError):
            return os.path.samestat(self.socket_status, (self.directory / SOCKET_FILE).stat())
        return False

    def stop(self) -> None:
        """End at once, as if it was killed."""
        self.is_over = True
        for session in list(self.sessions.values()):
            with suppress(OSError):
                session.link.shutdown(socket.SHUT_RDWR)

    def open(self, url: str, settings: Mapping[str, str], digest: str | None) -> "_Opened":
        """The store of a source: as it is now, or the committed state of a digest."""
        name = source_name(url, settings)
        known, source = self.sources.get(name, ({}, None))
        if source is None or known != settings:
            source = self.open_source(url, settings=settings)  # which asks the server for the store
            self.sources[name] = settings, source
        group = b""
        if digest is None:
            group = source.get(GROUP_FILE)
            digest = state_digest(name, group, url)
        if not (digest.startswith(name) and digest.isalnum()):
            raise StoreError(f"{url}: the settings of its server were changed: open it again")
        with self.lock:
            opened = self.stores.setdefault((url, digest), _Opened())
            opened.n_users += 1
        try:
            opened.open(self, url, source, digest, group)
        except BaseException:
            self.leave(opened)
            raise
        return opened

    def leave(self, opened: "_Opened") -> None:
        """A reader has gone."""
        with self.lock:
            opened.n_users -= 1

    def _close_unused(self) -> None:
        with self.lock:
            for key, opened in list(self.stores.items()):
                if not opened.n_users:
                    self.cache.close_store(self.directory / STORES_DIR / key[1], opened.store)
                    del self.stores[key]

    def set_limit(self) -> None:
        """Take the smallest limit of those connected."""
        with self.lock:
            limit = self.smallest_limit()
            if limit != self.cache.limit:
                self.cache.set_limit(limit)

    def smallest_limit(self) -> int:
        """Of those connected."""
        limits = [session.limit for session in list(self.sessions.values())]
        given = [limit for limit in limits if limit is not None]
        return min(given, default=self.default_limit)

    def portion_bytes(self, least: int) -> int:
        """What a reader may ask for at a time, now: at least so much."""
        room = max(self.cache.limit - self.fixed_bytes(), 0) // (2 * LEAST_PORTIONS)
        return max(least, min(PORTION_BYTES, room))

    def others(self) -> str:
        """That more than one store or state is open, for messages."""
        n_others = len(self.stores) - 1
        return f" beside {n_others} other open stores or states of it" if n_others else ""

    def fixed_bytes(self) -> int:
        """What all open stores take beside chunks."""
        opened = [one.store for one in list(self.stores.values()) if one.store is not None]
        return BASE_BYTES + sum(store.fixed_bytes() for store in opened)


class _Opened:
    """A store that somebody reads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.store: Any = None  # a CachedStore, once it is open
        self.columns: dict[str, CachedColumn] = {}
        self.n_users = 0
        self.name = ""

    def open(self, server: Server, url: str, source: Objects, digest: str, group: bytes) -> None:
        """Make its folder, if it is not open; `group` is empty where it is that of the folder."""
        folder = server.directory / STORES_DIR / digest
        with self.lock:
            if self.store is not None:
                self.store.source = source  # with the newest of credentials that are renewed
                return
            server.cache.keep(folder)  # before anything is in it: a smaller limit would remove it
            if not group:
                with suppress(FileNotFoundError):
                    group = (folder / "store" / GROUP_FILE).read_bytes()
            group = group or source.get(GROUP_FILE)
            if state_digest(digest[:SOURCE_NAME], group, url) != digest:
                raise StoreError(
                    f"{url}: expected the state that was opened, found another one; "
                    "open the store again"
                )
            store = CachedStore(url, source, folder, group)
            server.cache.open_store(store)
            self.name = f"{os.getpid()}-{time.monotonic_ns()}"
            self.store = store

    def column(self, server: Server, path: str) -> CachedColumn:
        """A column, whose chunks are counted from now on."""
        with self.lock:
            if path not in self.columns:
                array = self.store.stored(path)
                if array.column is None:
                    raise ValueError(f"expected a column, found {path!r:.200}")
                self.store.need_whole(array.checksums.layout.path)
                self.columns[path] = server.cache.open_column(self.store, array)
            return self.columns[path]


class _Session(threading.Thread):
    """One connection."""

    def __init__(self, server: Server, link: socket.socket) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.link = link
        self.limit: int | None = None
        self.is_alive_ = True
        self.opened: _Opened | None = None
        self.ticket: Ticket | None = None
        self.offset: float | None = None
        self.operations: dict[str, Callable[..., dict[str, Any]]] = {
            "array": self._array,
            "need": self._need,
            "done": self._done,
            "want": self._want,
            "stats": self._stats,
        }
        server.sessions[id(self)] = self

    def run(self) -> None:
        try:
            while True:
                message, numbers = receive(self.link)
                reply = self._answer(message, numbers)
                if message.get("op") != "done":
                    send(self.link, reply)
        except OSError:  # the reader has gone
            pass
        except BaseException as error:  # a fault of ours: the reader need not try again
            text = f"{self.server.directory}: found {error!r} (see fetcher.log); report it"
            send(self.link, {"error": "StoreError", "message": text})
            raise
        finally:
            self._end()

    def _end(self) -> None:
        self.is_alive_ = False
        self._done()
        self.link.close()
        if self.opened is not None:
            self.server.leave(self.opened)
        self.server.sessions.pop(id(self), None)
        if self.limit is not None and self.server.sessions:
            self.server.set_limit()

    def _answer(self, message: dict[str, Any], numbers: np.ndarray) -> dict[str, Any]:
        try:
            if message.get("op") == "open":
                return self._open(message)
            if self.opened is None:
                raise ValueError("expected a store to be opened first")
            return self.operations[message["op"]](self.opened, message, numbers)
        except DamagedItemsError as error:  # the reader knows its items better
            return {"error": "CorruptError", "message": str(error)}
        except (StoreError, ValueError) as error:
            return {"error": type(error).__name__, "message": str(error)}
        except OSError as error:
            fault = disk_fault(self.server.directory, error)
            return {"error": "StoreError", "message": str(fault)}

    def _open(self, message: dict[str, Any]) -> dict[str, Any]:
        if message.get("protocol") != PROTOCOL:
            raise VersionError(
                f"{self.server.directory}: expected readers of version {PROTOCOL}, found "
                f"{message.get('protocol')!r:.20}; end the processes of the other version, or "
                "choose another cache directory"
            )
        opened = self.server.open(str(message["url"]), message["settings"], message["digest"])
        self.opened = opened
        limit = message["limit"]
        fixed = self.server.fixed_bytes()
        portion = opened.store.least_portion()
        least = fixed + LEAST_PORTIONS * portion
        found = self.server.smallest_limit() if limit is None else limit
        if found < least:  # others go on with theirs
            raise ValueError(
                f"expected at least {least:,} bytes for the cache, the least that works for "
                f"{opened.store.url}{self.server.others()}, found {found:,}"
            )
        self.limit = limit
        self.server.set_limit()
        return {
            "root": str(opened.store.root),
            "digest": opened.store.folder.name,
            "portion_bytes": self.server.portion_bytes(portion),
            "session": opened.name,
        }

    def _array(self, opened: _Opened, message: dict[str, Any], _: np.ndarray) -> dict[str, Any]:
        """See `Mirror.open_array`."""
        path = message["array"]
        if opened.store.stored(path).column is not None:
            return {"file": str(opened.column(self.server, path).index.path)}
        opened.store.need_whole(path)
        return {}

    def _need(
        self, opened: _Opened, message: dict[str, Any], numbers: np.ndarray
    ) -> dict[str, Any]:
        column = opened.column(self.server, message["array"])
        some = _expand(numbers, len(column.index.words))
        self._done()
        portion = self.server.portion_bytes(opened.store.least_portion())
        if len(some) * (column.layout.chunk_bytes + CHUNK_MARGIN) > portion:
            return {"portion_bytes": portion, "fits": False}
        is_announced = bool(message["announced"])
        self.ticket = self.server.cache.need(column, some, is_announced=is_announced)
        return {"portion_bytes": portion, "fits": True}

    def _done(self, *_: Any) -> dict[str, Any]:
        """What was asked for before is copied; this has no answer."""
        if self.ticket is not None:
            self.server.cache.release(self.ticket)
            self.ticket = None
        return {}

    def _want(
        self, opened: _Opened, message: dict[str, Any], numbers: np.ndarray
    ) -> dict[str, Any]:
        column = opened.column(self.server, message["array"])
        uses = numbers.reshape(-1, 3).astype(float)
        _check_cells(uses[:, 0], len(column.index.words))
        now = float(message["now"])
        if self.offset is None:
            self.offset = self.server.cache.start_clock(now)
        uses[:, 1:] += self.offset
        self.server.cache.want(column, uses, now + self.offset, lambda: self.is_alive_)
        return {}

    def _stats(self, opened: _Opened, message: dict[str, Any], _: np.ndarray) -> dict[str, Any]:
        """The counts; or the bytes of the objects below a path."""
        if "array" in message:
            return {"bytes": opened.store.object_bytes(message["array"])}
        return {"stats": vars(self.server.cache.stats())}


def _expand(runs: np.ndarray, n: int) -> np.ndarray:
    """Ranges of cells, int64 `(2 k,)`, as cells; raises ValueError."""
    firsts, stops = runs.reshape(-1, 2).T
    if len(firsts) and (
        firsts[0] < 0 or (stops < firsts).any() or (firsts[1:] < stops[:-1]).any() or stops[-1] > n
    ):
        raise ValueError(f"expected rising ranges of cells up to {n}, found others")
    return cells(firsts, stops, 1)[1]


def _check_cells(some: np.ndarray, n: int) -> None:
    if len(some) and not (some.min() >= 0 and some.max() < n):
        raise ValueError(f"expected cells from 0 to {n}, found others")


def _default_limit(directory: Path) -> int:
    """Half of what is free, and of what the cache takes of it already."""
    disk = os.statvfs(directory)
    taken = sum(path.stat().st_blocks * 512 for path in directory.rglob("*"))
    return int((disk.f_bavail * disk.f_frsize + taken) * FREE_SHARE)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as error:
        sys.exit(f"{error.filename or sys.argv[1:]}: {error.strerror}")
