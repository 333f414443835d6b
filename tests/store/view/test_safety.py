"""Whom the server of the page answers: this machine alone, with the token, whole requests."""

import asyncio
import socket

import pytest
from small import complaint
from view_traces import ADDRESS, TOKEN, client_of

pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")

from store.errors import SchemaError
from store.view.safety import HEADERS, check_request
from store.view.serve import read_token, redirect_file

FOREIGN = ['prefs={"theme": "dark"}', "foo=bar baz", "theme[dark]=1", "noequals", "é=1", "path=/"]


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8000"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "127.0.0.1:80@evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),  # another port of this machine
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": ADDRESS}, 200),
        ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, 200),
        ({"Host": "localhost:1234"}, 200),  # ssh -L
        ({"Host": "[::1]:8000"}, 200),
    ],
)
def test_other_hosts_and_origins(client, headers, status):
    """A foreign name that was bound to 127.0.0.1, and pages of others."""
    cookie = {"Cookie": f"view={TOKEN}"}
    assert client.get("/api/stores", headers=headers | cookie).status_code == status


def test_the_token_becomes_a_cookie(traces_path):
    """That scripts and other sites cannot use; without the token nothing is handed out, not even
    the page."""
    client = client_of([traces_path], token=None)
    for path in ("/", "/page/main.js", "/api/stores", "/api/0/1/table"):
        for token in ({}, {"token": ""}, {"token": "wrong"}, {"token": "ü"}):
            answer = client.get(path, params=token)
            assert answer.status_code == 401
            assert "set-cookie" not in answer.headers
    answer = client.get("/", params={"token": TOKEN})
    assert answer.status_code == 200
    assert answer.headers["set-cookie"] == f"view={TOKEN}; Path=/; HttpOnly; SameSite=Strict"
    assert client.get("/api/stores").status_code == 200


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


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_anything_but_reading(client, method):
    """Whatever the path."""
    for path in ("/api/stores", "/"):
        assert client.request(method, path, headers={"Origin": ADDRESS}).status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/page/../server.py",
        "/page/%2e%2e/server.py",
        "/page/..%2fserver.py",
        "/page/%2e%2e%2fserver.py",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/page/",
        "/page/nothing.js",
        "/../../setup.cfg",
        "/api/0/1/trace/../../../../etc/passwd",
        *(f"/api/{number}/1/table" for number in ("1" * 5000, "-1")),
        *(f"/api/0/{number}/table" for number in ("1" * 5000, "-1")),
        *(f"/api/0/1/trace/{number}" for number in ("1" * 5000, "-1")),
    ],
    ids=lambda path: path[:40],
)
def test_other_files(client, path):
    """Only those of the page's folder have a name here; numbers of 5000 digits and negative ones
    are no addresses."""
    answer = client.get(path)
    assert answer.status_code == 404
    assert b"import" not in answer.content
    assert b"\n" not in answer.content


def test_every_answer_is_guarded(client):
    """Refusals and errors too."""
    for path in ("/", "/page/main.js", "/api/stores", "/api/9/1/table", "/nothing"):
        answer = client.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, (path, name)


def test_what_is_not_there(client, traces_path, golden_lines):
    """In one line that the page shows."""

    def refuse(address):
        answer = client.get(address)
        assert 400 <= answer.status_code < 500
        return answer.json()["error"].replace(str(traces_path), "STORE")

    golden_lines("not_there.txt", refuse)


def test_a_filter_of_100_000_characters(client):
    """The URL is not even parsed."""
    refusal = check_request("GET", {"host": "localhost"}, TOKEN, TOKEN, "view", 100_000)
    assert refusal.status == 414
    assert client.get("/api/0/1/table?filter=" + "(" * 10_000).status_code == 414
    said = client.get("/api/0/1/table?filter=" + "(" * 5000).json()["error"]
    assert "at most 1000" in said


def test_a_browser_is_led_to_the_page_by_a_private_file():
    """It is there as long as the server."""
    with redirect_file('http://127.0.0.1:1/?token=a"&b#row=1') as path:
        assert path.stat().st_mode & 0o777 == 0o600
        assert "token=a&quot;&amp;b#row=1" in path.read_text()
    assert not path.exists()


@pytest.mark.parametrize(
    "half", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n", b"POST / HTTP/1.1\r\nHost: a\r\n"]
)
def test_half_a_request_is_not_waited_for(run_app, monkeypatch, half):
    """Its connection is closed; a whole one is answered however long that takes."""
    monkeypatch.setattr("store.view.serve.REQUEST_S", 0.1)

    async def app(scope, receive, send):
        await asyncio.sleep(0.2)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    with run_app(app) as address:
        place = ("127.0.0.1", int(address.rpartition(":")[2]))
        with socket.create_connection(place, timeout=10) as link:
            link.sendall(half)
            assert link.recv(99) == b""
        with socket.create_connection(place, timeout=10) as link:
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
    assert "chmod 600" in complaint(SchemaError, read_token, path)
    path.chmod(0o600)
    path.write_text("short")
    assert "expected 32 to 200" in complaint(SchemaError, read_token, path)
