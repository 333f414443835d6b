"""Compression of chunks with codecs of the Zarr v3 specification, each followed by its CRC32C.

A codec is written as a short text, `name[:options]`, the text that the schema stores:

- `zstd[:level]`: level -131072 to 22, default 3.
- `gzip[:level]`: level 0 to 9, default 5. For the sake of other readers; slow.
- `blosc[:cname[:level[:shuffle]]]`: cname lz4, lz4hc, blosclz, zlib or zstd (default), level 0 to 9
  (default 3), shuffle noshuffle, shuffle or bitshuffle (default).
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from crc32c import crc32c
from numcodecs import blosc, gzip, zstd

from store.errors import CorruptError, SchemaError

__all__ = ["Codec", "parse_codec", "split_compressed"]

blosc.use_threads = False  # readers have threads of their own, and Blosc's do not survive a fork

CRC_BYTES = 4
_FORMS = "zstd[:level], gzip[:level] or blosc[:cname[:level[:shuffle]]]"
_SHUFFLES = {"noshuffle": blosc.NOSHUFFLE, "shuffle": blosc.SHUFFLE, "bitshuffle": blosc.BITSHUFFLE}
_CNAMES = ("lz4", "lz4hc", "blosclz", "zlib", "zstd")
_LEVELS = {"zstd": range(-131072, 23), "gzip": range(10), "blosc": range(10)}
_DEFAULTS = {"zstd": ["3"], "gzip": ["5"], "blosc": ["zstd", "3", "bitshuffle"]}


@dataclass(frozen=True)
class Codec:
    """One way to compress a chunk.

    Attributes
    ----------
    name, level
        Zarr's name of it, and how hard it tries.
    cname, shuffle
        Blosc's inner compressor and its filter; empty for the others.
    """

    name: str
    level: int
    cname: str = ""
    shuffle: str = ""

    def encode(self, chunk: np.ndarray, itemsize: int) -> bytes:
        """Compress a chunk's bytes, uint8 `(n,)`, and append their CRC32C."""
        if self.name == "zstd":
            packed = zstd.compress(chunk, self.level)
        elif self.name == "gzip":
            packed = gzip.GZip(self.level).encode(chunk)
        else:
            numbers = chunk.view(f"V{itemsize}")  # Blosc takes the size of a number from the buffer
            name = self.cname.encode()
            shuffle = _SHUFFLES[self.shuffle]
            packed = blosc.compress(numbers, name, self.level, shuffle, typesize=itemsize)
        return packed + crc32c(packed).to_bytes(CRC_BYTES, "little")

    def decode(self, data: memoryview, out: np.ndarray, where: str) -> None:
        """Check a compressed chunk and decompress it.

        Parameters
        ----------
        data
            What `encode` gave.
        out
            uint8, C-contiguous, of the chunk's size.
        where
            What error messages begin with.

        Raises
        ------
        CorruptError
            The checksum is another one, or the bytes cannot be decompressed.
        """
        packed, expected = split_compressed(data)
        found = crc32c(packed)
        if found != expected:
            raise CorruptError(
                f"{where}: expected checksum {expected:08x}, found {found:08x}; "
                "restore it from a copy"
            )
        try:
            _decompress(self.name, packed, out)
        except (RuntimeError, ValueError, OSError, EOFError) as error:
            raise CorruptError(
                f"{where}: expected {out.nbytes} bytes of {self.name}, found: {error}"
            ) from error


def split_compressed(data: bytes | memoryview) -> tuple[bytes | memoryview, int]:
    """Split a compressed chunk into the compressed bytes and their CRC32C."""
    return data[:-CRC_BYTES], int.from_bytes(data[-CRC_BYTES:], "little")


def _decompress(name: str, packed: bytes | memoryview, out: np.ndarray) -> None:
    if name == "zstd":
        zstd.decompress(packed, out)
    elif name == "gzip":
        out[:] = np.frombuffer(gzip.GZip().decode(packed), np.uint8)
    else:
        blosc.decompress(packed, out)


@cache
def parse_codec(text: str | None) -> Codec:
    """The codec that a text names; raises SchemaError with what is possible."""
    name, *options = text.split(":") if isinstance(text, str) else [""]
    defaults = _DEFAULTS.get(name, [])
    if not defaults or len(options) > len(defaults):
        raise SchemaError(f"codec: expected {_FORMS}, found {text!r}")
    options += defaults[len(options) :]
    if name != "blosc":
        return Codec(name, _parse_level(name, options[0]))
    cname, level, shuffle = options
    if cname not in _CNAMES or shuffle not in _SHUFFLES:
        raise SchemaError(
            f"codec: expected blosc with one of {_CNAMES} and one of {[*_SHUFFLES]}, found {text!r}"
        )
    return Codec(name, _parse_level(name, level), cname, shuffle)


def _parse_level(name: str, text: str) -> int:
    levels = _LEVELS[name]
    try:
        level = int(text)
    except ValueError:
        level = levels.stop  # no level, as the check below says
    if level not in levels:
        raise SchemaError(
            f"codec: expected a {name} level from {levels.start} to {levels.stop - 1}, "
            f"found {text!r}"
        )
    return level
