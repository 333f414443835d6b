"""A cache directory is of one user: another's is not believed, nor are other users' processes."""

import contextlib
import os
import socket
import subprocess
import sys
import threading

import pytest

from store import SchemaError, TraceStore
from store.remote.cache_dir import below, check_peer, prepare_dir
from store.remote.messages import receive, send
from store.remote.mirror import SOCKET_FILE

URL = "s3://bucket/traces.zarr"
OTHER = 54321  # a user that nobody is
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
LISTEN = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.setresuid(int(sys.argv[2]), int(sys.argv[2]), 0)
listener.listen()
print("listening", flush=True)
sys.stdin.read()
"""
CONNECT = """
import os, socket, sys
os.seteuid(int(sys.argv[1]))
link = socket.socket(socket.AF_UNIX)
link.connect("socket")
sys.stdin.read()
"""


@pytest.fixture
def cache_dir(tmp_path):
    made = tmp_path / "cache"
    prepare_dir(made)
    return made


def open_refused(cache_dir, words):
    with pytest.raises(SchemaError, match=words) as caught:
        TraceStore.open(URL, 10**8, cache_dir=cache_dir)
    assert str(cache_dir) in str(caught.value)
    assert "choose another" in str(caught.value)


def test_it_is_made_for_one_user(tmp_path, cache_dir):
    """An empty directory that was there as well."""
    empty = tmp_path / "empty"
    empty.mkdir(0o755)
    prepare_dir(empty)
    for folder in (empty, cache_dir):
        assert folder.stat().st_mode & 0o777 == 0o700
        prepare_dir(folder)


@as_root
def test_one_of_another_user_is_refused(cache_dir):
    """Whatever is in it."""
    os.chown(cache_dir, OTHER, -1)
    open_refused(cache_dir, f"found one of user {OTHER}")


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755])
def test_one_that_others_may_use_is_refused(cache_dir, mode):
    """The cure is named."""
    cache_dir.chmod(mode)
    open_refused(cache_dir, f"mode {mode:o}.*chmod 700")


@as_root
def test_a_process_of_another_user_is_not_asked(cache_dir):
    """One that listens where the fetching process should."""
    command = [sys.executable, "-c", LISTEN, str(cache_dir / SOCKET_FILE), str(OTHER)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert "listening" in process.stdout.readline()
        open_refused(cache_dir, f"found one of user {OTHER}")


@as_root
def test_a_process_of_another_user_is_not_answered(tmp_path):
    """Who connects is looked at as well."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    listener.listen()
    (tmp_path / "socket").chmod(0o777)
    with contextlib.ExitStack() as stack:
        stack.callback(listener.close)
        tmp_path.chmod(0o711)
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", CONNECT, str(OTHER)], stdin=subprocess.PIPE, cwd=tmp_path
            )
        )
        link, _ = listener.accept()
        stack.callback(link.close)
        with pytest.raises(SchemaError, match=f"found one of user {OTHER}"):
            check_peer(link, tmp_path)
        process.stdin.close()


def test_a_path_that_leads_out_is_refused(cache_dir, tmp_path):
    """By its name, by dots, or by a link."""
    (cache_dir / "link").symlink_to(tmp_path)
    assert below(cache_dir, str(cache_dir / "mirrors" / "x")) == cache_dir / "mirrors" / "x"
    for path in ("/etc", f"{cache_dir}/../x", f"{cache_dir}/link/x", f"{cache_dir}2/x"):
        with pytest.raises(SchemaError, match="expected a path below it"):
            below(cache_dir, path)


def test_an_answer_with_a_path_outside_is_refused(cache_dir, tmp_path):
    """A reader does not open what it is told to."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(cache_dir / SOCKET_FILE))
    listener.listen()

    def answer():
        link, _ = listener.accept()
        with link:
            receive(link)
            root = {"root": str(tmp_path), "digest": "0", "portion_bytes": 1}
            send(link, {**root, "session": "1", "landing": 1})

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(SchemaError, match="expected a path below it"):
        TraceStore.open(URL, 10**8, cache_dir=cache_dir)
    thread.join()
    listener.close()
