"""Runs the parts of a job that are not whole, until each is, or has failed too often."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from store.errors import CorruptError, LockedError, NotFoundError, SchemaError, StoreError
from store.format.manifest import read_manifest
from store.launch.cluster import one_line
from store.launch.engine import MISTAKE, Engine
from store.launch.found import FoundParts, Part, find_part, find_parts
from store.launch.job import Job, parts_folder
from store.launch.task import last_lines
from store.write.lock import WriterLock, has_writer

__all__ = ["Launch", "Standing", "find_whole", "held"]

POLL_S = 0.5
LOOK_S = 5.0  # between two looks at the traces of the running parts
LONGEST_PAUSE_S = 60.0
MAX_GIVEN_UP = 3  # before one is whole
NEARLY_DONE = 0.99
PARTIAL = ".partial"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Standing:
    """How far a job is: its parts, and the committed traces of whole and of running ones."""

    n_parts: int
    n_whole: int
    n_running: int
    n_failed: int
    rows_whole: int
    rows_running: tuple[int, ...]

    @property
    def n_rows(self) -> int:
        return self.rows_whole + sum(self.rows_running)

    @property
    def share(self) -> float:
        """Estimate which share of the job is done, 0 to 1.

        Parts are about equally large. A running one counts by its traces over those of a whole
        part, once there is one, and never as done.
        """
        done = float(self.n_whole)
        if self.rows_whole:
            rows_a_part = self.rows_whole / self.n_whole
            done += sum(min(rows / rows_a_part, NEARLY_DONE) for rows in self.rows_running)
        return done / self.n_parts

    def text(self) -> str:
        """Say it in words."""
        states = [(self.n_running, "at work"), (self.n_failed, "failed")]
        shown = "".join(f", {n:,} {state}" for n, state in states if n)
        return f"{self.n_whole:,} of {self.n_parts:,} parts{shown}, {self.n_rows:,} traces"


class Launch:
    """Parts that are run by an engine, in no order.

    A part that failed is run again behind all that were not tried, after a pause: 1 s, then twice
    as long each time, a minute at most. It does not stop the others. Where three are given up
    before one is whole, the command itself is likely to be wrong: no other is started, unless one
    of those that run becomes whole.

    Attributes
    ----------
    failed
        The parts that are given up.
    """

    def __init__(self, job: Job, engine: Engine, retries: int, say: Say) -> None:
        self.failed: list[int] = []
        self._job = job
        self._engine = engine
        self._retries = retries
        self._say = say  # is called with a line about each attempt that failed
        self._attempts: Counter[int] = Counter()
        self._running: dict[Future[int], int] = {}
        self._whole: dict[int, Part] = {}
        self._not_before_s: dict[int, float] = {}

    def run(self, report: Callable[[int, Standing], None]) -> list[Part]:
        """Run the parts that are not whole; the caller closes the engine.

        `report` is called with the number of traces, and how far all parts are, every few seconds.
        Returns the whole parts, those of earlier launches included, ascending.
        """
        found = find_whole(self._job)
        self._whole = {part.record.part: part for part in found.parts}
        self._not_before_s = dict.fromkeys(found.missing, float("-inf"))
        look_s = float("-inf")
        while self._running or (self._not_before_s and not self._is_hopeless):
            self._start_free()
            if self._running:
                done, _ = wait(self._running, POLL_S, FIRST_COMPLETED)
                self._end(done)
            else:
                time.sleep(POLL_S)
            if time.monotonic() - look_s >= LOOK_S:
                look_s = time.monotonic()
                standing = self._standing()
                report(standing.n_rows, standing)
        return find_whole(self._job).parts

    @property
    def _is_hopeless(self) -> bool:
        return not self._whole and len(self.failed) >= MAX_GIVEN_UP

    def _start_free(self) -> None:
        """Give each free worker a part."""
        now_s = time.monotonic()
        for part, not_before_s in list(self._not_before_s.items()):
            if len(self._running) >= self._engine.n_workers or self._is_hopeless:
                return
            if not_before_s > now_s:
                continue
            if _is_written(self._job.part_path(part)):
                # by what an earlier launch left on a cluster; its record comes when it is whole
                self._not_before_s[part] = now_s + LOOK_S
                continue
            del self._not_before_s[part]
            self._attempts[part] += 1
            task = self._job.task(part, self._attempts[part])
            self._running[self._engine.submit(task)] = part

    def _end(self, done: Iterable[Future[int]]) -> None:
        """Note how attempts ended; those that failed are run again, or given up."""
        for future in done:
            number = self._running.pop(future)
            part = _whole_part(self._job, number)
            if part is not None:
                self._whole[number] = part
                continue
            status, text = _end_of(future)
            attempt = self._attempts[number]
            if status == MISTAKE or attempt > self._retries:
                self.failed.append(number)
                then = "given up"
            else:
                pause_s = min(2.0 ** (attempt - 1), LONGEST_PAUSE_S)
                self._not_before_s[number] = time.monotonic() + pause_s
                then = f"attempt {attempt + 1} of {self._retries + 1} follows"
            last = last_lines(self._job.log_path(number), 1)
            self._say("; ".join([f"part {number}/{self._job.n_parts}: {text}", then, *last]))

    def _standing(self) -> Standing:
        running = self._running.values()
        return Standing(
            n_parts=self._job.n_parts,
            n_whole=len(self._whole),
            n_running=len(running),
            n_failed=len(self.failed),
            rows_whole=sum(part.record.n_rows for part in self._whole.values()),
            rows_running=tuple(_committed_rows(self._job.part_path(part)) for part in running),
        )


def find_whole(job: Job) -> FoundParts:
    """Find the whole parts of a job that was launched before.

    Raises SchemaError if there are parts of another command, of other inputs, or of another number
    of parts.
    """
    folder = parts_folder(job.out)
    if not folder.is_dir():
        return FoundParts([], job.n_parts, [])
    found = find_parts(folder)
    for part in found.parts:
        _check_of_job(job, part)
    return FoundParts(found.parts, job.n_parts, found.left_out)


def _check_of_job(job: Job, part: Part) -> None:
    record = part.record
    of_command = (record.command, record.arguments_sha256) == (job.command, job.arguments_sha256)
    of_inputs = record.inputs_sha256 == job.inputs_sha256
    if of_command and of_inputs and record.n_parts == job.n_parts:
        return
    of = "" if of_inputs else " of other inputs, or of inputs that were changed since"
    of = of if of_command else " of another command"
    raise SchemaError(
        f"{part.path}: expected a part of this command, in {job.n_parts} parts, found part "
        f"{record.part}/{record.n_parts}{of}; repeat the launch that made it, move "
        f"{parts_folder(job.out)} away, or choose another OUT"
    )


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


def _end_of(future: Future[int]) -> tuple[int | None, str]:
    """The exit status of an attempt, None if it has none; and how it ended, in a few words."""
    if future.cancelled():
        return None, "no worker has it: cancelled"
    error = future.exception()
    if error is not None:
        return None, f"no worker has it: {one_line(error)}"
    status = future.result()
    return status, f"ended by signal {-status}" if status < 0 else f"exit status {status}"


def _is_written(path: Path) -> bool:
    """Whether another process makes the store at `path` now."""
    with suppress(OSError):
        return has_writer(_partial(path))
    return False


def _partial(path: Path) -> Path:
    """Where a store grows, as `store.write.build` has it, which takes torch."""
    return path.with_name(path.name + PARTIAL)


def _whole_part(job: Job, number: int) -> Part | None:
    """A part, if it is whole."""
    with suppress(NotFoundError, CorruptError):
        part = find_part(job.part_path(number))
        _check_of_job(job, part)
        return part
    return None


def _committed_rows(path: Path) -> int:
    """The traces that a running part has committed; 0 if it has not begun."""
    for root in (path, _partial(path)):
        with suppress(OSError, StoreError):
            return read_manifest(root).n_rows
    return 0
