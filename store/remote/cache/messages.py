"""Messages between readers and the fetching process of a node: JSON and numbers over a socket.

Nothing is unpickled, and what a length says is capped before memory is taken for it.
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
MAX_JSON = 1024 * 1024
MAX_NUMBERS = 256 * 1024 * 1024


def pack(message: dict[str, Any], numbers: np.ndarray | None = None) -> bytes:
    """The bytes of a message, with int64 numbers of any shape, which arrive flat."""
    text = json.dumps(message).encode()
    data = b"" if numbers is None else np.ascontiguousarray(numbers, "<i8").tobytes()
    return HEAD.pack(len(text), len(data)) + text + data


def receive(link: socket.socket) -> tuple[dict[str, Any], np.ndarray]:
    """The next message, and its numbers, int64 `(n,)`.

    Raises ConnectionError if the other end has gone, or speaks another language, and TimeoutError.
    """
    n_text, n_data = _lengths(_exactly(link, HEAD.size))
    return _parse(_exactly(link, n_text), _exactly(link, n_data))


async def receive_from(stream: asyncio.StreamReader) -> tuple[dict[str, Any], np.ndarray]:
    """As `receive`."""
    try:
        n_text, n_data = _lengths(await stream.readexactly(HEAD.size))
        return _parse(await stream.readexactly(n_text), await stream.readexactly(n_data))
    except asyncio.IncompleteReadError as error:
        raise ConnectionError("the other end has closed the connection") from error


def _lengths(head: bytes | bytearray) -> tuple[int, int]:
    n_text, n_data = HEAD.unpack(head)
    if n_text > MAX_JSON or n_data > MAX_NUMBERS or n_data % 8:
        raise ConnectionError(f"a message of {n_text} and {n_data} bytes")
    return n_text, n_data


def _parse(text: bytes | bytearray, data: bytes | bytearray) -> tuple[dict[str, Any], np.ndarray]:
    try:
        message = json.loads(text)
    except ValueError as error:
        raise ConnectionError("a message that is no JSON") from error
    if not isinstance(message, dict):
        raise ConnectionError("a message that is no object")
    return message, np.frombuffer(data, "<i8")


def _exactly(link: socket.socket, n: int) -> bytearray:
    data = bytearray(n)
    view = memoryview(data)
    while len(view):
        got = link.recv_into(view)
        if not got:
            raise ConnectionError("the other end has closed the connection")
        view = view[got:]
    return data
