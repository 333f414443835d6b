"""File operations that kill, fail or are written down, and the disks that a power cut can leave."""

import errno
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from store.write.files import Files

ENTRIES = (
    "make_dir",
    "create",
    "sync",
    "sync_dir",
    "rename",
    "link",
    "remove",
    "remove_if_empty",
    "remove_tree",
    "exchange",
)
DIRECTORY = -1


class Quick(Files):
    """Does not wait for the disk: a process that dies loses nothing of what the kernel holds."""

    def start_sync(self, fd, position, n_bytes):
        pass

    def sync(self, fd):
        pass

    def sync_dir(self, path):
        pass

    def sync_dirs(self, paths):
        for path in paths:  # in turn: what is counted or written down is the same each time
            self.sync_dir(path)


class Faulty(Quick):
    """Calls `fault` before its operation number `at`, counted from 1, and all later ones if it is
    `lasting`; 0: before none. If `only` is the name of an operation, no others are counted.

    A write counts as two, so that a fault also comes when half of it is done.
    """

    def __init__(
        self, at: int, fault: Callable[[], None], lasting: bool = False, only: str | None = None
    ) -> None:
        self.at, self.fault, self.lasting, self.only, self.n = at, fault, lasting, only, 0

    def begin(self, at: int = 1) -> None:
        """Count from here on."""
        self.at, self.n = at, 0

    def count(self, name: str) -> None:
        self.n += self.only in (None, name)
        if self.at and (self.n == self.at or (self.lasting and self.n > self.at)):
            self.fault()

    def write(self, fd, data, position):
        view = memoryview(data).cast("B")
        half = len(view) // 2
        for start, part in ((0, view[:half]), (half, view[half:])):
            self.count("write")
            super().write(fd, part, position + start)


def _counted(name: str) -> Callable:
    def operation(self, *arguments):
        self.count(name)
        return getattr(Quick, name)(self, *arguments)

    return operation


for _name in ENTRIES:
    setattr(Faulty, _name, _counted(_name))


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def failing(number: int) -> Callable[[], None]:
    """A fault that is an OSError."""

    def fail() -> None:
        raise OSError(number, f"{os.strerror(number)} ({errno.errorcode[number]})")

    return fail


full_disk = failing(errno.ENOSPC)


def error_of(work: Callable[[], object]) -> int | None:
    """The number of the OSError that stops `work`, if one does."""
    try:
        work()
    except OSError as error:
        return error.errno
    return None


def start(work: Callable[[], object]) -> int:
    """Run in a forked process; its number."""
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - the parent sees the status
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def wait(child: int) -> int:
    """The exit status of a process, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_killed(work: Callable[[Files], object], at: int) -> bool:
    """Run in a process that is killed before its operation number `at`; whether it came that
    far."""
    status = wait(start(lambda: work(Faulty(at, kill))))
    assert status in (0, -signal.SIGKILL)
    return status != 0


class Stop(BaseException):
    """The end of a recorded writer."""


class Recorder(Quick):
    """Does everything, and writes down what a power cut has to know; stops at operation `stop`, if
    given.

    Attributes
    ----------
    log
        Operations in turn, with their data; and marks: `("may", state)`, a state that may be seen
        from here on, `("done", state)`, the only one that may.
    """

    def __init__(self, stop: int | None = None) -> None:
        self.log: list[tuple] = []
        self.stop = stop
        self._inodes: dict[int, int] = {}

    @property
    def is_dead(self) -> bool:
        return self.stop is not None and len(self.log) >= self.stop

    def note(self, *entry) -> None:
        if self.is_dead:
            raise Stop
        self.log.append(entry)

    def create(self, path):
        assert not path.exists(), "no file is written over in place"
        self.note("create", path, len(self.log))
        fd = super().create(path)
        self._inodes[fd] = len(self.log) - 1
        return fd

    def write(self, fd, data, position):
        self.note("write", self._inodes[fd], position, bytes(data))
        super().write(fd, data, position)

    def sync(self, fd):
        self.note("sync", self._inodes[fd])

    def sync_dir(self, path):
        self.note("sync_dir", path)

    def rename(self, source, target):
        self.note("rename", source, target)
        super().rename(source, target)

    def link(self, source, target):
        # a file of a store that a power cut does not touch: its bytes are durable
        inode = len(self.log)
        self.note("write", inode, 0, source.read_bytes())
        self.note("sync", inode)
        self.note("create", target, inode)
        super().link(source, target)

    def remove(self, path):
        if path.exists():
            self.note("remove", path)
            super().remove(path)

    def remove_if_empty(self, path):
        gone = super().remove_if_empty(path)
        if gone:
            self.note("remove", path)
        return gone

    def remove_tree(self, path):
        if path.is_dir() and not self.is_dead:
            super().remove_tree(path)
            self.note("remove", path)

    def make_dir(self, path):
        if not path.exists():
            self.note("make", path)
            super().make_dir(path)


def allowed_states(log: list[tuple]) -> list:
    """The states that a store may be in after these operations."""
    states: list = [None]
    for entry in log:
        if entry[0] == "done":
            states = [entry[1]]
        elif entry[0] == "may":
            states.append(entry[1])
    return states


def effects(log: list[tuple]) -> Iterator[tuple]:
    """`(place, what, is_durable)`: bytes of a file, or a name in a directory, in turn.

    Bytes are durable when the file is synced after them, a name is when its directory is. The two
    names of a rename are two effects: a power cut can lose either.
    """
    found: list[tuple] = []
    synced: dict[object, int] = {}
    names: dict[Path, int] = {}
    for kind, *arguments in log:
        if kind == "write":
            inode, position, data = arguments
            found.append((inode, (position, data), inode))
        elif kind in ("sync", "sync_dir"):
            synced[arguments[0]] = len(found)
        elif kind in ("create", "make"):
            path = arguments[0]
            names[path] = arguments[1] if kind == "create" else DIRECTORY
            found.append((path, names[path], path.parent))
        elif kind == "rename":
            source, target = arguments
            names[target] = names.pop(source)
            found += [(source, None, source.parent), (target, names[target], target.parent)]
        elif kind == "remove":
            found.append((arguments[0], None, arguments[0].parent))
    for i, (place, what, kept_by) in enumerate(found):
        yield place, what, i < synced.get(kept_by, 0)


def lay_out(log: list[tuple], base: Path, target: Path, keeps: Callable[[], bool]) -> None:
    """Make in `target` what a power cut after these operations could leave of `base`.

    Parameters
    ----------
    keeps
        Asked for every effect that is not durable. Lost bytes are zeros, or were never there; or
        half of them were.
    """
    contents: dict[int, bytearray] = {}
    names: dict[Path, int | None] = {base: DIRECTORY}
    for place, what, is_durable in effects(log):
        kept = is_durable or keeps()
        if isinstance(place, Path):
            names |= {place: what} if kept else {}
            continue
        position, data = what
        there = len(data) if kept else len(data) // 2 * keeps()
        content = contents.setdefault(place, bytearray())
        end = position + (len(data) if kept or keeps() else there)
        content.extend(bytes(max(0, end - len(content)) if end > position else 0))
        content[position : position + there] = data[:there]
    made = {base}
    target.mkdir()
    for path in sorted(names):
        inside = target / path.relative_to(base)
        if path == base or names[path] is None or path.parent not in made:
            continue
        if names[path] == DIRECTORY:
            inside.mkdir()
            made.add(path)
        else:
            inside.write_bytes(contents.get(names[path], b""))
