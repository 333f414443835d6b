"""Trainings beside each other, each in a forked process whose progress this one shows."""

import multiprocessing
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Concatenate, ParamSpec, TypeVar, cast

from lightning_fabric import Fabric
from rich.file_proxy import FileProxy

from store import StoreError
from store.system import available_cores, end_with_parent
from train.config import Config
from train.errors import ConfigError, ResourceError, TrainError
from train.run.progress import Relay, TrainingBar, TrainingProgress, send
from train.run.trainer import Trainer

__all__ = ["Jobs", "count_jobs"]

MOST = 4  # at once by default: each has batches of its own in memory
STOP_S = 5.0  # that a process has to leave nothing half-written
PASSED_ON = (TrainError, StoreError, MemoryError, OSError)

Result = TypeVar("Result")
Rest = ParamSpec("Rest")
Call = Callable[[Trainer], object]


def count_jobs(config: Config, fabric: Fabric, n_threads: int, n_trainings: int) -> int:
    """How many of the trainings, and of the baselines beside them, run at once.

    A process can be forked where it has one thread of arithmetic, and uses no GPU. Raises
    ConfigError if more are asked for where it cannot.
    """
    obstacle = None
    if "fork" not in multiprocessing.get_all_start_methods():
        obstacle = "on a system without fork"
    elif fabric.world_size > 1:
        obstacle = f"where {fabric.world_size} processes share each batch"
    elif fabric.device.type != "cpu":
        obstacle = f"on a device of type {fabric.device.type}"
    elif n_threads > 1:
        obstacle = f"with {n_threads} threads of arithmetic"
    if obstacle and (config.jobs or 1) > 1:
        raise ConfigError(f"--jobs: expected 1 {obstacle}, found {config.jobs}")
    most = 1 if obstacle else config.jobs or min(MOST, available_cores())
    return min(most, n_trainings + 1)


@dataclass(frozen=True)
class Running:
    """A process, what is expected of it, and the bars of its trainings, of which the last moves."""

    process: BaseProcess
    future: Future
    bars: list[TrainingBar] = field(default_factory=list)


class Jobs(AbstractContextManager):
    """Has a trainer make calls: one after the other here, or several at once in processes.

    Results are the same either way. Within the block progress is shown; at its end no process is
    left.
    """

    def __init__(self, trainer: Trainer, n_at_once: int = 1) -> None:
        assert isinstance(trainer.progress, TrainingProgress)  # which is of this process
        self.trainer = trainer
        self.progress = trainer.progress
        self.n_at_once = n_at_once
        self.waiting: deque[tuple[Call, Future]] = deque()
        self.running: dict[Connection, Running] = {}

    def __enter__(self) -> "Jobs":
        self.progress.start()
        return self

    def submit(
        self,
        call: Callable[Concatenate[Trainer, Rest], Result],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> Future[Result]:
        """Have a method of the trainer called; what is submitted first begins first."""
        future: Future[Result] = Future()

        def bound(trainer: Trainer) -> Result:
            return call(trainer, *args, **kwargs)

        if self.n_at_once == 1:
            future.set_result(made(bound, self.trainer))
        else:
            self.waiting.append((bound, future))
            self._start()
        return future

    def result(self, future: Future[Result]) -> Result:
        """What a call returns, once it has; raises what any of those that run raises."""
        while not future.done():
            for connection in wait(list(self.running)):
                self._read(cast(Connection, connection))
            self._start()
        return future.result()

    def __exit__(self, *_: object) -> None:
        processes = [one.process for one in self.running.values()]
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(STOP_S)
            process.kill()
            process.join()
        self.progress.stop()

    def _start(self) -> None:
        """Begin as many of the waiting calls as may run."""
        forking = multiprocessing.get_context("fork")
        while self.waiting and len(self.running) < self.n_at_once:
            call, future = self.waiting.popleft()
            here, there = forking.Pipe(duplex=False)
            arguments = (there, call, self.trainer, os.getpid())
            process = forking.Process(target=make_call, args=arguments)
            with warnings.catch_warnings():  # of threads, which hold no lock that the child needs
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            there.close()
            self.running[here] = Running(process, future)

    def _read(self, connection: Connection) -> None:
        """Act on a message of a process, or on its end."""
        one = self.running[connection]
        try:
            what, content = pickle.loads(connection.recv_bytes())  # noqa: S301 - of our own child
        except (EOFError, OSError):  # the latter within a message
            one.process.join()
            raise ResourceError(
                f"a process that trained has ended, with status {one.process.exitcode}; --jobs 1 "
                "shows why, and needs less memory, if the system ended it for want of that"
            ) from None
        if what == "failed":
            raise content[0]
        if what == "done":
            result, saved = content
            if self.trainer.directory.memory is not None:
                self.trainer.directory.memory.update(saved)
            one.future.set_result(result)
            one.process.join()
            del self.running[connection]
            connection.close()
        elif what == "begin":
            one.bars.append(self.progress.begin(*content))
        else:
            getattr(self.progress if what == "say" else one.bars[-1], what)(*content)


def made(call: Callable[[Trainer], Result], trainer: Trainer) -> Result:
    """What a call returns; raises ConfigError where a method would end the process."""
    try:
        return call(trainer)
    except Terminated:
        raise
    except SystemExit as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"{place.filename}, line {place.lineno}: a method has called exit({error.code!r:.80}); "
            "have it raise an error that says why"
        ) from error


def as_sent(error: Exception) -> Exception:
    """An error that says the same once it is pickled and read, of a kind that is acted on."""
    known = next((kind for kind in PASSED_ON if isinstance(error, kind)), None)
    if known is None:
        return RuntimeError("".join(traceback.format_exception(error)))
    try:
        is_whole = str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - a constructor that takes other arguments
        is_whole = False
    return error if is_whole else known(str(error))


class Terminated(SystemExit):
    """The parent has no use for this process any more."""


def terminate(number: int, _: object) -> None:
    raise Terminated(128 + number)


def make_call(connection: Connection, call: Call, trainer: Trainer, parent: int) -> None:
    """Make a call in this process, which was forked for it, and send what comes of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when it is time
    signal.signal(signal.SIGTERM, terminate)
    end_with_parent(parent, signal.SIGKILL)  # as if all were one process
    for name in ("stdout", "stderr"):  # they would write through the bars of the parent
        stream = getattr(sys, name)
        if isinstance(stream, FileProxy):
            setattr(sys, name, stream.rich_proxied_file)
    memory = trainer.directory.memory
    before = set(memory or ())
    try:
        result = made(call, replace(trainer, progress=Relay(connection)))
    except Exception as error:  # noqa: BLE001 - it is raised in the parent
        send(connection, "failed", as_sent(error))
    else:
        saved = {path: one for path, one in (memory or {}).items() if path not in before}
        send(connection, "done", result, saved)
