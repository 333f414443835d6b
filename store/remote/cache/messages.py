"""Messages between readers and the fetching process of a node: JSON and numbers over a socket.

Only processes of one user reach it. Nothing is unpickled.
"""

import asyncio
import json
import socket
import struct
from typing import Any

import numpy as np

__all__ = ["PROTOCOL", "UNKNOWN", "pack", "receive", "receive_from"]

PROTOCOL = 8  # of these messages, and of the files in a cache directory
UNKNOWN = 2.0**52  # a time later than any that is known; whole numbers below are exact
HEAD = struct.Struct("<II")  # bytes of JSON, and of the numbers that follow


def pack(message: dict[str, Any], numbers: np.ndarray | None = None) -> bytes:
    """The bytes of a message, with int64 numbers of any shape, which arrive flat."""
    text = json.dumps(message).encode()
    data = b"" if numbers is None else np.ascontiguousarray(numbers, "<i8").tobytes()
    return HEAD.pack(len(text), len(data)) + text + data


def receive(link: socket.socket) -> tuple[dict[str, Any], np.ndarray]:
    """The next message, and its numbers, int64 `(n,)`.

    Raises ConnectionError if the other end has gone, and TimeoutError.
    """
    n_text, n_data = HEAD.unpack(_exactly(link, HEAD.size))
    message = json.loads(_exactly(link, n_text))
    return message, np.frombuffer(_exactly(link, n_data), "<i8")


async def receive_from(stream: asyncio.StreamReader) -> tuple[dict[str, Any], np.ndarray]:
    """As `receive`; raises IncompleteReadError if the other end has gone."""
    n_text, n_data = HEAD.unpack(await stream.readexactly(HEAD.size))
    message = json.loads(await stream.readexactly(n_text))
    return message, np.frombuffer(await stream.readexactly(n_data), "<i8")


def _exactly(link: socket.socket, n: int) -> bytearray:
    data = bytearray(n)
    view = memoryview(data)
    while len(view):
        got = link.recv_into(view)
        if not got:
            raise ConnectionError("the other end has closed the connection")
        view = view[got:]
    return data
