"""The directory that a store was opened from, told apart from another one at the same path."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from stat import S_ISREG
from urllib.parse import unquote

from store.errors import CorruptError, NotFoundError, SchemaError
from store.format.manifest import GROUP_FILE, address_text, read_manifest

__all__ = [
    "PARTIAL",
    "StoreDirectory",
    "check_no_address",
    "check_outside",
    "files_below",
    "local_path",
    "paths_below",
]

PARTIAL = ".partial"  # behind the name of a store that is being built

_FILE_SCHEME = re.compile(r"file:(//(localhost)?)?(?=/)", re.IGNORECASE)


def local_path(path: object) -> Path:
    """A path as a user gives it: `~` is expanded, of a file:// address the path is taken."""
    if not isinstance(path, str | Path):
        expected = "expected the path or the address of one store"
        raise TypeError(f"{expected}, found {type(path).__name__} {path!r:.100}")
    text = str(path)
    scheme = _FILE_SCHEME.match(text)
    text = unquote(text[scheme.end() :]) if scheme else text
    # unlike Path.expanduser, and like a shell, this leaves the name of an unknown user unchanged
    return Path(os.path.expanduser(text))  # noqa: PTH111


def paths_below(root: Path) -> Iterator[Path]:
    """All that is below a directory, but for what is removed meanwhile."""
    for folder, *names in os.walk(root):
        yield from (Path(folder, name) for name in chain(*names))


def files_below(root: Path) -> Iterator[os.stat_result]:
    """What the system says of each file below a directory."""
    for path in paths_below(root):
        with suppress(FileNotFoundError):
            status = path.stat()
            if S_ISREG(status.st_mode):
                yield status


@dataclass(frozen=True)
class StoreDirectory:
    """A store's directory as it was when it was opened.

    A repair puts another directory at the same path. A reader of the old one must not take a file
    of the new one for its own: it opens the file, and then asks here. Another store may also be
    copied over the files of the one that was opened, whose `uuid` tells; None: it is not asked for.
    Without an inode, as of a mirror, no other store can be there. A store that was opened while it
    was built is followed to its name.
    """

    path: Path
    device: int = 0
    inode: int | None = None
    uuid: str | None = None

    @classmethod
    def at(cls, path: str | Path) -> "StoreDirectory":
        """The directory that is at a path now."""
        absolute = Path(path).absolute()
        status = absolute.stat()
        return cls(absolute, status.st_dev, status.st_ino)

    def is_same(self, other: "StoreDirectory") -> bool:
        """Whether both are one directory, under whichever name."""
        return (self.device, self.inode) == (other.device, other.inode)

    def now(self) -> Path:
        """Where it is: a build that was finished since has its whole name."""
        if self.path.name.endswith(PARTIAL):
            whole = self.path.with_name(self.path.name.removesuffix(PARTIAL))
            if self._is_at(whole):
                return whole
        return self.path

    def _is_at(self, path: Path) -> bool:
        with suppress(OSError):
            return self.is_same(StoreDirectory.at(path))
        return False

    def check(self) -> None:
        """Raise CorruptError if another store has taken its place, or none is there."""
        if self.inode is None:
            return
        place = self.now()
        try:
            there = StoreDirectory.at(place)
        except FileNotFoundError as error:
            if self.now() != place:
                return self.check()
            raise CorruptError(
                f"{self.path}: the store is gone; open it where it is now"
            ) from error
        has_other_uuid = self.uuid is not None and _uuid_at(place) not in (None, self.uuid)
        if has_other_uuid or not self.is_same(there):
            raise CorruptError(
                f"{self.path}: another store has taken the place of the one that was opened; "
                "open it again"
            )


def _uuid_at(place: Path) -> str | None:
    """The uuid of the store in a directory; None if no manifest is there, or it has moved since."""
    try:
        status = (place / GROUP_FILE).stat()
        return _read_uuid(place, (status.st_ino, status.st_mtime_ns, status.st_size))
    except (OSError, NotFoundError):
        return None


@lru_cache(64)
def _read_uuid(place: Path, _written: tuple[int, ...]) -> str:
    """Read once as it was written then: each shard that is opened asks."""
    return read_manifest(place).uuid


def check_no_address(out: Path) -> None:
    """Raise SchemaError if a store is to be made at an address."""
    address = address_text(out)
    if address is not None:
        raise SchemaError(
            f"{address}: expected a path, found an address; make the store on a disk, then push it "
            "(python -m store push)"
        )


def check_outside(out: Path) -> None:
    """Raise SchemaError if a store is to be made inside another one, whichever links lead there,
    or at an address."""
    check_no_address(out)
    absolute = out.absolute()
    for folder in (*absolute.parents, *absolute.resolve().parents):
        with suppress(OSError):
            if (folder / GROUP_FILE).is_file():
                raise SchemaError(
                    f"{out}: expected a path outside of every store, found that {folder} is one; "
                    "choose another"
                )
