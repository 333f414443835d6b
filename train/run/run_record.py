"""The record of what a run was started with: run.json, written first and compared on resume.

`results.json`, which names the run, comes last.
"""

import fcntl
import json
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from lightning_fabric import Fabric

from store import TraceStore
from store.read.joined.joined_store import prefixes_of
from store.traces.origin import origins_of
from train.config import Arguments, Config, config_of_run, flag_of
from train.data.batches import TrainingData, has_numbers
from train.errors import CheckpointError, ConfigError, OutputError
from train.evaluate.results import StoreRecord
from train.files import read_json, write_text
from train.outside import Difference, outside_differences
from train.records import WrongValueError, from_json
from train.run.checkpoint import RunDirectory

__all__ = [
    "Inputs",
    "begin_run",
    "check_agreement",
    "describe_store",
    "find_disagreement",
    "lock_directory",
]

HALF_WRITTEN = ".*.[0-9]*.tmp"  # what a process that was killed has left, see `replacing`


@dataclass(frozen=True)
class Inputs:
    """Everything that the results of a run depend on."""

    store: StoreRecord
    split_sha256: str | None  # of the rows in each split
    config: Config

    @classmethod
    def of(cls, config: Config, data: TrainingData) -> "Inputs":
        return cls(describe_store(data.store), data.splits.digest(), config)

    def differences(self, other: "Inputs") -> list[Difference]:
        """What differs from another run; settings without influence may."""
        pairs: list[Difference] = [
            (f"store: {key}", getattr(self.store, key), getattr(other.store, key))
            for key in ("uuid", "generation", "rows")
        ]
        # a file of splits may have changed
        pairs.append(("splits: digest", self.split_sha256, other.split_sha256))
        pairs += [
            (flag_of(one.name), getattr(self.config, one.name), getattr(other.config, one.name))
            for one in fields(Config)
            if not one.metadata["free"]
        ]
        pairs += outside_differences(self.config.outside, other.config.outside)
        return [(what, one, another) for what, one, another in pairs if one != another]


@dataclass(frozen=True)
class Begun:
    """What run.json has beside the settings."""

    run: str
    store: StoreRecord
    split_sha256: str | None = None


def begin_run(
    path: Path | None,
    arguments: Arguments,
    data: TrainingData,
    layers: dict[str, list[int]],
    id: str | None = None,
) -> RunDirectory:
    """Start a run in a directory that exists, or continue the one that is there.

    Without a path the run is kept in memory. `layers` are those that are read of each column, as
    the model numbers them. `id` is that of a run which was kept in memory until now.

    Raises ConfigError if an unfinished run is there and neither --resume nor --overwrite says what
    to do with it, or if it was started with other settings or another store.
    """
    if path is None:
        return RunDirectory(Path(), uuid.uuid4().hex, memory={})
    remove_files(path, HALF_WRITTEN, f"*/{HALF_WRITTEN}")
    inputs = Inputs.of(arguments.config, data)
    file = path / "run.json"
    earlier = read_record(file)
    if earlier is not None and arguments.resume:
        differences = find_differences(file, earlier, inputs)
        if differences:
            raise ConfigError(
                f"--resume: {file}: expected the settings and the store of the run, found "
                f"{'; '.join(differences)}; give the same ones, or choose another --output-dir"
            )
        return RunDirectory(path, str(earlier["run"]), resumed=True)
    replaces = False
    if earlier is not None:
        if not arguments.overwrite:
            replaces = check_replaceable(path, earlier, inputs)
        remove_files(path, "results.json", "*.pt", "split-*/results.json", "split-*/*.pt")
    run = RunDirectory(path, id or uuid.uuid4().hex, replaces=replaces)
    record = {"run": run.id, "layers": layers, **asdict(inputs)}
    write_text(file, json.dumps(record, indent=1) + "\n")
    return run


def remove_files(path: Path, *patterns: str) -> None:
    for pattern in patterns:
        for file in path.glob(pattern):
            file.unlink(missing_ok=True)


@contextmanager
def lock_directory(path: Path) -> Iterator[None]:
    """Raise ConfigError if another process trains into a directory; the lock dies with us."""
    with (path / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"--output-dir: {path}: another process is training into it; wait for it, or "
                "choose another --output-dir"
            ) from error
        except OSError as error:  # some network file systems are mounted without locks
            raise OutputError(
                f"--output-dir: {path}: cannot be locked: {error.strerror}; choose a file system "
                "that has locks"
            ) from error
        yield


def describe_store(store: TraceStore) -> StoreRecord:
    """What identifies a state of a store, and the model that its traces are of."""
    return StoreRecord(
        path=store.location,
        uuid=store.uuid,
        generation=store.generation,
        rows=len(store),
        origins=origins_of(store.provenance),
        layers_recorded=has_numbers(store),
        id_prefixes={prefix: part.uuid for prefix, part in prefixes_of(store).items()},
        uuids=[part.uuid for part in store.parts],
    )


def check_replaceable(path: Path, earlier: dict[str, object], inputs: Inputs) -> bool:
    """Whether a new run replaces a finished one, of the same settings.

    Raises ConfigError if it would replace an unfinished one, or one of other settings.
    """
    results = read_record(path / "results.json")
    is_finished = results is not None and results.get("run") == earlier.get("run")
    if not is_finished and any(path.glob("*-seed*.pt")):
        raise ConfigError(
            f"--output-dir: {path}: there is an unfinished run, that of run.json; give --resume to "
            "continue it, --overwrite to delete it, or another --output-dir"
        )
    try:
        differences = find_differences(path / "run.json", earlier, inputs)
    except ConfigError as error:
        raise ConfigError(
            f"--output-dir: {path}: there is a run whose settings cannot be compared ({error}); "
            "give --overwrite to delete it, or another --output-dir"
        ) from error
    if differences and results is not None:
        raise ConfigError(
            f"--output-dir: {path}: there are results of another run, which differs in "
            f"{'; '.join(differences)}; give --overwrite to delete them, or another --output-dir"
        )
    return is_finished


def find_differences(path: Path, earlier: dict[str, object], inputs: Inputs) -> list[str]:
    """What differs from run.json, of everything that the results of a run depend on."""
    config = config_of_run(earlier, str(path))
    try:
        begun = from_json(Begun, earlier)
    except WrongValueError as error:
        raise CheckpointError(f"{path}: not the record of a run; give --overwrite") from error
    then = Inputs(begun.store, begun.split_sha256, config)
    return [f"{what} {a!r} (the run: {b!r})" for what, a, b in inputs.differences(then)]


def read_record(path: Path) -> dict[str, object] | None:
    """The content of run.json or results.json; None where there is no file."""
    if not path.exists():
        return None
    try:
        return read_json(path)
    except ValueError as error:
        raise CheckpointError(f"{error}; train again") from error


def check_agreement(fabric: Fabric, config: Config, data: TrainingData) -> None:
    """Raise ConfigError, in every process, unless all of them are about to do the same.

    On several hosts each process opens the store for itself, and its file system may still show an
    older state of it: then batches would be of different rows, or the processes would wait for
    each other for ever.
    """
    if fabric.world_size == 1:
        return
    mine = socket.gethostname(), Inputs.of(config, data)
    processes = [mine] * fabric.world_size
    torch.distributed.all_gather_object(processes, mine)
    message = find_disagreement(processes)
    if message is not None:
        raise ConfigError(message)


def find_disagreement(processes: Sequence[tuple[str, Inputs]]) -> str | None:
    """What differs between the first process, (host, inputs), and another; None if nothing."""
    first_host, first = processes[0]
    for rank, (host, other) in enumerate(processes):
        differences = [
            f"{what} {expected!r:.80} as in process 0 on {first_host}, found {found!r:.80}"
            for what, expected, found in first.differences(other)
        ]
        if differences:
            return (
                f"torchrun: process {rank} on {host}: expected "
                f"{'; '.join(differences)}; give all hosts the same command and files, and where "
                "the store has just been written, wait until all of them see it"
            )
    return None
