"""What a reader says to the fetching process of its node, which it starts if there is none.

There is one such process for a cache directory, which ends when nobody is connected. A reader of
another process, forked or spawned, has connections of its own, one for each thread. If the process
dies, the next request starts another. Nothing here knows the network, nor imports what does.
"""

import fcntl
import os
import select
import socket
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from store import errors
from store.errors import StoreError
from store.remote.cache.location import prepare_dir, socket_address
from store.remote.cache.messages import pack, receive
from store.remote.objects.address import SETTINGS, TIMEOUT_VARIABLE, source_settings
from store.remote.objects.retry import limit_of
from store.reports import size_text

__all__ = ["Mirror"]

LOG_FILE = "fetcher.log"
MAX_LOG_BYTES = 1024 * 1024
START_S = 30.0  # until a fetching process answers: a busy node imports slowly
START_ANSWER_S = 180.0  # until it has counted what is in the cache
MORE_S = 60.0  # until a request is answered, beside what those to the object store may take
TELL_S = 30.0  # without an answer, then the reader is told why it waits
# a request is given up after so many fetching processes have died under it, for so many seconds
ATTEMPTS = 5
DYING_S = 20.0
# glibc gives what held an answer back to the kernel, which has to empty the pages of the next one
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**28), "MALLOC_TRIM_THRESHOLD_": str(2**28)}
_mirrors: "weakref.WeakSet[Mirror]" = weakref.WeakSet()


class _Link(socket.socket):
    """A connection, closed when its thread or its process no longer needs it."""

    def __del__(self) -> None:
        self.close()


class Mirror:
    """A store at an address, mirrored in a directory of this node.

    All mirrors in it may take `limit` bytes on the disk; None: the fetching process chooses. Of
    several readers' limits the smallest counts. `digest` names a committed state of the store;
    None: that at the address now.
    """

    def __init__(
        self, url: str, cache_dir: Path, limit: int | None, digest: str | None = None
    ) -> None:
        self.url = url
        self.settings = source_settings(url)  # of this process: they are in no pickle
        self.limit_s = limit_of(self.settings.get(TIMEOUT_VARIABLE))
        self.cache_dir = cache_dir
        self.limit = limit
        self.digest = digest
        self.hits = 0  # reads that found all chunks there, without a request
        self.wait_s = 0.0
        self._forget()
        _mirrors.add(self)
        self._ask({"op": "stats"})  # opens it

    def __reduce__(self) -> tuple:
        return Mirror, (self.url, self.cache_dir, self.limit, self.digest)

    def _forget(self) -> None:
        """Let go of all connections, as those of the process that forked this one."""
        self._links = threading.local()

    def need(self, path: str, cells: np.ndarray, *, is_announced: bool = False) -> bool:
        """Have some cells of an array, rising, fetched; they stay until `done`, or a while.

        They are `is_announced` if `want` counted them in its times. Returns whether they were asked
        for; if not they are too many now, see `portion_bytes`. Raises StoreError if they cannot be
        had.
        """
        reply = self._ask({"op": "need", "array": path, "announced": is_announced}, cells)
        self.portion_bytes = int(reply["portion_bytes"])
        return bool(reply["fits"])

    def doubt(self, path: str, cells: np.ndarray) -> None:
        """Have some cells of an array be compared with their checksums before they are read."""
        self._ask({"op": "doubt", "array": path}, cells)

    def done(self) -> None:
        """What was needed last is copied."""
        link = getattr(self._links, "link", None)
        with suppress(OSError), self._whole_messages():  # a process that has died holds nothing
            if link is not None:
                link.sendall(pack({"op": "done"}))

    def want(self, path: str, uses: np.ndarray, now: float) -> None:
        """Announce cells that will be needed.

        `uses` has a cell, when it is needed, and when again after that: int64 `(n, 3)`. Time counts
        the bytes that are read before, from any beginning; `UNKNOWN` is not known.
        """
        self._ask({"op": "want", "array": path, "now": now}, uses)

    def need_files(self, path: str, *, again: bool = False) -> None:
        """Have the files of a small array be there; `again` if those that are there are damaged."""
        self._ask({"op": "files", "array": path, "again": again})

    def object_bytes(self, path: str = "") -> int:
        """Bytes of the objects of an array, or of the whole store."""
        return int(self._ask({"op": "bytes", "array": path})["bytes"])

    def stats(self) -> dict[str, float]:
        """Counts of the fetching process since it started, and of this reader."""
        counts = self._ask({"op": "stats"})["stats"]
        return {**counts, "hits": self.hits + counts["hits"], "wait_s": round(self.wait_s, 3)}

    def summary(self) -> str:
        """The counts in one line."""
        counts = self.stats()
        n_found = counts["hits"] + counts["misses"]
        names = ("fetched_bytes", "fetched_twice_bytes", "evicted_bytes")
        fetched, again, evicted = (size_text(counts[name]) for name in names)
        return (
            f"{self.url}: {fetched} fetched, {again} of them again, {evicted} evicted; "
            f"{counts['hits'] / max(1, n_found):.0%} of requests found in the cache, "
            f"{counts['wait_s']:.1f} s waited"
        )

    def _ask(self, message: dict[str, Any], numbers: np.ndarray | None = None) -> dict[str, Any]:
        """Send a request and return its answer; raises StoreError."""
        n_ended = 0
        began = time.monotonic()
        while True:
            try:
                link = self._link()
                with self._whole_messages():
                    link.sendall(pack(message, numbers))
                    self._wait(link)
                    reply, _ = receive(link)
                self.wait_s += time.monotonic() - began
                return _checked(reply)
            except TimeoutError as error:
                raise errors.UnreachableError(
                    f"{self.cache_dir}: expected an answer of the fetching process within "
                    f"{self.limit_s + MORE_S:g} s, found none to {message['op']!r}; see "
                    "fetcher.log there"
                ) from error
            except ConnectionError as error:  # it has died, or is on its way out: start another
                n_ended += 1
                if n_ended >= ATTEMPTS and time.monotonic() > began + DYING_S:
                    raise errors.UnreachableError(
                        f"{self.cache_dir}: expected a fetching process that lives, found "
                        f"{n_ended} that ended ({error}); see fetcher.log there"
                    ) from error
                time.sleep(min(0.02 * n_ended, 0.5))
            except OSError as error:
                raise errors.UnreachableError(
                    f"{self.cache_dir}: expected to speak with the fetching process, found: {error}"
                ) from error

    def _wait(self, link: socket.socket) -> None:
        """Tell the reader if an answer does not come soon; it may come later."""
        poll = select.poll()
        poll.register(link, select.POLLIN)
        if not poll.poll(1000 * TELL_S):
            text = (
                f"{self.url}: no answer for {TELL_S:g} s; the server is asked again for "
                f"{self.limit_s:g} s in all ({TIMEOUT_VARIABLE})"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    @contextmanager
    def _whole_messages(self) -> Iterator[None]:
        """End the connection if an exception comes: else the next request gets this one's answer.

        Ctrl-C is one.
        """
        try:
            yield
        except BaseException:
            self.drop_link()
            raise

    def _link(self) -> socket.socket:
        """This thread's connection; raises OSError, StoreError."""
        link = getattr(self._links, "link", None)
        if link is None:
            link = connect(self.cache_dir)
            self._open(link)
            self._links.link = link
        return link

    def _open(self, link: socket.socket) -> None:
        """Say what will be read, and note where it is."""
        link.settimeout(self.limit_s + MORE_S)
        opening = {"op": "open", "url": self.url, "settings": self.settings}
        link.sendall(pack({**opening, "limit": self.limit, "digest": self.digest}))
        reply = _checked(receive(link)[0])
        self.root = Path(reply["root"])
        self.digest = reply["digest"]
        self.portion_bytes = int(reply["portion_bytes"])
        self.index = Path(reply["index"])
        self.first_cells: dict[str, int] = reply["first_cells"]

    def reopen(self) -> None:
        """Ask again where things are: another process may have taken over, in a new directory."""
        self.drop_link()
        self._ask({"op": "stats"})

    def drop_link(self) -> None:
        """End this thread's connection; the next request makes another."""
        link = getattr(self._links, "link", None)
        if link is not None:
            link.close()
        self._links.link = None


def _close_inherited() -> None:
    """A forked child must not keep its parent's connections open."""
    for mirror in list(_mirrors):
        mirror._forget()


os.register_at_fork(after_in_child=_close_inherited)


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    """The answer, if it is not an error."""
    if "error" not in reply:
        return reply
    name = reply["error"]
    kind = ValueError if name == "ValueError" else getattr(errors, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, StoreError | ValueError)):
        kind = StoreError
    raise kind(reply["message"])


def connect(cache_dir: Path) -> socket.socket:
    """A connection to the fetching process of a cache directory, started if there is none.

    Raises StoreError if it does not start, or does not answer in time.
    """
    deadline = time.monotonic() + START_S
    connection = _try_to_connect(cache_dir)
    while connection is None:
        if time.monotonic() > deadline:
            raise errors.UnreachableError(
                f"{cache_dir}: expected a fetching process to answer within {START_S:g} s, found "
                "that another process holds fetcher.lock there; use a cache directory on a disk "
                "of this machine, or end that process"
            )
        prepare_dir(cache_dir)  # somebody may have removed it
        with (cache_dir / LOG_FILE).open("a+b") as log, _turn(log) as is_ours:
            connection = _try_to_connect(cache_dir)
            if connection is None and is_ours:
                _start(cache_dir, log)
                connection = _try_to_connect(cache_dir)
        if connection is None:
            time.sleep(0.02)
    return connection


@contextmanager
def _turn(log: BinaryIO) -> Iterator[bool]:
    """Whether this reader may start a fetching process, as no other does until the block ends.

    Each takes .4 s of a processor, and all readers of a node miss one that has died.
    """
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(log, fcntl.LOCK_UN)  # the process that was started has the file too


def _try_to_connect(cache_dir: Path) -> socket.socket | None:
    connection = _Link(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(cache_dir) as address:
            connection.connect(address)
    except OSError:  # nobody listens
        connection.close()
        return None
    return connection


def _start(cache_dir: Path, log: BinaryIO) -> None:
    """Start a fetching process, unless there is one; raises StoreError if it says why it cannot.

    It leaves this one's session.
    """
    # -P: modules in the directory in which a reader happens to work are none of ours
    command = [sys.executable, "-P", "-m", "store.remote.cache.fetcher", str(cache_dir)]
    root = Path(errors.__file__).resolve().parents[1]  # the folder of the package
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    # each reader sends its own settings: none of them may come from whoever was first
    kept = {name: value for name, value in os.environ.items() if not SETTINGS.fullmatch(name)}
    environment = {**kept, **MEMORY, "PYTHONPATH": os.pathsep.join(paths)}
    if log.tell() > MAX_LOG_BYTES:
        log.truncate(0)
    try:
        done = subprocess.run(
            command,
            env=environment,
            timeout=START_ANSWER_S,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise errors.UnreachableError(
            f"{cache_dir}: expected a fetching process to start within {START_ANSWER_S:g} s, "
            "found that it still counts what is there; use a cache directory on a faster disk"
        ) from error
    if done.returncode > 0:  # of one that was killed there is no word: then another is started
        log.seek(0)
        last = (log.read().decode().strip().splitlines() or ["no message"])[-1]
        raise StoreError(f"{cache_dir}: expected a fetching process to start, found: {last}")
