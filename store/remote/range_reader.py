"""Byte ranges of objects, received from kept connections into memory that is used again.

The client of object stores puts each answer into new memory, which costs more processor time than
to receive it. Here is only the plain case: an address that needs no header of its own, and an
answer that is exactly the range. For everything else, and every fault, the client has to be asked.
Where a server sends requests for an object on, those that follow go straight there: servers count
what they send on, and refuse who asks too often.
"""

import re
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

__all__ = ["Answer", "RangeReader"]

URL_S = 600.0  # that an address is used; it is signed for longer
HEAD_BYTES = 16 * 1024
MEMORY_STEP = 512 * 1024
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
    """Asks for ranges of objects; used by one thread, which waits for many answers at once.

    Parameters
    ----------
    sign
        Key -> URL at which the object can be had without credentials, for an hour; None: there
        is none.
    attempt_s, stall_s
        Seconds that a request takes at most, and those without a byte of an answer.
    """

    def __init__(self, sign: Callable[[str], str | None], attempt_s: float, stall_s: float) -> None:
        self.sign = sign
        self.attempt_s = attempt_s
        self.stall_s = stall_s
        self._addresses: dict[str, tuple[float, Address | None]] = {}
        self._idle: list[Link] = []
        self._memory: list[memoryview] = []
        self._n_faults = 0
        self._paused_until = 0.0

    def ask(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> "list[Answer] | None":
        """Ask for byte ranges of an object; None: the client has to be asked."""
        address = self._address(key)
        if address is None:
            return None
        return [Answer(self, key, address, *both) for both in zip(starts, ends, strict=True)]

    def _address(self, key: str) -> Address | None:
        now = time.monotonic()
        if now < self._paused_until:
            return None
        until, address = self._addresses.get(key, (0.0, None))
        if until < now:
            url = self.sign(key)
            address = None if url is None else parse(url)
            if address is None:  # nor have others one: to ask again may take long
                self._paused_until = now + URL_S
            self._addresses[key] = now + URL_S, address
        return address

    def follow(self, key: str, where: str) -> None:
        """Ask for an object at the address to which its server sends requests, for a while."""
        until, address = self._addresses.get(key, (0.0, None))
        if address is not None:
            with suppress(ValueError):  # it is no address
                moved = parse(urljoin(address.url, where))
                if moved is not None and moved.scheme in ("https", address.scheme):
                    self._addresses[key] = until, moved

    def forget(self, key: str) -> None:
        """Have the address of an object be made again, as it may have ended."""
        self._addresses.pop(key, None)

    def take_link(self, address: Address) -> "Link":
        """A connection that nobody uses, or a new one; raises OSError."""
        while self._idle:
            link = self._idle.pop()
            if link.server == address[:3]:
                return link
            link.close()
        return Link(address, self)

    def give_link(self, link: "Link") -> None:
        """Keep a connection whose answer has come."""
        self._n_faults = 0
        if link.is_kept:
            self._idle.append(link)
        else:
            link.close()

    def drop_link(self, link: "Link | None") -> None:
        """End a connection whose answer is not as it should be."""
        if link is not None:
            link.close()
            if link.n_answers:  # a server may close a connection that was idle
                return
        self._n_faults += 1
        if self._n_faults >= MOST_FAULTS:
            self._n_faults = 0
            self._paused_until = time.monotonic() + PAUSE_S

    def take_memory(self, n_bytes: int) -> memoryview:
        """Memory of at least so many bytes, that which was used last if it is large enough."""
        if self._memory and len(self._memory[-1]) >= n_bytes:
            return self._memory.pop()
        return memoryview(bytearray(-(-n_bytes // MEMORY_STEP) * MEMORY_STEP))

    def give_memory(self, memory: memoryview) -> None:
        """Have memory be used again."""
        if len(self._memory) < MOST_MEMORY:
            self._memory.append(memory)

    @cached_property
    def context(self) -> ssl.SSLContext:
        """Of secure connections."""
        return ssl.create_default_context()


class Answer:
    """A request, and as much of its answer as has come.

    Attributes
    ----------
    data
        The bytes, until `release`; None: they are not here, and in the end, that the client has to
        be asked for them.
    """

    def __init__(
        self, reader: RangeReader, key: str, address: Address, start: int, stop: int
    ) -> None:
        self.start = start
        self.stop = stop
        self.data: memoryview | None = None
        self._reader = reader
        self._key = key
        self._began = self._came = time.monotonic()
        self._n = 0
        self._last = -1  # where the body ends, once the head is here
        self._memory = memoryview(b"")  # from when something comes
        self._link: Link | None = None
        try:
            self._link = reader.take_link(address)
            self._link.ask(address, start, stop)
        except OSError:
            self._fail()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self._link is None

    @property
    def wants_to_write(self) -> bool:
        """Whether it is the other end that has to take something first."""
        return self._link is not None and self._link.wants_to_write

    def fileno(self) -> int:
        """Of the connection, for a selector."""
        return -1 if self._link is None else self._link.socket.fileno()

    def go_on(self) -> bool:
        """Take what has come, without waiting; whether nothing more will come."""
        link = self._link
        try:
            while link is not None and link.is_ready() and not self._receive(link):
                pass
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except MovedError as moved:
            self._reader.follow(self._key, moved.where)
            self._end()
        except OSError:
            self._fail()
        return self.is_over

    def _receive(self, link: "Link") -> bool:
        """Receive once; whether it was the end."""
        if not len(self._memory):
            self._memory = self._reader.take_memory(HEAD_BYTES + self.stop - self.start)
        limit = HEAD_BYTES if self._last < 0 else self._last
        n = link.socket.recv_into(self._memory[self._n : limit])
        if not n:
            raise NotPlainError("the connection ended early")
        self._n += n
        self._came = time.monotonic()
        if self._last < 0:
            end = self._memory.obj.find(b"\r\n\r\n", 0, self._n)  # type: ignore[attr-defined]
            if end >= 0:
                link.check_head(bytes(self._memory[:end]), self.start, self.stop)
                self._last = end + 4 + self.stop - self.start
            elif self._n == HEAD_BYTES:
                raise NotPlainError("no end of the head")
        if self._last < 0 or self._n < self._last:
            return False
        if self._n > self._last:
            raise NotPlainError("more than was asked for")
        self.data = self._memory[self._last - (self.stop - self.start) : self._last]
        link.n_answers += 1
        self._link = None
        self._reader.give_link(link)
        return True

    def check_time(self) -> bool:
        """End it if it takes too long; whether nothing more will come."""
        now = time.monotonic()
        is_late = now > self._began + self._reader.attempt_s
        if not self.is_over and (is_late or now > self._came + self._reader.stall_s):
            self._fail()
        return self.is_over

    def release(self) -> None:
        """Have its memory be used again; an answer that is still to come is not waited for."""
        self._end()
        if len(self._memory):
            self.data = None
            self._reader.give_memory(self._memory)
            self._memory = memoryview(b"")

    def _end(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _fail(self) -> None:
        self._reader.forget(self._key)
        self._reader.drop_link(self._link)
        self._link = None


class Link:
    """A connection to a server, which never blocks.

    Attributes
    ----------
    n_answers
        Answers that came over it.
    is_kept
        Whether the server takes another request.
    wants_to_write
        Whether it waits for room to send.
    """

    def __init__(self, address: Address, reader: RangeReader) -> None:
        self.server = address[:3]
        self.n_answers = 0
        self.is_kept = True
        self.wants_to_write = True
        self._reader = reader
        self._host = address.host
        self._is_open = self._is_secret = False
        self._unsent = b""
        family, kind, protocol, _, where = resolve(address.host, address.port)
        self.socket = socket.socket(family, kind, protocol)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect_ex(where)

    def ask(self, address: Address, start: int, stop: int) -> None:
        """Send a request, now or when it can be; raises OSError."""
        lines = (
            f"GET {address.target} HTTP/1.1",
            f"Host: {address.name}",
            f"Range: bytes={start}-{stop - 1}",
            "Accept-Encoding: identity",
            "",
            "",
        )
        self._unsent = "\r\n".join(lines).encode()
        if self._is_open:
            self.is_ready()

    def is_ready(self) -> bool:
        """Go on until the request is sent; whether it is. Raises OSError."""
        if not self._unsent:
            return True
        try:
            if not self._is_open:
                self._open()
            if not self._is_secret and self.server[0] == "https":
                self.socket.do_handshake()  # type: ignore[attr-defined]
                self._is_secret = True
            self._unsent = self._unsent[self.socket.send(self._unsent) :]
            self.wants_to_write = bool(self._unsent)
        except (BlockingIOError, ssl.SSLWantWriteError):
            self.wants_to_write = True
        except ssl.SSLWantReadError:
            self.wants_to_write = False
        return not self._unsent

    def _open(self) -> None:
        """Note that the connection is there; raises OSError if it is not."""
        error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, "no connection")
        self.socket.getpeername()  # raises while it is not there yet
        self._is_open = True
        if self.server[0] == "https":
            self.socket = self._reader.context.wrap_socket(
                self.socket, server_hostname=self._host, do_handshake_on_connect=False
            )

    def check_head(self, head: bytes, start: int, stop: int) -> None:
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
            and (int(span[1]), int(span[2])) == (start, stop - 1)
            and fields.get(b"content-length") == b"%d" % (stop - start)
            and not any(name in fields for name in _HELD)
        )
        if not is_exact:
            raise NotPlainError("another answer than the range")
        self.is_kept = fields.get(b"connection", b"keep-alive").lower() == b"keep-alive"

    def close(self) -> None:
        """End it."""
        self.socket.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # it has no socket
            self.close()


@lru_cache
def resolve(host: str, port: int) -> tuple:
    """Where a server is; raises OSError."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]


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
