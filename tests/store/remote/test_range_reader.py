"""Ranges over plain connections: exactly the bytes, or the word that the client has to be asked."""

import asyncio
import socket
import ssl
import threading
from contextlib import suppress

import pytest
from web_server import certificate

from store.remote import range_reader
from store.remote.range_reader import HEAD_BYTES, MOST_FAULTS, RangeReader

DATA = bytes(range(256)) * 1000
PLAIN = (
    "HTTP/1.1 206 Partial Content\r\n"
    "Content-Range: bytes {a}-{b}/{all}\r\nContent-Length: {n}\r\n\r\n"
)


class Scripted:
    """A server that answers each request with what `answer` makes of its range.

    Attributes
    ----------
    n_links
        Connections that were made.
    """

    def __init__(self, answer, context: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.context = context
        self.n_links = 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.socket.getsockname()[1]}/x"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self.socket.accept()
            except OSError:
                return
            self.n_links += 1
            threading.Thread(target=self._talk, args=(link,), daemon=True).start()

    def _talk(self, link: socket.socket) -> None:
        if self.context is not None:
            try:
                link = self.context.wrap_socket(link, server_side=True)
            except OSError:  # who is not trusted
                return
        with suppress(OSError), link, link.makefile("rb") as lines:  # the other end may leave
            for line in lines:
                if line.startswith(b"Range:"):
                    first, last = map(int, line.split(b"=")[1].split(b"-"))
                if line == b"\r\n" and not self.answer(link, first, last + 1):
                    return


def send_plain(link, start, stop, head=PLAIN, body=None):
    """What a server of objects answers, or with another head or body."""
    data = DATA[start:stop]
    text = head.format(a=start, b=stop - 1, n=len(data), all=len(DATA))
    link.sendall(text.encode() + (data if body is None else body(data)))
    return True


@pytest.fixture
def serve():
    servers = []

    def start(answer, context=None) -> Scripted:
        servers.append(Scripted(answer, context))
        return servers[-1]

    yield start
    for server in servers:
        server.socket.close()


@pytest.fixture
def runner():
    with asyncio.Runner() as one:
        yield one


@pytest.fixture
def reader(runner):
    """Makes readers of one address."""
    readers = []

    def make(url, stall_s=1.0, attempt_s=5.0) -> RangeReader:
        readers.append(RangeReader(lambda key: url, attempt_s, stall_s))
        return readers[-1]

    async def close() -> None:
        for one in readers:
            one.close()

    yield make
    runner.run(close())


@pytest.fixture
def read(runner):
    """The bytes of ranges that are asked for at once; None: the client has to be asked."""

    async def get(one, *spans):
        found = await asyncio.gather(*(one.get("key", *span) for span in spans))
        values = [data and bytes(data) for data in found]
        for data in filter(None, found):
            one.release(data)
        return values

    return lambda *args: runner.run(get(*args))


def test_ranges_are_exactly_those_and_connections_are_kept(serve, reader, read):
    """Long and short ones, asked for at once, again and again."""
    server = serve(send_plain)
    one = reader(server.url)
    spans = [(0, 1), (5, 200_000), (255_999, 256_000)]
    for _ in range(3):
        assert read(one, *spans) == [DATA[start:stop] for start, stop in spans]
    assert server.n_links == 3


def test_connections_to_each_of_two_servers_are_kept(serve, reader, runner):
    servers = {key: serve(send_plain) for key in "ab"}
    one = reader(None)
    one.sign = lambda key: servers[key].url
    for key in "abab":
        assert bytes(runner.run(one.get(key, 0, 10))) == DATA[:10]
    assert [server.n_links for server in servers.values()] == [1, 1]


def test_what_nobody_receives_is_not_taken_for_another_answer(serve, reader, read, runner):
    """Answers that are given up before they come."""
    one = reader(serve(send_plain).url)
    assert read(one, (0, 10), (10, 20)) == [DATA[:10], DATA[10:20]]

    async def give_up() -> None:
        tasks = [asyncio.ensure_future(one.get("key", i, i + 10)) for i in (0, 100, 200)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()

    runner.run(give_up())
    assert read(one, (300, 310), (400, 410)) == [DATA[300:310], DATA[400:410]]


UNUSUAL = {
    "whole": lambda link, a, b: send_plain(link, 0, len(DATA), PLAIN.replace("206", "200")),
    "another range": lambda link, a, b: send_plain(link, a + 1, b + 1),
    "shorter": lambda link, a, b: send_plain(link, a, b - 1),
    "cut": lambda link, a, b: send_plain(link, a, b, body=lambda data: data[:-1]) and False,
    "longer": lambda link, a, b: send_plain(link, a, b, body=lambda data: data + b"x"),
    "moved": lambda link, a, b: link.sendall(
        b"HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n"
    ),
    "moved to no address": lambda link, a, b: link.sendall(
        b"HTTP/1.1 302 Found\r\nLocation: http://[:x/\r\nContent-Length: 0\r\n\r\n"
    ),
    "in chunks": lambda link, a, b: send_plain(
        link, a, b, PLAIN.replace("\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\n")
    ),
    "zipped": lambda link, a, b: send_plain(
        link, a, b, PLAIN.replace("\r\n\r\n", "\r\nContent-Encoding: gzip\r\n\r\n")
    ),
    "no length": lambda link, a, b: send_plain(
        link, a, b, PLAIN.replace("Content-Length", "X-Length")
    ),
    "endless head": lambda link, a, b: link.sendall(b"HTTP/1.1 206 X\r\n" + b"a" * 2 * HEAD_BYTES),
    "noise": lambda link, a, b: link.sendall(bytes(300) + b"\r\n\r\n"),
    "silence": lambda link, a, b: True,
    "gone": lambda link, a, b: False,
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_the_client(serve, name, reader, read):
    """One such answer; the next, which is plain, is read."""
    answers = [UNUSUAL[name], send_plain]
    server = serve(lambda *args: answers.pop(0)(*args))
    one = reader(server.url, stall_s=0.2)
    assert read(one, (1000, 1200)) == [None]
    assert read(one, (1000, 1200)) == [DATA[1000:1200]]


def test_an_answer_that_drips_ends_in_time(serve, reader, read):
    """Each byte in time, all of them too late."""

    def drip(link, start, stop):
        head = PLAIN.format(a=start, b=stop - 1, n=stop - start, all=len(DATA))
        for i in range(len(head)):
            link.sendall(head[i : i + 1].encode())
            threading.Event().wait(0.02)

    assert read(reader(serve(drip).url, attempt_s=0.3), (0, 100)) == [None]


def test_a_server_that_fails_is_not_asked_for_a_while(serve, monkeypatch, reader, read):
    """Then it is tried again."""
    server = serve(UNUSUAL["whole"])
    one = reader(server.url)
    for _ in range(MOST_FAULTS):
        assert read(one, (0, 10)) == [None]
    assert read(one, (0, 10)) == [None]
    assert server.n_links == MOST_FAULTS
    server.answer = send_plain
    now = range_reader.time.monotonic()
    monkeypatch.setattr(range_reader.time, "monotonic", lambda: now + range_reader.PAUSE_S)
    assert read(one, (0, 10)) == [DATA[:10]]


def send_on(where):
    """A server that sends every request on."""

    def answer(link, start, stop):
        head = f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n"
        link.sendall(head.encode())
        return True

    return answer


def test_a_server_that_sends_requests_on_is_asked_once(serve, reader, read):
    """Those that follow go there; when that address has ended, it is asked for another."""
    there = serve(send_plain)
    origin = serve(send_on(there.url))
    one = reader(origin.url)
    assert read(one, (0, 10)) == [None]
    for start in range(5):
        assert read(one, (start, 200_000)) == [DATA[start:200_000]]
    assert (origin.n_links, there.n_links) == (1, 1)
    there.answer = lambda link, a, b: link.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
    assert read(one, (0, 10), (10, 20)) == [None, None]
    origin.answer = send_plain
    assert read(one, (0, 10)) == [DATA[:10]]


def test_from_a_secure_server_nobody_is_sent_to_another(serve, tmp_path, monkeypatch, reader, read):
    context = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    plain = serve(send_plain)
    one = reader(serve(send_on(plain.url), context).url)
    for _ in range(2):
        assert read(one, (0, 10)) == [None]
    assert plain.n_links == 0


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
def test_behind_a_proxy_the_client_is_asked(serve, monkeypatch, variable, reader, read):
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    assert read(reader(serve(send_plain).url), (0, 10)) == [None]
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert read(reader(serve(send_plain).url), (3, 7)) == [DATA[3:7]]


def test_without_an_address_the_client_is_asked(reader, read):
    assert read(reader(None), (0, 10)) == [None]


def test_secure_connections_are_read_too(serve, tmp_path, monkeypatch, reader, read):
    """If the server is trusted; one that falls silent is left in time."""
    context = certificate(tmp_path)
    assert read(reader(serve(send_plain, context).url), (0, 10)) == [None]
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    one = reader(serve(send_plain, context).url)
    spans = [(0, 1), (5, 200_000)]
    for _ in range(2):
        assert read(one, *spans) == [DATA[start:stop] for start, stop in spans]
    silent = serve(UNUSUAL["silence"], context)
    assert read(reader(silent.url, stall_s=0.2), (0, 10)) == [None]


def test_where_nobody_listens_the_client_is_asked(reader, read):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert read(reader(f"http://127.0.0.1:{port}/x"), (0, 10)) == [None]
    assert read(reader("http://no.such.name.invalid/x"), (0, 10)) == [None]
