"""How much of what an epoch reads stays in memory, and which files are therefore read through the
page cache.

Data that fits is read from the disk once. Of more, a cache that drops what was used longest ago
keeps hardly anything under a shuffle until it comes again; so a part of the files stays, the same
in each epoch, and the others are read past the cache.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from store.read.mapped_file import MappedFile

__all__ = ["available_bytes", "is_kept", "kept_fraction"]

# of the memory that is available: the rest is for batches and for other programs
CACHE_SHARE = 0.5
CGROUPS = Path("/sys/fs/cgroup")
# names of the limit, and of what is used, in memory control groups of version 2 and 1
LIMIT_FILES = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def kept_fraction(n_bytes: float, available: int) -> float:
    """The fraction of so many bytes, read in each epoch, that is to stay in the page cache."""
    return min(1.0, CACHE_SHARE * available / max(1.0, n_bytes))


def is_kept(file: MappedFile, fraction: float) -> bool:
    """Whether a file is in this fraction of all files: by its name, so all processes agree."""
    return crc32(str(file.path).encode()) < fraction * 2**32


def available_bytes(root: Path = CGROUPS, proc: Path = Path("/proc")) -> int:
    """Bytes that programs may still take, the page cache included: of the machine, or of the
    control groups that this process is in."""
    memory = _numbers(proc / "meminfo")
    rooms = [1024 * memory.get("MemAvailable:", 0)]
    for group in _groups(root, proc):
        for limit, usage in LIMIT_FILES:
            with suppress(OSError, ValueError):  # no limit, or not this version
                free = int((group / limit).read_text()) - int((group / usage).read_text())
                used = _numbers(group / "memory.stat")
                cached = used.get("active_file", 0) + used.get("inactive_file", 0)
                rooms.append(max(0, free + cached))
    return min(rooms)


def _groups(root: Path, proc: Path) -> Iterator[Path]:
    """The directories of the memory control groups of this process, with those around them."""
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                top = root / controllers
                group = top / path.lstrip("/")
                yield from (place for place in (group, *group.parents) if place.is_relative_to(top))


def _numbers(path: Path) -> dict[str, int]:
    """The first number after each name in a file of the kernel's; none without the file."""
    with suppress(OSError):
        fields = [line.split() for line in path.read_text().splitlines()]
        return {field[0]: int(field[1]) for field in fields if len(field) > 1}
    return {}
