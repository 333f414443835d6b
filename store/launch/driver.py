"""Runs the parts of a job that are not whole, until each is whole or given up."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path

from store.errors import CorruptError, LockedError, NotFoundError, StoreError
from store.format.manifest import read_manifest
from store.launch.completed_parts import FoundParts, Part, find_part, find_parts
from store.launch.engine import Engine
from store.launch.job import Job, parts_folder
from store.launch.task import last_line, status_text
from store.reports import in_one_line
from store.write.build import partial_path
from store.write.lock import WriterLock

__all__ = ["Parts", "find_whole", "held"]

POLL_S = 0.5
LOOK_S = 5.0  # between two looks at the traces of the running parts
NEARLY_DONE = 0.99


class Parts:
    """Parts that an engine runs, in the order of their numbers.

    A part that the engine gives up does not stop the others.

    `failed`: the parts that are given up. `n_rows`: committed traces of whole and of running parts,
    as they were counted last.
    """

    def __init__(self, job: Job, engine: Engine, say: Callable[[str], None]) -> None:
        self.failed: list[int] = []
        self.n_rows = 0
        self._job = job
        self._engine = engine
        self._say = say  # is called with a line about each part that is given up
        self._running: dict[Future[int], int] = {}
        self._whole: dict[int, Part] = {}
        self._n_done = 0.0  # parts, running ones by their traces

    @property
    def share(self) -> float:
        """An estimate of the share of the job that is done, 0 to 1."""
        return self._n_done / self._job.n_parts

    def text(self) -> str:
        states = [(len(self._running), "running"), (len(self.failed), "failed")]
        shown = "".join(f", {n:,} {state}" for n, state in states if n)
        n_whole = len(self._whole)
        return f"{n_whole:,} of {self._job.n_parts:,} parts{shown}, {self.n_rows:,} traces"

    def run(self, report: Callable[[int, "Parts"], None]) -> list[Part]:
        """Run the parts that are not whole; the caller closes the engine.

        `report` is called with the number of traces, and this launch, every few seconds. Returns
        the whole parts, those of earlier launches included, ascending.
        """
        found = find_whole(self._job)
        self._whole = {part.record.part: part for part in found.parts}
        left = deque(found.missing)
        look_s = float("-inf")
        while self._running or left:
            while left and len(self._running) < self._engine.n_workers:
                number = left.popleft()
                self._running[self._engine.submit(self._job.task(number))] = number
            done, _ = wait(self._running, POLL_S, FIRST_COMPLETED)
            for future in done:
                self._note_end(self._running.pop(future), future)
            if time.monotonic() - look_s >= LOOK_S:
                look_s = time.monotonic()
                self._count()
                report(self.n_rows, self)
        return find_whole(self._job).parts

    def _note_end(self, number: int, future: Future[int]) -> None:
        with suppress(NotFoundError, CorruptError):
            self._whole[number] = find_part(self._job.part_path(number))
            return
        self.failed.append(number)
        log = self._job.task(number).log
        line = "; ".join([_end_of(future), "given up", *last_line(log), f"see {log}"])
        self._say(f"part {number}/{self._job.n_parts}: {line}")

    def _count(self) -> None:
        """Count the traces; parts are about equally large, and running ones are never done."""
        whole = sum(part.record.n_rows for part in self._whole.values())
        running = [_committed_rows(self._job.part_path(part)) for part in self._running.values()]
        self.n_rows = whole + sum(running)
        self._n_done = len(self._whole)
        if whole:
            rows_a_part = whole / len(self._whole)
            self._n_done += sum(min(rows / rows_a_part, NEARLY_DONE) for rows in running)


def find_whole(job: Job) -> FoundParts:
    """Find the whole parts of a job that was launched before.

    Raises SchemaError if there are parts of another command, of other inputs, or of another number
    of parts.
    """
    folder = parts_folder(job.out)
    return find_parts(folder, job.key) if folder.is_dir() else FoundParts([], job.n_parts, [])


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make the folder of the parts; raises LockedError if another launch holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = WriterLock(folder)
    except LockedError as error:
        raise LockedError(f"another launch makes these parts: {error}") from error
    try:
        yield
    finally:
        with lock, suppress(OSError):  # it is empty where nothing was started
            folder.rmdir()


def _end_of(future: Future[int]) -> str:
    """How the last attempt at a part ended."""
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    if error is None:
        return status_text(future.result())
    return in_one_line(getattr(error, "cause", None) or error)  # Ray's own has the traceback


def _committed_rows(path: Path) -> int:
    """The traces that a running part has committed; 0 if it has not begun."""
    for root in (path, partial_path(path)):
        with suppress(OSError, StoreError):
            return read_manifest(root).n_rows
    return 0
