"""What has to be true of the workers of a cluster before parts are given to them."""

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from store.errors import NotFoundError, SchemaError
from store.extras import version_text

__all__ = [
    "check_answers",
    "check_reachable",
    "launch_folder",
    "make_probe",
    "one_line",
    "refuse_address",
    "refuse_busy",
]

SHORTEST_S = 0.01  # to wait; 0 would not wait at all
FIRST_BYTES = 9  # of an answer: the header of a frame of HTTP/2


def make_probe() -> Callable[[str], str]:
    """Return a function for workers, which says the version of this package that they have.

    It stands in a function, so that it travels as code: a worker without this package could not
    look it up.
    """

    def probe(folder: str) -> str:
        import os

        try:
            from store.extras import version_text
        except ImportError as error:
            return f"no package: {error}"
        if not os.path.isdir(folder):  # noqa: PTH112 - it knows nothing of our imports
            return f"no folder {folder}"
        return version_text()

    return probe


def check_answers(answers: Mapping[str, object]) -> None:
    """Raise NotFoundError for a worker that cannot run parts as this process would; pure.

    `answers` has what the probe returned on each worker, or the exception that ended it there.
    """
    expected = version_text()
    for worker, found in answers.items():
        if found == expected:
            continue
        if isinstance(found, str) and found.startswith("no folder"):
            raise NotFoundError(
                f"worker {worker}: expected the folder of the launch, found {found}; parts need a "
                "file system that all workers share"
            )
        raise NotFoundError(
            f"worker {worker}: expected {expected}, found {one_line(found)}; install the same "
            "version there"
        )


def check_reachable(
    address: str, timeout_s: float, greeting: bytes = b"", answer: bytes = b""
) -> None:
    """Raise NotFoundError unless a server listens, and answers a greeting.

    `address` is HOST:PORT, and `timeout_s` for connection and answer together. Without a greeting
    nothing is sent, and no answer expected; else `answer` must be in the first bytes that come
    back.
    """
    end_s = time.monotonic() + timeout_s
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise SchemaError(f"--address: expected HOST:PORT, found {address!r:.100}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as connection:
            if not greeting:
                return
            connection.settimeout(max(SHORTEST_S, end_s - time.monotonic()))
            connection.sendall(greeting)
            found = connection.recv(FIRST_BYTES)
    except OSError as error:
        raise refuse_address(address, error) from error
    if answer not in found:
        raise refuse_address(address, f"{found!r:.60}")


def refuse_address(address: str, found: object) -> NotFoundError:
    """Return the error of an address that does not answer as a cluster."""
    return NotFoundError(
        f"--address {address}: expected a cluster, found no answer ({one_line(found)}); check "
        "that it runs and can be reached"
    )


def refuse_busy(engine: str, found: str) -> SchemaError:
    """Return the error of a cluster where parts would only wait."""
    return SchemaError(
        f"{engine}: expected free workers, found {found}; wait for the work on it, or add workers"
    )


def one_line(found: object) -> str:
    """What was found as one line, cut; the name of its type if it says nothing."""
    return " ".join(str(found).split())[:200] or type(found).__name__


def launch_folder() -> str:
    """Return the folder that workers have to see as well."""
    return str(Path.cwd())
