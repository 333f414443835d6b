"""Where `python -m store.remote.cache.fetcher DIRECTORY` begins.

Readers start it; the one that gets the lock stays, listens on a socket in the directory, and ends
when nobody has been connected for a while. What it leaves when it is killed is a socket's name and
files that the next one counts and checks.
"""

import fcntl
import gc
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from store.remote.cache.fetcher.server import Server, listen
from store.remote.cache.location import LOCK_FILE


def main(argv: list[str]) -> int:
    """Become the fetching process, unless there is one."""
    directory = Path(argv[0])
    lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    listener = listen(directory)
    server = Server(directory, listener)
    # the lock goes on in the child
    if os.fork():
        os._exit(0)  # at once: a reader waits, and the interpreter takes .1 s to end
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # each thread of a reader takes one
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # what is imported stays: to look through it again and again takes a tenth
    gc.freeze()
    # at the end the lock goes too: not after threads that still wait for an answer
    server.run(then=lambda: os._exit(0))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as error:
        sys.exit(f"{error.filename or sys.argv[1]}: {error.strerror}")
