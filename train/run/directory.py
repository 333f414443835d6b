"""The record of what a run was started with: run.json, written first and compared on resume.

`results.json`, which names the run, comes last.
"""

import fcntl
import json
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path

import torch
from lightning_fabric import Fabric

from store import TraceStore
from store.read.joined import prefixes_of
from store.traces.origin import origins_of
from train.config import Arguments, Config, flag_of, settings_of_run
from train.data.batches import TrainingData
from train.data.requirements import has_numbers
from train.errors import CheckpointError, ConfigError, OutputError
from train.evaluate.results import StoreRecord
from train.files import Json, read_json, write_text
from train.outside.records import Difference, outside_differences
from train.run.checkpoint import RunDirectory

__all__ = [
    "begin_run",
    "check_agreement",
    "describe_store",
    "find_disagreement",
    "lock_directory",
]


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
    record = {"layers": layers, **describe_run(arguments.config, data)}
    file = path / "run.json"
    earlier = read_record(file)
    if earlier is not None and arguments.resume:
        differences = find_differences(file, earlier, record)
        if differences:
            raise ConfigError(
                f"--resume: {file}: expected the settings and the store of the run, found "
                f"{'; '.join(differences)}; give the same ones, or choose another --output-dir"
            )
        return RunDirectory(path, earlier["run"], resumed=True)
    if earlier is not None:
        if not arguments.overwrite:
            check_replaceable(path, earlier, record)
        for pattern in ("results.json", "*.pt", "split-*/results.json", "split-*/*.pt"):
            for old in path.glob(pattern):
                old.unlink(missing_ok=True)
    run = RunDirectory(path, id or uuid.uuid4().hex)
    write_text(file, json.dumps({"run": run.id, **record}, indent=1) + "\n")
    return run


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
    )


def check_replaceable(path: Path, earlier: Json, record: Json) -> None:
    """Raise ConfigError if a new run would replace an unfinished one, or one of other settings."""
    results = read_record(path / "results.json")
    is_finished = results is not None and results.get("run") == earlier.get("run")
    if not is_finished and any(path.glob("*-seed*.pt")):
        raise ConfigError(
            f"--output-dir: {path}: there is an unfinished run, that of run.json; give --resume to "
            "continue it, --overwrite to delete it, or another --output-dir"
        )
    try:
        differences = find_differences(path / "run.json", earlier, record)
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


def find_differences(path: Path, earlier: Json, record: Json) -> list[str]:
    """What differs from run.json, of everything that the results of a run depend on."""
    config = settings_of_run(earlier, str(path))
    if not isinstance(earlier.get("store"), dict) or not isinstance(earlier.get("run"), str):
        raise CheckpointError(f"{path}: not the record of a run; give --overwrite")
    then = {"split_sha256": None, **earlier, "config": config}
    return [f"{what} {a!r} (the run: {b!r})" for what, a, b in compare_records(record, then)]


def describe_run(config: Config, data: TrainingData) -> Json:
    """Everything that the results of a run depend on."""
    return {
        "store": asdict(describe_store(data.store)),
        "split_sha256": data.splits.digest(),
        "config": asdict(config),
    }


def compare_records(a: Json, b: Json) -> list[Difference]:
    """What differs between two records of `describe_run`; settings without influence may."""
    pairs: list[Difference] = [
        (f"store: {key}", a["store"][key], b["store"].get(key))
        for key in ("uuid", "generation", "rows")
    ]
    # a file of splits may have changed
    pairs.append(("splits: digest", a["split_sha256"], b["split_sha256"]))
    for setting in fields(Config):
        if not setting.metadata["free"]:
            name = setting.name
            pairs.append((flag_of(name), a["config"][name], b["config"][name]))
    pairs += outside_differences(a["config"]["outside"], b["config"].get("outside"))
    return [(what, one, other) for what, one, other in pairs if one != other]


def read_record(path: Path) -> Json | None:
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
    records: list[Json] = [{} for _ in range(fabric.world_size)]
    mine = {"host": socket.gethostname(), **describe_run(config, data)}
    torch.distributed.all_gather_object(records, mine)
    message = find_disagreement(records)
    if message is not None:
        raise ConfigError(message)


def find_disagreement(records: list[Json]) -> str | None:
    """What differs between the first process and another, by their number; None if nothing."""
    first = records[0]
    for rank, other in enumerate(records):
        differences = [
            f"{what} {expected!r:.80} as in process 0 on {first['host']}, found {found!r:.80}"
            for what, expected, found in compare_records(first, other)
        ]
        if differences:
            return (
                f"torchrun: process {rank} on {other['host']}: expected "
                f"{'; '.join(differences)}; give all hosts the same command and files, and where "
                "the store has just been written, wait until all of them see it"
            )
    return None
