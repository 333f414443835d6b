"""Byte ranges of objects, received from kept connections into memory that is used again.

The client of object stores puts each answer into new memory, which costs more processor time than
to receive it. Here is only the plain case: an address that needs no header of its own, and an
answer that is exactly the range. For everything else, and every fault, the client has to be asked.
"""

import re
import socket
import ssl
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple
from urllib.parse import urlsplit

__all__ = ["RangeReader"]

URL_S = 600.0  # that an address is used; it is signed for longer
HEAD_BYTES = 16 * 1024
CONNECT_S = 4.0
MOST_FAULTS = 3  # in a row, then none is tried for a while
PAUSE_S = 60.0
_RANGE = re.compile(rb"bytes (\d+)-(\d+)/\d+")
_HELD = (b"transfer-encoding", b"content-encoding")  # the body is not the bytes


class Address(NamedTuple):
    """What a URL says: the server, and what to ask it for."""

    scheme: str
    host: str
    port: int
    name: str  # of the server, as the request has it
    target: str


class NotPlainError(OSError):
    """An answer that is not exactly what was asked for."""


class RangeReader:
    """Reads ranges of objects; for many threads, each of which has its own connections.

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
        self._threads = threading.local()
        self._n_faults = 0
        self._paused_until = 0.0

    def read(
        self, key: str, starts: Sequence[int], ends: Sequence[int]
    ) -> Iterator[memoryview | None]:
        """Ask for byte ranges of an object, now; the answers are received as they are taken.

        They are taken in the thread that asked.

        Yields
        ------
        The bytes of each, valid until another answer is taken; None: the client has to be asked
        for it.
        """
        address = self._address(key)
        links = [self._ask(address, *both) for both in zip(starts, ends, strict=True)]
        return self._answers(links, starts, ends)

    def _answers(
        self, links: "list[Link | None]", starts: Sequence[int], ends: Sequence[int]
    ) -> Iterator[memoryview | None]:
        try:
            for i, link in enumerate(links):
                links[i] = None
                yield self._receive(link, starts[i], ends[i])
        finally:  # what nobody receives any more
            for link in filter(None, links):
                link.close()

    def is_usual(self, key: str) -> bool:
        """Whether objects can be had in this way, as far as is known."""
        return self._address(key) is not None

    def _address(self, key: str) -> Address | None:
        now = time.monotonic()
        if now < self._paused_until:
            return None
        until, address = self._addresses.get(key, (0.0, None))
        if until < now:
            url = self.sign(key)
            address = None if url is None else parse(url)
            self._addresses[key] = now + URL_S, address
        return address

    def _ask(self, address: Address | None, start: int, stop: int) -> "Link | None":
        """Send a request; None: it cannot be sent."""
        if address is None or start >= stop:
            return None
        idle: list[Link] = self._threads.__dict__.setdefault("links", [])
        link = None
        try:
            while link is None and idle:
                link = idle.pop()
                if link.server != address[:3]:
                    link.close()
                    link = None
            link = link or Link(address, self.stall_s, self.context)
            link.ask(address, start, stop, time.monotonic() + self.attempt_s)
            return link
        except OSError:
            self._count_fault(link)
            return None

    def _receive(self, link: "Link | None", start: int, stop: int) -> memoryview | None:
        if link is None:
            return None
        try:
            found = link.receive(start, stop, self._memory(HEAD_BYTES + stop - start))
        except OSError:
            self._count_fault(link)
            return None
        self._n_faults = 0
        if link.is_kept:
            self._threads.links.append(link)
        else:
            link.close()
        return found

    def _count_fault(self, link: "Link | None") -> None:
        if link is not None:
            link.close()
            if link.n_answers:  # a server may close a connection that was idle
                return
        self._n_faults += 1
        if self._n_faults >= MOST_FAULTS:
            self._n_faults = 0
            self._paused_until = time.monotonic() + PAUSE_S

    def _memory(self, n_bytes: int) -> memoryview:
        """This thread's memory, at least so large."""
        memory: memoryview = self._threads.__dict__.get("memory", memoryview(b""))
        if len(memory) < n_bytes:
            memory = self._threads.memory = memoryview(bytearray(n_bytes))
        return memory

    @cached_property
    def context(self) -> ssl.SSLContext:
        """Of secure connections."""
        return ssl.create_default_context()


class Link:
    """A connection to a server.

    Attributes
    ----------
    n_answers
        Answers that came over it.
    is_kept
        Whether the server takes another request.
    """

    def __init__(self, address: Address, stall_s: float, context: ssl.SSLContext) -> None:
        self.server = address[:3]
        self.n_answers = 0
        self.is_kept = True
        self.deadline = 0.0
        self.socket = socket.create_connection((address.host, address.port), CONNECT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.flags: int = 0
        if address.scheme == "https":
            self.socket = context.wrap_socket(self.socket, server_hostname=address.host)
            self.socket.settimeout(stall_s)
            return
        # the kernel waits, also for all of an answer: in Python it would be asked for each part
        self.flags = socket.MSG_WAITALL
        self.socket.settimeout(None)
        seconds, rest = divmod(stall_s, 1)
        limit = struct.pack("ll", int(seconds), int(rest * 1e6))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def ask(self, address: Address, start: int, stop: int, deadline: float) -> None:
        """Send a request, whose answer is here by the deadline; raises OSError."""
        self.deadline = deadline
        lines = (
            f"GET {address.target} HTTP/1.1",
            f"Host: {address.name}",
            f"Range: bytes={start}-{stop - 1}",
            "Accept-Encoding: identity",
            "",
            "",
        )
        self.socket.sendall("\r\n".join(lines).encode())

    def receive(self, start: int, stop: int, memory: memoryview) -> memoryview:
        """The bytes that were asked for, in `memory`; raises OSError."""
        n = 0
        end = -1
        while end < 0:
            n += self._some(memory[n:HEAD_BYTES], 0)
            end = memory.obj.find(b"\r\n\r\n", 0, n)  # type: ignore[attr-defined]
        self._check_head(bytes(memory[:end]).lower(), start, stop)
        first = end + 4
        last = first + stop - start
        while n < last:
            n += self._some(memory[n:last], self.flags)
        if n > last:
            raise NotPlainError("more than was asked for")
        self.n_answers += 1
        return memory[first:last]

    def _check_head(self, head: bytes, start: int, stop: int) -> None:
        status, *lines = head.split(b"\r\n")
        fields = {name: value.strip() for name, _, value in (one.partition(b":") for one in lines)}
        span = _RANGE.fullmatch(fields.get(b"content-range", b""))
        is_exact = (
            status.startswith(b"http/1.1 206")
            and span is not None
            and (int(span[1]), int(span[2])) == (start, stop - 1)
            and fields.get(b"content-length") == b"%d" % (stop - start)
            and not any(name in fields for name in _HELD)
        )
        if not is_exact:
            raise NotPlainError("another answer than the range")
        self.is_kept = fields.get(b"connection", b"keep-alive") == b"keep-alive"

    def _some(self, memory: memoryview, flags: int) -> int:
        """Receive into memory; raises OSError if nothing comes in time."""
        if time.monotonic() > self.deadline or not len(memory):
            raise NotPlainError("no end")
        n = self.socket.recv_into(memory, len(memory), flags)
        if not n:
            raise NotPlainError("the connection ended early")
        return n

    def close(self) -> None:
        """End it."""
        self.socket.close()

    def __del__(self) -> None:  # of a thread that has ended
        with suppress(AttributeError):  # it was never connected
            self.close()


def parse(url: str) -> Address | None:
    """The address of a URL; None: its server is asked through a proxy."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = urllib.request.getproxies()
    if ({"all", parts.scheme} & set(proxies)) and not urllib.request.proxy_bypass(host):
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    return Address(parts.scheme, host, port, parts.netloc, target)
