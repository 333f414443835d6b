"""Objects as files: fetched in ranges, and given their names when they are whole."""

from collections.abc import Callable, Mapping
from pathlib import Path

from store.errors import LockedError
from store.remote.faults import ConflictError
from store.remote.objects import Head, Objects
from store.remote.parallel import run_all
from store.write.files import Files

__all__ = ["fetch_all"]

RANGE_BYTES = 8 * 1024 * 1024
RANGES_AT_ONCE = 4  # of a file: what a thread holds in memory
ATTEMPTS = 5  # with an object that is replaced while it is fetched


def fetch_all(
    objects: Objects,
    targets: Mapping[str, Path],
    heads: Mapping[str, Head],
    working: Path,
    n_threads: int,
    advance: Callable[[int], None],
    files: Files,
) -> None:
    """Fetch objects in parallel; the first error stops the others.

    Parameters
    ----------
    objects
        Where from.
    targets
        Key -> the file to make; its folder is there.
    heads
        Key -> the object that was there a moment ago.
    working
        A folder of the same file system, for files that are not whole.
    n_threads
        Files at a time.
    advance
        Called with the bytes of each file that is here now, from any thread.
    files
        The file operations to use.

    Raises
    ------
    OSError
        The disk is full, or another fault of it; whole files stay.
    NotFoundError, UnreachableError
        An object is gone, or did not come in time.
    """

    numbers = {key: number for number, key in enumerate(targets)}

    def fetch(objects: Objects, key: str) -> None:
        part = working / f"{numbers[key]}.part"
        n_bytes = _fetch(objects, key, heads[key], part, files)
        files.rename(part, targets[key])
        advance(n_bytes)

    run_all(objects, fetch, targets, n_threads)


def _fetch(objects: Objects, key: str, head: Head, part: Path, files: Files) -> int:
    """Write an object's bytes to a file; return how many."""
    for _ in range(ATTEMPTS):
        try:
            with files.created(part) as fd:
                for position in range(0, head.size, RANGES_AT_ONCE * RANGE_BYTES):
                    _fetch_ranges(objects, key, head, position, fd, files)
            return head.size
        except ConflictError:  # a file that grows with an append: what it held, it still holds
            head = objects.head(key)
    raise LockedError(
        f"{objects.where(key)}: expected an object that stays, found that it was replaced "
        f"{ATTEMPTS} times while it was fetched; try again when no push is at work"
    )


def _fetch_ranges(
    objects: Objects, key: str, head: Head, position: int, fd: int, files: Files
) -> None:
    end = min(head.size, position + RANGES_AT_ONCE * RANGE_BYTES)
    starts = range(position, end, RANGE_BYTES)
    ends = [min(end, start + RANGE_BYTES) for start in starts]
    for start, data in zip(starts, objects.get_ranges(key, starts, ends, head.etag), strict=True):
        files.write(fd, data, start)
