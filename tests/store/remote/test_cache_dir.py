"""A cache directory is of one user: another's is not believed, and its socket not reached."""

import os
import socket
import subprocess
import sys

import pytest

from store import SchemaError, TraceStore, VersionError
from store.remote.cache.location import SOCKET_FILE, prepare_dir

URL = "s3://bucket/traces.zarr"
OTHER = 54321  # a user that nobody is
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
REACH = """
import os, socket, sys
os.seteuid(int(sys.argv[1]))
for do, name in ((socket.socket.connect, sys.argv[2]), (socket.socket.bind, "other")):
    try:
        do(socket.socket(socket.AF_UNIX), name)
    except OSError as error:
        print(type(error).__name__)
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


@pytest.fixture
def empty(tmp_path):
    """A directory that was there before."""
    made = tmp_path / "empty"
    made.mkdir(0o755)
    return made


def test_it_is_made_for_one_user(empty, cache_dir):
    """An empty directory that was there as well."""
    prepare_dir(empty)
    for folder in (empty, cache_dir):
        assert folder.stat().st_mode & 0o777 == 0o700
        prepare_dir(folder)


@as_root
def test_one_of_another_user_is_refused(empty, cache_dir):
    """Whatever is in it; and is theirs as before."""
    for folder in (cache_dir, empty):
        os.chown(folder, OTHER, -1)
        open_refused(folder, f"found one of user {OTHER}")
    assert empty.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755])
def test_one_that_others_may_use_is_refused(cache_dir, mode):
    """The cure is named."""
    cache_dir.chmod(mode)
    open_refused(cache_dir, f"mode {mode:o}.*chmod 700")


@as_root
def test_other_users_do_not_reach_the_socket(cache_dir):
    """Nor can they put one of their own into the directory, so whoever listens is of this user."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(cache_dir / SOCKET_FILE))
        listener.listen()
        command = [sys.executable, "-c", REACH, str(OTHER), SOCKET_FILE]
        done = subprocess.run(command, cwd=cache_dir, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["PermissionError", "PermissionError"]


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_one_that_holds_something_else_is_refused(tmp_path, cache_dir, mode):
    """Or is of another version, or no directory. No change of its mode would help."""
    (tmp_path / "other").mkdir(mode)
    (tmp_path / "other" / "thesis.tex").write_text("x")
    open_refused(tmp_path / "other", r"thesis\.tex")
    (tmp_path / "file").write_text("x")
    with pytest.raises(SchemaError, match="can be written"):
        prepare_dir(tmp_path / "file")
    (cache_dir / "trace-store-cache.json").write_text('{"version": 99}')
    with pytest.raises(VersionError, match="99"):
        prepare_dir(cache_dir)
