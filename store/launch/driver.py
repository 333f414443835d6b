"""Runs the parts of a job that are not whole, until each is, or has failed too often."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from store.errors import CorruptError, LockedError, NotFoundError, SchemaError, StoreError
from store.format.manifest import read_manifest
from store.launch.engine import MISTAKE, Ended, Engine
from store.launch.found import FoundParts, Part, find_part, find_parts
from store.launch.job import Job, parts_folder
from store.launch.schedule import Schedule, Standing
from store.launch.task import last_lines
from store.write.lock import WriterLock, has_writer

__all__ = ["find_whole", "held", "run_parts"]

POLL_S = 0.5
LOOK_S = 5.0  # between two looks at the traces of the parts at work
PARTIAL = ".partial"

Say = Callable[[str], None]
Report = Callable[[int, Standing], None]


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
    """Make the folder of the parts; raises LockedError if another launch is at work in it."""
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


def run_parts(job: Job, engine: Engine, schedule: Schedule, report: Report, say: Say) -> list[Part]:
    """Run parts, in no order; one that failed does not stop the others.

    The caller closes the engine. The schedule has the parts that are not whole; afterwards it knows
    which failed. `report` is called with the number of traces, and how far all parts are, every few
    seconds; `say` with a line about each attempt that failed. Returns the whole parts, those of
    earlier launches included, ascending.
    """
    look_s = float("-inf")
    whole = {part.record.part: part for part in find_whole(job).parts}
    while schedule.is_open:
        not_started = _start_free(job, engine, schedule)
        for ended in [*not_started, *engine.wait(POLL_S)]:
            part = _whole_part(job, ended.part)
            is_again = schedule.end(
                ended.part,
                time.monotonic(),
                is_whole=part is not None,
                is_final=ended.status == MISTAKE,
            )
            if part is None:
                say(_failure_text(job, ended, schedule, is_again=is_again))
            else:
                whole[ended.part] = part
        now_s = time.monotonic()
        if now_s - look_s >= LOOK_S:
            look_s = now_s
            standing = _standing(job, schedule, whole)
            report(standing.n_rows, standing)
    return find_whole(job).parts


def _start_free(job: Job, engine: Engine, schedule: Schedule) -> list[Ended]:
    """Give each free worker a part; return those that could not even be started."""
    now_s = time.monotonic()
    failed: list[Ended] = []
    while len(schedule.running) < engine.n_workers:
        part = schedule.next(now_s)
        if part is None:
            break
        if _is_written(job.part_path(part)):
            # by what an earlier launch left behind on a cluster; its record comes when it is whole
            schedule.postpone(part, now_s + LOOK_S)
            continue
        try:
            engine.start(job.task(part, schedule.start(part)))
        except OSError as error:  # its log cannot be written
            failed.append(Ended(part, None, str(error)))
    return failed


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


def _failure_text(job: Job, ended: Ended, schedule: Schedule, *, is_again: bool) -> str:
    attempt = schedule.attempts[ended.part]
    then = f"attempt {attempt + 1} of {schedule.retries + 1} follows" if is_again else "given up"
    last = last_lines(job.log_path(ended.part), 1)
    return "; ".join([f"part {ended.part}/{job.n_parts}: {ended.text()}", then, *last])


def _standing(job: Job, schedule: Schedule, whole: dict[int, Part]) -> Standing:
    return Standing(
        n_parts=job.n_parts,
        n_whole=len(whole),
        n_running=len(schedule.running),
        n_failed=len(schedule.failed),
        rows_whole=sum(part.record.n_rows for part in whole.values()),
        rows_running=tuple(_committed_rows(job.part_path(part)) for part in schedule.running),
    )


def _committed_rows(path: Path) -> int:
    """The traces that a part at work has committed; 0 if it has not begun."""
    for root in (path, _partial(path)):
        with suppress(OSError, StoreError):
            return read_manifest(root).n_rows
    return 0
