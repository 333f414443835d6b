"""The disk space of a cache directory: what takes how much, and what goes when it is too much.

Nothing here has a lock: the keeper calls it under its own. Space is taken before bytes are written,
and given back after they are gone, so the directory never takes more than its limit.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from store.format.manifest import GROUP_FILE
from store.remote.eviction import UNKNOWN, choose_victims
from store.remote.mirrored_array import ABSENT, PRESENT, UNCHECKED, MirroredArray
from store.remote.sparse_file import BLOCK, make_folder

__all__ = ["Space"]

PAST_SHARE = 1 / 32  # of the limit: so far readers may lie behind each other
EVICT_SHARE = 32  # at least so much of the limit is evicted in one go


class Space:
    """Counts the bytes of a cache directory.

    Parameters
    ----------
    mirrors
        Directory of the mirrors.
    limit
        Bytes that the cache directory may take.
    used
        What it takes beside the mirrors.
    on_drop
        Called with an array and its cells that had to go.

    Attributes
    ----------
    used
        What it takes, or is about to take.
    evicted
        Bytes that had to go since the beginning.
    last_drop
        When chunks had to go, in seconds of `time.monotonic`.
    clock
        The time now, as next uses are told.
    arrays
        Whose chunks are counted one by one.
    """

    def __init__(
        self,
        mirrors: Path,
        limit: int,
        used: int,
        on_drop: Callable[[MirroredArray, np.ndarray], None] = lambda array, some: None,
    ) -> None:
        self.on_drop = on_drop
        self.mirrors = mirrors
        self.limit = limit
        self.used = used
        self.evicted = 0
        self.last_drop = -math.inf
        self.clock = 1.0  # 0 as a time: none
        self.arrays: list[MirroredArray] = []
        self._closed: dict[Path, int] = {}  # files of stores that nobody has opened, oldest first

    def adopt(self) -> None:
        """Count the files that earlier processes have left, before anything is opened."""
        paths = sorted(self.mirrors.rglob("*"), reverse=True)  # what is in a folder comes first
        for folder in filter(Path.is_dir, paths):
            with suppress(OSError):  # it is not empty
                folder.rmdir()
        files = [path for path in paths if path.is_file()]
        # a reader that goes on needs the committed state that it began with: those go last
        stats = sorted((path.name == GROUP_FILE, path.stat().st_mtime, path) for path in files)
        self.close_files([path for _, _, path in stats])
        self.set_limit(self.limit)

    def set_limit(self, limit: int) -> None:
        """Take another limit; what is too much goes at once, as far as it may."""
        self.limit = limit
        self.make_room(0, is_partial=True)

    def close_files(self, paths: list[Path]) -> None:
        """Files that are counted whole from now on, and may be removed."""
        for path in paths:
            if path not in self._closed:  # of an open store not all files were opened
                self._closed[path] = _disk_bytes(path)
                self.used += self._closed[path]

    def open_file(self, path: Path) -> int:
        """A file that must not be removed any more; return what is counted for it until it is
        freed."""
        return self._closed.pop(path, 0)

    def move_closed(self, old: Path, new: Path, parts: Sequence[Path]) -> None:
        """Have the closed files of some parts of a folder in another one, unless it has such."""
        begins = tuple(f"{old / part}/" for part in parts)
        for path in [path for path in self._closed if str(path).startswith(begins)]:
            target = new / path.relative_to(old)
            if not target.exists():
                with suppress(OSError):  # then it stays where it is, and is fetched
                    make_folder(target.parent, new)
                    path.rename(target)
                    self._closed[target] = self._closed.pop(path)

    def take(self, n_bytes: int, needed_after: float = -1.0) -> bool:
        """Count so many bytes more, if there is room or can be made; see `make_room`."""
        if not self.make_room(n_bytes, needed_after):
            return False
        self.used += n_bytes
        return True

    def free(self, n_bytes: int) -> None:
        """Count so many bytes less: they are gone, or are never written."""
        self.used -= n_bytes

    def make_room(self, n_bytes: int, needed_after: float = -1.0, is_partial: bool = False) -> bool:
        """Have others go until so many bytes fit; return whether they do.

        Parameters
        ----------
        needed_after
            Only chunks that are needed after this time go.
        is_partial
            Have some go even if it is not enough.
        """
        surplus = self.used + n_bytes - self.limit
        surplus -= self._remove_closed(surplus)
        if surplus <= 0 or not self.arrays:
            return surplus <= 0
        found = [self._candidates(array, needed_after) for array in self.arrays]
        some, next_use = (np.concatenate(parts) for parts in zip(*found, strict=True))
        owner = np.repeat(np.arange(len(found)), [len(cells) for cells, _ in found])
        sizes = [array.n_bytes[cells] for array, (cells, _) in zip(self.arrays, found, strict=True)]
        taken = np.concatenate(sizes)
        if taken.sum() < surplus and not is_partial:
            return False
        victims = choose_victims(next_use, taken, max(surplus, self.limit // EVICT_SHARE))
        for i in np.unique(owner[victims]).tolist():
            self._drop(self.arrays[i], np.sort(some[victims[owner[victims] == i]]))
        return self.used + n_bytes <= self.limit

    def _candidates(
        self, array: MirroredArray, needed_after: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """The cells of an array that may go, and when they are needed."""
        is_here = (array.status == PRESENT) | (array.status == UNCHECKED)
        free = np.flatnonzero(is_here & (array.pins == 0))
        next_use = self.next_use(array, free)
        chosen = next_use > needed_after
        return free[chosen], next_use[chosen]

    def next_use(self, array: MirroredArray, some: np.ndarray) -> np.ndarray:
        """When cells of an array are needed: float64 `(n,)`."""
        next_use = array.next_use[some]
        # Most uses need no request, so nobody tells of them: what was announced for a while ago has
        # been read, and is needed when it was announced for after that.
        is_past = next_use < self.clock - PAST_SHARE * self.limit
        after = array.after[some]
        return np.where(is_past, np.where(after > 0, after, UNKNOWN), next_use)

    def _remove_closed(self, surplus: int) -> int:
        """Remove files of stores that are not open, the oldest first; return the bytes freed."""
        freed = 0
        # a reader that goes on needs the committed state that it began with
        for path in sorted(self._closed, key=lambda path: path.name == GROUP_FILE):
            if freed >= surplus:
                break
            path.unlink(missing_ok=True)
            freed += self._closed.pop(path)
        self.used -= freed
        self.evicted += freed
        return freed

    def _drop(self, array: MirroredArray, some: np.ndarray) -> None:
        """Have cells go: readers are told before the bytes are gone."""
        self.last_drop = time.monotonic()
        array.leave(some)
        array.status[some] = ABSENT
        array.on_disk[some] = False
        array.empty(some)
        n_bytes = int(array.n_bytes[some].sum())
        self.used -= n_bytes
        self.evicted += n_bytes
        self.on_drop(array, some)


def _disk_bytes(path: Path) -> int:
    """What a file takes on the disk."""
    with suppress(FileNotFoundError):
        return path.stat().st_blocks * 512 + BLOCK
    return 0
