"""What answers the readers of a cache directory, until nobody has been connected for a while.

It alone talks to object stores and writes the cache.
"""

import asyncio
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import DamagedItemsError, FormatError, StoreError
from store.format.manifest import GROUP_FILE
from store.read.directory import files_below
from store.remote.cache.chunk_index import CHUNK_MARGIN
from store.remote.cache.fetcher.fetch_queue import FetchQueue, Ticket
from store.remote.cache.fetcher.fetched_column import FetchedColumn
from store.remote.cache.fetcher.fetched_store import FetchedStore, fetch_group, state_digest
from store.remote.cache.fetcher.inventory import BASE_BYTES, Inventory
from store.remote.cache.fetcher.use_times import Reader, Uses
from store.remote.cache.location import SOCKET_FILE, STORES_DIR, socket_address
from store.remote.cache.messages import pack, receive_from
from store.remote.objects.address import source_name
from store.remote.objects.faults import disk_fault
from store.remote.objects.objects import Objects, open_objects
from store.system import FETCHER_THREADS

__all__ = ["Server", "listen"]

IDLE_S = 2.0  # without a connection
N_BACKLOG = 512
POLL_S = 0.25
FREE_SHARE = 0.5  # of the free disk, where nobody names a limit
LEAST_PORTIONS = 4
PORTION_BYTES = 32 * 1024 * 1024


def listen(directory: Path) -> socket.socket:
    """A socket in a cache directory, in place of one that was left there."""
    with suppress(FileNotFoundError):
        (directory / SOCKET_FILE).unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with socket_address(directory) as address:
        listener.bind(address)
    listener.listen(N_BACKLOG)
    return listener


class Server:
    """Answers the readers of a cache directory, whose lock this process has; in one event loop.

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
        self.loop = asyncio.new_event_loop()
        self.is_over = asyncio.Event()
        self.sessions: set[_Session] = set()
        self.stores: dict[str, FetchedStore] = {}  # by the digests of their states
        self.columns: dict[FetchedStore, dict[str, FetchedColumn]] = {}
        self.sources: dict[str, tuple[Mapping[str, str], Objects | None]] = {}
        self.socket_status = (directory / SOCKET_FILE).stat()
        self.default_limit = _default_limit(directory)  # now: what is free shrinks with the cache
        self.inventory = Inventory(directory, self.default_limit)
        self.queue = FetchQueue(self.inventory)

    def run(self, then: Callable[[], None] = lambda: None) -> None:
        """Answer until nobody has been connected for `IDLE_S`; `then` is called at the end."""
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            self.loop.set_default_executor(ThreadPoolExecutor(FETCHER_THREADS))
            try:
                runner.run(self._serve())
            except Exception:  # noqa: BLE001 - a defect: readers start another process
                traceback.print_exc()  # into fetcher.log
            then()

    async def _serve(self) -> None:
        listening = await asyncio.start_unix_server(
            lambda *streams: _Session(self, *streams).run(), sock=self.listener, backlog=N_BACKLOG
        )
        last_used = time.monotonic()
        while self._is_reachable() and time.monotonic() < last_used + IDLE_S:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.is_over.wait(), POLL_S)
                break
            self._close_unused()
            self.queue.look_again()  # chunks that are read without a request make room too
            if self.sessions:
                last_used = time.monotonic()
        if self._is_reachable():
            with suppress(FileNotFoundError):
                (self.directory / SOCKET_FILE).unlink()
        listening.close()

    def _is_reachable(self) -> bool:
        """Whether our socket is where readers look: else somebody has removed the directory, and
        in the one that has its name now another process may fetch."""
        with suppress(OSError):
            return os.path.samestat(self.socket_status, (self.directory / SOCKET_FILE).stat())
        return False

    def stop(self) -> None:
        """End at once, as if it was killed; from any thread."""
        self.loop.call_soon_threadsafe(self.is_over.set)

    async def open(
        self, url: str, settings: Mapping[str, str], digest: str | None, limit: int | None
    ) -> FetchedStore:
        """The store of a source: as it is now, or the committed state of a digest.

        Raises ValueError if it has no room beside others, with the limit of one more reader.
        """
        name = await asyncio.to_thread(source_name, url, settings)
        known, source = self.sources.get(name, ({}, None))
        if source is None or known != settings:
            # which asks the server for the store
            source = await asyncio.to_thread(self.open_source, url, settings=settings)
            self.sources[name] = settings, source
        group = b""
        if digest is None:
            group = await fetch_group(source, url)
            digest = state_digest(name, group, url)
        if not digest.startswith(name):
            raise StoreError(f"{url}: the settings of its server were changed: open it again")
        folder = self.directory / STORES_DIR / digest
        if digest not in self.stores:
            group = group or _left_group(folder, name, url) or await fetch_group(source, url)
        present = self.stores.get(digest)  # nothing is waited for from here on
        if present is None and state_digest(name, group, url) != digest:
            raise StoreError(
                f"{url}: expected the state that was opened, found another one; open the store "
                "again"
            )
        store = present or FetchedStore(url, source, folder, group)
        self._check_limit(limit, store)  # before others lose their room
        if present is None:
            self.inventory.open_store(store)
            self.queue.look_again()
            self.stores[digest] = store
            self.columns[store] = {}
        store.keep_group()
        store.source = source  # with the newest of credentials that are renewed
        return store

    def _check_limit(self, limit: int | None, store: FetchedStore) -> None:
        """Raise ValueError if the smallest limit, with that of one more reader, is too small.

        It has to do for all open stores and for that reader's, in whatever order their readers
        come: they all come back if this process ends.
        """
        stores = {*self.stores.values(), store}
        portion = max(one.portion_bytes for one in stores)
        least = _fixed_bytes(stores) + LEAST_PORTIONS * portion
        found = self.smallest_limit(limit)
        if found < least:
            n_others = len(stores) - 1
            others = f" beside {n_others} other open stores or states of it" if n_others else ""
            raise ValueError(
                f"expected at least {least:,} bytes for the cache, the least that works for "
                f"{store.url}{others}, found {found:,}, the smallest limit of its readers"
            )

    def _close_unused(self) -> None:
        used = {session.store for session in self.sessions}
        for digest, store in list(self.stores.items()):
            if store not in used:
                del self.stores[digest], self.columns[store]
                self.inventory.close_store(store, self.stores.values())

    def set_limit(self, limit: int) -> None:
        """Have the cache take so many bytes; what is too much goes at once."""
        if limit != self.inventory.limit:
            self.inventory.resize(limit)
            self.queue.look_again()

    def smallest_limit(self, more: int | None = None) -> int:
        """Of those connected, and one more."""
        limits = [more, *(session.limit for session in self.sessions)]
        given = (limit for limit in limits if limit is not None)
        return min(given, default=self.default_limit)

    def portion_bytes(self, store: FetchedStore) -> int:
        """What a reader may ask for at a time, now: at least the largest chunk."""
        fixed = _fixed_bytes(self.stores.values())
        room = max(self.inventory.limit - fixed, 0) // (2 * LEAST_PORTIONS)
        return max(store.portion_bytes, min(PORTION_BYTES, room))


def _fixed_bytes(stores: Iterable[FetchedStore]) -> int:
    """What open stores take beside chunks."""
    return BASE_BYTES + sum(store.fixed_bytes for store in stores)


class _Session:
    """One connection."""

    def __init__(
        self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.server = server
        self.queue = server.queue
        self.reader = reader
        self.writer = writer
        self.limit: int | None = None
        self.store: FetchedStore | None = None
        self.ticket: Ticket | None = None
        self.announcer: Reader | None = None  # once it has announced something

    async def run(self) -> None:
        """Answer until the reader has gone."""
        self.server.sessions.add(self)
        try:
            while True:
                message, numbers = await receive_from(self.reader)
                reply = await self._answer(message, numbers)
                if message["op"] != "done":
                    self.writer.write(pack(reply))
                    await self.writer.drain()
        except (OSError, asyncio.IncompleteReadError):  # the reader has gone
            pass
        except Exception as error:  # a fault of ours: the reader need not try again
            text = f"{self.server.directory}: found {error!r} (see fetcher.log); report it"
            self.writer.write(pack({"error": "StoreError", "message": text}))
            raise
        finally:
            self._end()

    def _end(self) -> None:
        if self.announcer is not None:
            self.announcer.is_alive = False
        self._release()
        self.writer.close()
        self.server.sessions.remove(self)
        if self.limit is not None and self.server.sessions:
            self.server.set_limit(self.server.smallest_limit())

    async def _answer(self, message: dict[str, Any], numbers: np.ndarray) -> dict[str, Any]:
        try:
            if message["op"] == "open":
                return await self._open(message)
            assert self.store is not None
            return await self._do(self.store, message, numbers)
        except DamagedItemsError as error:  # the reader knows its items better
            return {"error": "CorruptError", "message": str(error)}
        except (StoreError, ValueError) as error:
            return {"error": type(error).__name__, "message": str(error)}
        except OSError as error:
            fault = disk_fault(self.server.directory, error)
            return {"error": "StoreError", "message": str(fault)}

    async def _open(self, message: dict[str, Any]) -> dict[str, Any]:
        server = self.server
        limit = message["limit"]
        url = str(message["url"])
        store = await server.open(url, message["settings"], message["digest"], limit)
        self.store = store
        self.limit = limit
        server.set_limit(server.smallest_limit())
        return {
            "root": str(store.root),
            "digest": store.folder.name,
            "portion_bytes": server.portion_bytes(store),
            "index": str(store.index.path),
            "first_cells": {path: cells.start for path, cells in store.cells.items()},
        }

    async def _do(
        self, store: FetchedStore, message: dict[str, Any], numbers: np.ndarray
    ) -> dict[str, Any]:
        """What a `Mirror` asks for."""
        path = message.get("array", "")
        match message["op"]:
            case "done":
                self._release()
            case "stats":
                return {"stats": self.queue.stats()}
            case "bytes":
                return {"bytes": await asyncio.to_thread(store.object_bytes, path)}
            case "files":
                await store.need_whole(path, again=bool(message["again"]))
            case "doubt":
                store.index.doubt(store.cells[path].start + numbers)
            case "need":
                return await self._need(await self._column(store, path), message, numbers)
            case "want":
                self._want(await self._column(store, path), float(message["now"]), numbers)
        return {}

    async def _column(self, store: FetchedStore, path: str) -> FetchedColumn:
        """A column of an open store."""
        columns = self.server.columns[store]
        if path not in columns:
            array = store.stored(path)
            await store.need_whole(array.checksums.layout.path)
            if path not in columns:
                columns[path] = FetchedColumn(store, array)
        return columns[path]

    async def _need(
        self, column: FetchedColumn, message: dict[str, Any], numbers: np.ndarray
    ) -> dict[str, Any]:
        cells = column.cells.start + numbers
        self._release()
        portion = self.server.portion_bytes(column.store)
        fits = len(cells) * (column.layout.chunk_bytes + CHUNK_MARGIN) <= portion
        if fits:
            is_announced = bool(message["announced"])
            self.ticket = await self.queue.need(column, cells, is_announced=is_announced)
        return {"portion_bytes": portion, "fits": fits}

    def _release(self) -> None:
        """What was asked for before is copied."""
        if self.ticket is not None:
            self.queue.release(self.ticket)
            self.ticket = None

    def _want(self, column: FetchedColumn, now: float, numbers: np.ndarray) -> None:
        cells, when, again = numbers.reshape(-1, 3).T
        self.announcer = self.announcer or self.queue.join(now)
        self.queue.want(column, Uses(column.cells.start + cells, when, again), now, self.announcer)


def _left_group(folder: Path, name: str, url: str) -> bytes:
    """The `zarr.json` of a state that an earlier process left in its folder; b"": none is whole."""
    with suppress(FileNotFoundError, FormatError):
        group = (folder / "store" / GROUP_FILE).read_bytes()
        if state_digest(name, group, url) == folder.name:
            return group
    return b""


def _default_limit(directory: Path) -> int:
    """Half of what is free, and of what the cache takes of it already."""
    disk = os.statvfs(directory)
    taken = sum(file.st_blocks * 512 for file in files_below(directory))
    return int((disk.f_bavail * disk.f_frsize + taken) * FREE_SHARE)
