"""Compression of chunks with codecs of the Zarr v3 specification, each followed by its CRC32C.

A codec is written as a short text, `name[:options]`, the text that the schema stores:

- `zstd[:level]`: level -131072 to 22, default 3.
- `gzip[:level]`: level 0 to 9, default 5. For other readers' sake; slow.
- `blosc[:cname[:level[:shuffle]]]`: cname lz4, lz4hc, blosclz, zlib or zstd (default), level 0 to 9
  (default 3),
  shuffle noshuffle, shuffle or bitshuffle (default).
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
_SHUFFLES = {"noshuffle": blosc.NOSHUFFLE, "shuffle": blosc.SHUFFLE, "bitshuffle": blosc.BITSHUFFLE}
_CNAMES = ("lz4", "lz4hc", "blosclz", "zlib", "zstd")
_LEVELS = {"zstd": range(-131072, 23), "gzip": range(10), "blosc": range(10)}
_DEFAULT_LEVELS = {"zstd": 3, "gzip": 5, "blosc": 3}


@dataclass(frozen=True)
class Codec:
    """One way to compress a chunk.

    Attributes
    ----------
    name, level
        Zarr's name of it, and how hard it tries.
    cname, shuffle
        Blosc's inner compressor and its filter; None for the others.
    """

    name: str
    level: int
    cname: str | None = None
    shuffle: str | None = None

    def encode(self, chunk: np.ndarray, itemsize: int) -> bytes:
        """Compress a chunk's bytes, uint8 `(n,)`, and put their CRC32C behind them."""
        if self.name == "zstd":
            packed = zstd.compress(chunk, self.level)
        elif self.name == "gzip":
            packed = gzip.GZip(self.level).encode(chunk)
        else:
            # blosc takes the size of a number from the buffer's items
            shuffled = chunk.view(f"V{itemsize}")
            packed = blosc.compress(
                shuffled,
                self.cname.encode(),
                self.level,
                _SHUFFLES[self.shuffle],
                typesize=itemsize,
            )
        return packed + crc32c(packed).to_bytes(CRC_BYTES, "little")

    def decode(self, data: np.ndarray, out: np.ndarray, where: str) -> None:
        """Check `data`, uint8 `(n,)`, and decompress it into `out`, uint8, C-contiguous, of the
        chunk's size."""
        packed, stated = split_compressed(data)
        found = crc32c(packed)
        if found != stated:
            raise CorruptError(
                f"{where}: expected checksum {stated:08x}, found {found:08x}; restore it from a copy"
            )
        try:
            _decompress(self.name, packed, out)
        except (RuntimeError, ValueError, OSError, EOFError) as error:
            raise CorruptError(
                f"{where}: expected {out.nbytes} bytes of {self.name}, found: {error}"
            ) from error


def split_compressed(data: np.ndarray | bytes) -> tuple[np.ndarray | bytes, int]:
    """A compressed chunk, uint8 `(n,)` or bytes -> what was compressed, and the CRC32C that stands
    behind it."""
    return data[:-CRC_BYTES], int.from_bytes(bytes(data[-CRC_BYTES:]), "little")


def _decompress(name: str, packed: np.ndarray, out: np.ndarray) -> None:
    if name == "zstd":
        zstd.decompress(packed, out)
    elif name == "gzip":
        out[:] = np.frombuffer(gzip.GZip().decode(packed), np.uint8)
    else:
        blosc.decompress(packed, out)


@cache
def parse_codec(text: str) -> Codec:
    """The codec that a text names; raises SchemaError with what is possible."""
    name, *options = text.split(":") if isinstance(text, str) else [""]
    if name not in _LEVELS or len(options) > (3 if name == "blosc" else 1):
        raise SchemaError(
            f"codec: expected zstd[:level], gzip[:level] or blosc[:cname[:level[:shuffle]]], found {text!r}"
        )
    if name == "blosc":
        cname, level, shuffle = (options + ["zstd", "3", "bitshuffle"][len(options) :])[:3]
        if cname not in _CNAMES or shuffle not in _SHUFFLES:
            raise SchemaError(
                f"codec: expected blosc with one of {_CNAMES} and one of {[*_SHUFFLES]}, found {text!r}"
            )
        return Codec(name, _level(name, level), cname, shuffle)
    return Codec(name, _level(name, *options))


def _level(name: str, text: str | None = None) -> int:
    levels = _LEVELS[name]
    try:
        level = _DEFAULT_LEVELS[name] if text is None else int(text)
    except ValueError:
        level = levels.stop
    if level not in levels:
        raise SchemaError(
            f"codec: expected a {name} level from {levels.start} to {levels.stop - 1}, found {text!r}"
        )
    return level
