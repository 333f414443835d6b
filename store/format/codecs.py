"""Compression of chunks with codecs of the Zarr v3 specification, each followed by its CRC32C.

A codec is written as a short text, `name[:options]`, the text that the schema stores:

- `zstd[:level]`: level -131072 to 22, default 3.
- `gzip[:level]`: level 0 to 9, default 5. For the sake of other readers; slow.
- `blosc[:cname[:level[:shuffle]]]`: cname lz4, lz4hc, blosclz, zlib or zstd (default), level 0 to 9
  (default 3), shuffle noshuffle, shuffle or bitshuffle (default).
"""

import struct
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c

from store.errors import CorruptError, SchemaError

__all__ = ["parse_codec", "split_compressed"]

CRC_BYTES = 4
_ZSTD_MAGIC = 0xFD2FB528
_FORMS = "zstd[:level], gzip[:level] or blosc[:cname[:level[:shuffle]]]"
_MAX_BLOSC_BYTES = 2**31 - 1 - 16  # the decoder counts in 31 bits
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}  # as Blosc numbers them
_CNAMES = ("lz4", "lz4hc", "blosclz", "zlib", "zstd")
_LEVELS = {"zstd": range(-131072, 23), "gzip": range(10), "blosc": range(10)}
_DECODING_ERRORS = (RuntimeError, ValueError, OSError, EOFError, struct.error, zlib.error)
_DEFAULTS: dict[str, dict[str, int | str]] = {
    "zstd": {"level": "3"},
    "gzip": {"level": "5"},
    "blosc": {"cname": "zstd", "clevel": "3", "shuffle": "bitshuffle"},
}


class Codec(NamedTuple):
    """One way to compress a chunk: name and configuration as Zarr's metadata have them, and a codec
    of the package numcodecs.

    `decompress` takes compressed bytes and `out`, beyond which it never writes.
    """

    name: str
    configuration: dict[str, int | str]
    numcodec: Any
    decompress: Callable[[bytes | memoryview, np.ndarray], object]

    def encode(self, chunk: np.ndarray, itemsize: int) -> bytes:
        """Compress a chunk's bytes, uint8 `(n,)`, and append their CRC32C."""
        # Blosc takes the size of a number from the buffer
        packed = self.numcodec.encode(chunk.view(f"V{itemsize}"))
        return packed + crc32c(packed).to_bytes(CRC_BYTES, "little")

    def decode(
        self,
        data: memoryview,
        out: np.ndarray,
        where: Callable[[], str],
        *,
        is_checked: bool = False,
    ) -> None:
        """Check a compressed chunk and decompress it into `out`, C-contiguous, of the chunk's
        bytes.

        Messages begin with what `where` gives, which is called for an error alone. `is_checked`
        says that the same bytes were decoded into an array of this size before: their checksum is
        not computed again.

        Raises CorruptError for another checksum, or bytes that are no chunk of this size.
        """
        packed, expected = split_compressed(data)
        if not is_checked and (found := crc32c(packed)) != expected:
            raise CorruptError(
                f"{where()}: expected checksum {expected:08x}, found {found:08x}; "
                "restore it from a copy"
            )
        try:
            if not is_checked or self.name == "blosc":  # whose decoder in C trusts what is stated
                n_bytes = _stated_bytes(self.name, packed)
                if n_bytes not in (None, out.nbytes):  # of fewer, the rest of `out` is unwritten
                    raise ValueError(f"{n_bytes} bytes")
            self.decompress(packed, out)
        except _DECODING_ERRORS as error:
            raise CorruptError(
                f"{where()}: expected {out.nbytes} bytes of {self.name}, found: {error}; "
                "restore it from a copy"
            ) from error


def split_compressed(data: bytes | memoryview) -> tuple[bytes | memoryview, int]:
    """Split a compressed chunk into the compressed bytes and their CRC32C."""
    return data[:-CRC_BYTES], int.from_bytes(data[-CRC_BYTES:], "little")


def _stated_bytes(name: str, packed: bytes | memoryview) -> int | None:
    """The decompressed size in the header of Blosc and zstd, at the end of gzip.

    None where zstd states none: numcodecs then compares it itself. Raises ValueError or
    struct.error for a header that a decoder must not see.
    """
    if name == "blosc":
        _, n_bytes, _, n_packed = struct.unpack("<4I", packed[:16])
        if n_packed != len(packed):  # the decoder in C would read past the end
            raise ValueError(
                f"{n_packed} compressed bytes by the header, {len(packed)} in the file"
            )
        if n_packed > _MAX_BLOSC_BYTES:
            raise ValueError(f"{n_packed} compressed bytes, more than Blosc has")
        return n_bytes
    if name == "gzip":
        return int.from_bytes(packed[-4:], "little")
    if int.from_bytes(packed[:4], "little") != _ZSTD_MAGIC:  # a skippable frame has no such header
        raise ValueError("no zstd frame")
    flags = int.from_bytes(packed[4:5], "little")  # RFC 8878, 3.1.1.1
    is_single_segment = flags >> 5 & 1
    size = (is_single_segment, 2, 4, 8)[flags >> 6]
    if not size:
        return None
    start = 6 - is_single_segment + (0, 1, 2, 4)[flags & 3]
    n_bytes = int.from_bytes(packed[start : start + size], "little")
    return n_bytes + 256 if size == 2 else n_bytes


@cache
def parse_codec(text: str | None) -> Codec:
    """The codec that a text names; raises SchemaError with what is possible."""
    name, *values = text.split(":") if isinstance(text, str) else [""]
    defaults = _DEFAULTS.get(name, {})
    if not defaults or len(values) > len(defaults):
        raise SchemaError(f"codec: expected {_FORMS}, found {text!r}")
    options = defaults | dict(zip(defaults, values, strict=False))
    level = "clevel" if name == "blosc" else "level"
    options[level] = _parse_level(name, str(options[level]))
    arguments = options | {"id": name}
    if name == "blosc":
        if options["cname"] not in _CNAMES or options["shuffle"] not in _SHUFFLES:
            expected = f"blosc with one of {_CNAMES} and one of {[*_SHUFFLES]}"
            raise SchemaError(f"codec: expected {expected}, found {text!r}")
        arguments["shuffle"] = _SHUFFLES[str(options["shuffle"])]
    return Codec(name, options, *_coder(name, arguments))


def _coder(name: str, arguments: dict[str, Any]) -> tuple[Any, Callable[..., object]]:
    """A codec of numcodecs, and what decompresses with it."""
    # a store without compressed columns opens without this import, which takes 80 ms
    from numcodecs import blosc, get_codec, zstd

    blosc.use_threads = False  # readers have their own threads, and Blosc's do not survive a fork
    # what `decode` of these calls, after 2 us of conversions that a buffer of ours needs not
    decompress = {"zstd": zstd.decompress, "blosc": blosc.decompress}
    numcodec = get_codec(arguments)
    return numcodec, decompress.get(name, numcodec.decode)


def _parse_level(name: str, text: str) -> int:
    levels = _LEVELS[name]
    try:
        level = int(text.encode("ascii"))  # Python alone takes digits of other scripts
    except ValueError:
        level = levels.stop  # no level, as the check below says
    if level not in levels:
        raise SchemaError(
            f"codec: expected a {name} level from {levels.start} to {levels.stop - 1}, "
            f"found {text!r}"
        )
    return level
