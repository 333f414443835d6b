"""Messages between readers and the fetching process of a node: JSON and numbers over a socket.

Nothing is unpickled, and what a length says is capped before memory is taken for it.
"""

import json
import socket
import struct
from typing import Any

import numpy as np

__all__ = ["PROTOCOL", "receive", "send"]

PROTOCOL = 4  # of these messages, and of the files in a cache directory
HEAD = struct.Struct("<II")  # bytes of JSON, and of the numbers that follow
MAX_JSON = 1024 * 1024
MAX_NUMBERS = 256 * 1024 * 1024


def send(link: socket.socket, message: dict[str, Any], numbers: np.ndarray | None = None) -> None:
    """Send one message, with int64 numbers of any shape, which arrive flat."""
    text = json.dumps(message).encode()
    data = b"" if numbers is None else np.ascontiguousarray(numbers, "<i8").tobytes()
    link.sendall(HEAD.pack(len(text), len(data)) + text + data)


def receive(link: socket.socket) -> tuple[dict[str, Any], np.ndarray]:
    """The next message, and its numbers, int64 `(n,)`.

    Raises
    ------
    ConnectionError
        The other end has gone, or speaks another language.
    TimeoutError
        Nothing came within the socket's timeout.
    """
    n_text, n_data = HEAD.unpack(_exactly(link, HEAD.size))
    if n_text > MAX_JSON or n_data > MAX_NUMBERS or n_data % 8:
        raise ConnectionError(f"a message of {n_text} and {n_data} bytes")
    text = _exactly(link, n_text)
    numbers = np.frombuffer(_exactly(link, n_data), "<i8")
    try:
        message = json.loads(text)
    except ValueError as error:
        raise ConnectionError("a message that is no JSON") from error
    if not isinstance(message, dict):
        raise ConnectionError("a message that is no object")
    return message, numbers


def _exactly(link: socket.socket, n: int) -> bytearray:
    data = bytearray(n)
    view = memoryview(data)
    while len(view):
        got = link.recv_into(view)
        if not got:
            raise ConnectionError("the other end has closed the connection")
        view = view[got:]
    return data
