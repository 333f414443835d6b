"""Which files stay in the page cache, where an epoch reads more than fits into memory.

Data that fits into memory is read from the disk once. Of more, a cache that drops what was used
longest ago keeps hardly anything under a shuffle until it comes again; so a part of the files is
read through the page cache, the same in each epoch, and the others past it.
"""

from zlib import crc32

from store.read.arrays.mapped_file import MappedFile

__all__ = ["is_kept", "kept_fraction"]

# of the memory that is available: the rest is for batches and for other programs
CACHE_SHARE = 0.5


def kept_fraction(n_bytes: float, available: int) -> float:
    """The fraction of so many bytes, read in each epoch, that is to stay in the page cache."""
    return min(1.0, CACHE_SHARE * available / max(1.0, n_bytes))


def is_kept(file: MappedFile, fraction: float) -> bool:
    """Whether a file is in this fraction of all files: by its name, so all processes agree."""
    return crc32(str(file.path).encode()) < fraction * 2**32
