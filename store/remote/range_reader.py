"""Byte ranges of objects, received from kept connections into memory that is used again.

The client of object stores puts each answer into new memory, which costs more processor time than
to receive it. Here is only the plain case: an address that needs no header of its own, and an
answer that is exactly the range. For everything else, and every fault, the client has to be asked.
Where a server sends requests for an object on, those that follow go straight there: servers count
what they send on, and refuse who asks too often. All of it is in one event loop.
"""

import asyncio
import re
import ssl
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from store.remote.source import TRUSTED

__all__ = ["RangeReader"]

URL_S = 600.0  # that an address is used; it is signed for longer
HEAD_BYTES = 16 * 1024
MEMORY_STEP = 512 * 1024
MOST_AT_ONCE = 192  # ranges that are asked for
MOST_MEMORY = 64  # pieces that are kept
MOST_FAULTS = 3  # in a row, then none is tried for a while
PAUSE_S = 60.0
_RANGE = re.compile(rb"bytes (\d+)-(\d+)/\d+")
_MOVED = re.compile(rb"HTTP/1\.1 30[12378] ")
_HELD = (b"transfer-encoding", b"content-encoding")  # the body is not the bytes


class Address(NamedTuple):
    """What a URL says: the server, and what to ask it for."""

    scheme: str
    host: str
    port: int
    name: str  # of the server, as the request has it
    target: str
    url: str


class NotPlainError(OSError):
    """An answer that is not exactly what was asked for."""


class MovedError(NotPlainError):
    """The object is at another address, `where`, as the server says it."""

    def __init__(self, where: str) -> None:
        super().__init__("the object is elsewhere")
        self.where = where


class RangeReader:
    """Asks for ranges of objects.

    `sign` gives the URL at which an object can be had without credentials, for an hour; None: there
    is none. It may take long. A request takes `attempt_s` seconds at most, and `stall_s` without a
    byte of an answer. `trusted` is as that of a `Client`.
    """

    def __init__(
        self,
        sign: Callable[[str], str | None],
        attempt_s: float,
        stall_s: float,
        trusted: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.sign = sign
        self.attempt_s = attempt_s
        self.stall_s = stall_s
        self._trusted = trusted
        self._addresses: dict[str, tuple[float, Address | None]] = {}
        self._signing = asyncio.Lock()
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)
        self._idle: dict[tuple, list[Link]] = defaultdict(list)  # by their servers
        self._memory: list[memoryview] = []
        self._n_faults = 0
        self._paused_until = 0.0
        self._is_closed = False

    async def get(self, key: str, start: int, stop: int) -> memoryview | None:
        """Bytes `start:stop` of an object, until `release`; None: the client has to be asked."""
        address = await self._address(key)
        if address is None:
            return None
        link = None
        try:
            async with self._turns:
                link = self._take_link(address) or await self._connect(address)
                data = await link.get(address, start, stop)
            self._n_faults = 0
            if link.is_kept and not self._is_closed:
                self._idle[address[:3]].append(link)
                link = None
        except MovedError as moved:
            self._follow(key, moved.where)
        except OSError:
            self._addresses.pop(key, None)  # it may have ended
            if link is None or not link.n_answers:  # a server may close one that was idle
                self._count_fault()
        else:
            return data
        finally:
            if link is not None:
                link.close()
        return None

    def release(self, data: memoryview) -> None:
        """Have the memory of an answer be used again."""
        if len(self._memory) < MOST_MEMORY:
            self._memory.append(memoryview(data.obj))

    def take_memory(self, n_bytes: int) -> memoryview:
        """Memory of at least so many bytes, the last that was used and is large enough."""
        for i in reversed(range(len(self._memory))):
            if len(self._memory[i]) >= n_bytes:
                return self._memory.pop(i)
        return memoryview(bytearray(-(-n_bytes // MEMORY_STEP) * MEMORY_STEP))

    def close(self) -> None:
        """End the connections, those at work after their answer."""
        self._is_closed = True
        for link in chain(*self._idle.values()):
            link.close()

    async def _address(self, key: str) -> Address | None:
        if not self._is_known(key):
            async with self._signing:
                if not self._is_known(key):
                    url = await asyncio.to_thread(self.sign, key)
                    address = None if url is None else parse(url)
                    until = time.monotonic() + URL_S
                    if address is None:  # nor have others one: to ask again may take long
                        self._paused_until = until
                    self._addresses[key] = until, address
        return None if time.monotonic() < self._paused_until else self._addresses[key][1]

    def _is_known(self, key: str) -> bool:
        """Whether there is an address, or none is looked for."""
        now = time.monotonic()
        return now < max(self._paused_until, self._addresses.get(key, (0.0, None))[0])

    def _follow(self, key: str, where: str) -> None:
        """Ask for an object at the address to which its server sends requests, for a while."""
        until, address = self._addresses.get(key, (0.0, None))
        if address is not None:
            with suppress(ValueError):  # it is no address
                moved = parse(urljoin(address.url, where))
                if moved is not None and moved.scheme in ("https", address.scheme):
                    self._addresses[key] = until, moved

    def _take_link(self, address: Address) -> "Link | None":
        """A connection that nobody uses."""
        idle = self._idle[address[:3]]
        while idle:
            link = idle.pop()
            if link.is_open:
                return link
        return None

    async def _connect(self, address: Address) -> "Link":
        """A new connection; raises OSError."""
        context = self._context if address.scheme == "https" else None
        async with asyncio.timeout(min(self.attempt_s, self.stall_s)):
            _, link = await asyncio.get_running_loop().create_connection(
                lambda: Link(self), address.host, address.port, ssl=context
            )
        return link

    def _count_fault(self) -> None:
        self._n_faults += 1
        if self._n_faults >= MOST_FAULTS:
            self._n_faults = 0
            self._paused_until = time.monotonic() + PAUSE_S

    @cached_property
    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self._trusted:
            file, folder = map(self._trusted.get, TRUSTED)
            context.load_verify_locations(file, folder)
        return context


class Link(asyncio.BufferedProtocol):
    """A connection to a server, which has one request at a time.

    `n_answers` came over it; the server takes another request if it `is_kept`.
    """

    def __init__(self, reader: RangeReader) -> None:
        self.n_answers = 0
        self.is_kept = True
        self._reader = reader
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle
        self._answer: asyncio.Future[memoryview] | None = None
        self._memory = memoryview(b"")  # from when something comes
        self._start = self._stop = 0
        self._n = 0
        self._last = -1  # where the body ends, once the head is here
        self._began = self._came = 0.0

    @property
    def is_open(self) -> bool:
        """Whether neither end has closed it."""
        return not self._transport.is_closing()

    async def get(self, address: Address, start: int, stop: int) -> memoryview:
        """The bytes `start:stop` of an object; raises OSError."""
        loop = asyncio.get_running_loop()
        self._start, self._stop = start, stop
        self._n, self._last = 0, -1
        self._began = self._came = loop.time()
        self._answer = loop.create_future()
        lines = (
            f"GET {address.target} HTTP/1.1",
            f"Host: {address.name}",
            f"Range: bytes={start}-{stop - 1}",
            "Accept-Encoding: identity",
            "",
            "",
        )
        self._transport.write("\r\n".join(lines).encode())
        self._watch()
        try:
            return await self._answer
        finally:
            self._timer.cancel()
            self._answer = None
            self._memory = memoryview(b"")

    def _watch(self) -> None:
        """End an answer that takes too long, or look again when it might."""
        loop = asyncio.get_running_loop()
        reader = self._reader
        end = min(self._began + reader.attempt_s, self._came + reader.stall_s)
        if end <= loop.time():
            self._fail(TimeoutError("it takes too long"))
        else:
            self._timer = loop.call_at(end, self._watch)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or NotPlainError("the connection ended early"))

    def get_buffer(self, sizehint: int) -> memoryview | bytearray:
        if self._answer is None or self._answer.done():  # nothing was asked for
            return bytearray(1)
        if not len(self._memory):
            self._memory = self._reader.take_memory(HEAD_BYTES + self._stop - self._start)
        return self._memory[self._n : HEAD_BYTES if self._last < 0 else self._last]

    def buffer_updated(self, n_bytes: int) -> None:
        self._n += n_bytes
        try:
            self._receive()
        except OSError as error:
            self._fail(error)

    def _receive(self) -> None:
        """Look what has come; raises NotPlainError."""
        if self._answer is None or self._answer.done():
            raise NotPlainError("more than was asked for")
        self._came = asyncio.get_running_loop().time()
        n_body = self._stop - self._start
        if self._last < 0:
            end = self._memory.obj.find(b"\r\n\r\n", 0, self._n)  # type: ignore[attr-defined]
            if end >= 0:
                self._check_head(bytes(self._memory[:end]))
                self._last = end + 4 + n_body
            elif self._n == HEAD_BYTES:
                raise NotPlainError("no end of the head")
        if self._n > self._last >= 0:
            raise NotPlainError("more than was asked for")
        if self._n == self._last:
            self.n_answers += 1
            self._answer.set_result(self._memory[self._last - n_body : self._last])

    def _check_head(self, head: bytes) -> None:
        """Raise NotPlainError unless it is of just the range; note whether the server goes on."""
        status, *lines = head.split(b"\r\n")
        parts = (line.partition(b":") for line in lines)
        fields = {name.lower(): value.strip() for name, _, value in parts}
        if _MOVED.match(status) and b"location" in fields:
            raise MovedError(fields[b"location"].decode("latin-1"))
        span = _RANGE.fullmatch(fields.get(b"content-range", b""))
        is_exact = (
            status.startswith(b"HTTP/1.1 206")
            and span is not None
            and (int(span[1]), int(span[2])) == (self._start, self._stop - 1)
            and fields.get(b"content-length") == b"%d" % (self._stop - self._start)
            and not any(name in fields for name in _HELD)
        )
        if not is_exact:
            raise NotPlainError("another answer than the range")
        self.is_kept = fields.get(b"connection", b"keep-alive").lower() == b"keep-alive"

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.close()

    def close(self) -> None:
        """End it."""
        self._transport.abort()


def parse(url: str) -> Address | None:
    """The address of a URL; None: its server is asked through a proxy."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = urllib.request.getproxies()
    if ({"all", parts.scheme} & set(proxies)) and not urllib.request.proxy_bypass(host):
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    return Address(parts.scheme, host, port, parts.netloc, target, url)
