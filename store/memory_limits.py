"""The memory that this process may have: what the machine has free, or what its job may still take.

Batch systems and containers give a job a limit (a control group of the kernel) and end it where it
takes more. What the job has taken already counts, but for files' pages in memory that nobody used
lately: the kernel drops those first.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["MemoryLimits", "read_memory"]

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")


class _Names(NamedTuple):
    """The files of a control group, and the keys of files' pages: unused and used lately."""

    limit: str
    used: str
    inactive: str
    active: str


_V1 = _Names(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
    "total_active_file",
)
_V2 = _Names("memory.max", "memory.current", "inactive_file", "active_file")


class MemoryLimits(NamedTuple):
    """Bytes of memory.

    Attributes
    ----------
    total
        Of the machine, or of the job if that is less.
    available
        What of it is free, or would be if it were needed.
    cacheable
        The same, with the pages of files that were used lately.
    """

    total: int
    available: int
    cacheable: int


def read_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> MemoryLimits:
    """Ask the kernel; of the groups that the process is in, the one that leaves least counts.

    A system without `/proc/meminfo` tells its pages only: what is free counts as half of them.
    """
    try:
        memory = _numbers((proc / "meminfo").read_text())
        total = 1024 * memory["MemTotal"]
        available = 1024 * memory["MemAvailable"]  # pages of files are in it
    except OSError:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        available = total // 2
    found = MemoryLimits(total, available, available)
    for folder, names in _groups(proc, cgroups):
        with suppress(OSError, ValueError, KeyError):  # "max", no such file: no limit
            limit = int((folder / names.limit).read_text())
            used = int((folder / names.used).read_text())
            pages = _numbers((folder / "memory.stat").read_text())
            free = max(0, limit - used + min(pages[names.inactive], used))
            cacheable = max(0, min(limit, free + pages.get(names.active, 0)))
            found = MemoryLimits(
                min(found.total, limit),
                min(found.available, free),
                min(found.cacheable, cacheable),
            )
    return found


def _groups(proc: Path, cgroups: Path) -> Iterator[tuple[Path, _Names]]:
    """The folders of the process's control groups, the innermost first; both versions' may be."""
    lines: list[str] = []
    with suppress(OSError):
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, own = line.split(":", 2)
        if not controllers:
            root, names = cgroups, _V2
        elif "memory" in controllers.split(","):
            root, names = cgroups / "memory", _V1
        else:
            continue
        folder = root / own.lstrip("/")
        # a container sees its own group as the root, whatever the host calls it
        for place in (folder, *folder.parents):
            yield place, names
            if place == root:
                break


def _numbers(text: str) -> dict[str, int]:
    """Name -> number of lines such as `MemTotal:  24 kB` or `inactive_file 24`."""
    fields = (line.split() for line in text.splitlines())
    return {name.removesuffix(":"): int(number) for name, number, *_ in fields}
