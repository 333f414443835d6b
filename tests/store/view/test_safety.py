"""The cookie among those of other servers, and the file that opens the browser."""

import asyncio
import socket
import threading
import time

import pytest

pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")

import uvicorn

from store.errors import SchemaError
from store.view.safety import check_request
from store.view.serve import configure, read_token, redirect_file

FOREIGN = ['prefs={"theme": "dark"}', "foo=bar baz", "theme[dark]=1", "noequals", "é=1", "path=/"]


@pytest.mark.parametrize("foreign", [*FOREIGN, "; ".join(FOREIGN), "view2=x", " ;;=;"])
def test_cookies_of_other_servers_do_not_matter(foreign):
    """Whatever their form, before ours and after it; alone they open nothing."""

    def status(cookies):
        headers = {"host": "127.0.0.1:80", "cookie": cookies}
        refusal = check_request("GET", headers, None, "right", "view")
        return 200 if refusal is None else refusal.status

    assert status(f"{foreign}; view=right") == 200
    assert status(f"view=right; {foreign}") == 200
    assert status(f"{foreign}; view=wrong") == 401
    assert status(foreign) == 401


def test_a_browser_is_led_to_the_page_by_a_private_file():
    """It is there as long as the server."""
    with redirect_file('http://127.0.0.1:1/?token=a"&b#row=1') as path:
        assert path.stat().st_mode & 0o777 == 0o600
        assert "token=a&quot;&amp;b#row=1" in path.read_text()
    assert not path.exists()


def connect(server):
    """A connection to a server that serves in a thread."""
    return socket.create_connection(server.servers[0].sockets[0].getsockname(), timeout=10)


@pytest.fixture
def server(monkeypatch):
    """A server that waits a moment for the rest of a request."""
    monkeypatch.setattr("store.view.serve.REQUEST_S", 0.2)

    async def app(scope, receive, send):
        await asyncio.sleep(0.5)  # an answer may take longer
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    config = configure(app)
    config.port, config.lifespan = 0, "off"
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize(
    "half", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n", b"POST / HTTP/1.1\r\nHost: a\r\n"]
)
def test_half_a_request_is_not_waited_for(server, half):
    """Its connection is closed, also after a whole one."""
    with connect(server) as link:
        link.sendall(half)
        assert link.recv(99) == b""


def test_a_whole_request_is_answered_however_long_it_takes(server):
    with connect(server) as link:
        link.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: link.recv(99), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"done" in answer


def test_a_token_of_a_file_stays(tmp_path):
    """It is made for its owner alone; a file that others read, or without a token, is refused."""
    path = tmp_path / "new" / "token"
    token = read_token(path)
    assert read_token(path) == token
    assert len(token) >= 32
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(SchemaError, match="chmod 600"):
        read_token(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(SchemaError, match="expected 32 to 200"):
        read_token(path)


def test_a_bookmark_lives_longer_than_the_server(browser, tmp_path, traces_path, free_port, served):
    """On the same port with the same file; without the token in its address."""
    words = (traces_path, "--port", free_port, "--token-file", tmp_path / "token")
    with served(words) as address:
        browser.open(f"{address}#trace=trace-09")
        bookmark = browser.evaluate("location.href")
        assert "token" not in bookmark
    with served(words):
        browser.open(bookmark)
        browser.wait_for_text("#panel h2", "trace-09")


@pytest.fixture
def free_port():
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        return link.getsockname()[1]
