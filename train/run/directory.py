"""The directory of a run: what the run was begun with, and what it has saved so far.

`run.json` is written first. While a training lasts its state is saved in `NAME-seedS.state.pt`; at
its end the best weights go to `NAME-seedS.pt`, and the state is removed. `results.json`, which
names the run, comes last.
"""

from __future__ import annotations

import fcntl
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from store import TraceStore
from store.format.origin import origins_of
from train.config import Config, flag_of, settings_of
from train.data.requirements import has_numbers
from train.errors import CheckpointError, ConfigError
from train.files import read_json, replace_file
from train.run.checkpoint import load_checkpoint, save_checkpoint

__all__ = ["RunDirectory", "begin_run", "describe_store", "lock_directory"]


@dataclass(frozen=True)
class RunDirectory:
    """Where a run keeps its files.

    Attributes
    ----------
    path : Path
        The directory.
    id : str
        Distinguishes this run from others that wrote to the same place.
    resumed : bool
        Whether this process continues what an earlier one saved; else files that are there are not
        read.
    """

    path: Path
    id: str
    resumed: bool = False

    def owner(self, name: str, seed: int) -> dict[str, Any]:
        """What the files of a training record as their owner."""
        return {"run": self.id, "detector": name, "seed": seed}

    def checkpoint(self, name: str, seed: int) -> Path:
        """The best weights of a finished training."""
        return self.path / f"{name}-seed{seed}.pt"

    def state(self, name: str, seed: int) -> Path:
        """The state of a training that is under way."""
        return self.path / f"{name}-seed{seed}.state.pt"

    def save_state(self, name: str, seed: int, state: dict[str, Any]) -> None:
        """Save the state of a training; it replaces the one before."""
        save_checkpoint(self.state(name, seed), self.owner(name, seed), state)

    def load_state(self, name: str, seed: int) -> dict[str, Any] | None:
        """The state of a training that was stopped, on the CPU; None where none was saved."""
        path = self.state(name, seed)
        if not self.resumed or not path.exists():
            return None
        return load_checkpoint(path, self.owner(name, seed))

    def finish(self, name: str, seed: int, content: dict[str, Any]) -> None:
        """Save the best weights and facts of a training, and remove its state."""
        save_checkpoint(self.checkpoint(name, seed), self.owner(name, seed), content)
        self.state(name, seed).unlink(missing_ok=True)

    def load_finished(self, name: str, seed: int) -> dict[str, Any] | None:
        """What `finish` wrote in this run; None if this training has not ended yet."""
        path = self.checkpoint(name, seed)
        if not self.resumed or not path.exists():
            return None
        checkpoint = load_checkpoint(path)
        if checkpoint["owner"] != self.owner(name, seed):  # of another run: will be replaced
            return None
        return check_finished(path, checkpoint)

    def load_trained(self, name: str, seed: int) -> dict[str, Any]:
        """What `finish` wrote; raises CheckpointError where there is none, or something else."""
        path = self.checkpoint(name, seed)
        return check_finished(path, load_checkpoint(path, self.owner(name, seed)))


def check_finished(path: Path, checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint; raises CheckpointError unless a training that ended wrote it."""
    if not all(isinstance(checkpoint.get(key), dict) for key in ("weights", "shapes", "config")):
        raise CheckpointError(f"{path}: no weights of a finished training; train again")
    return checkpoint


def begin_run(
    path: Path,
    config: Config,
    store: TraceStore,
    layers: dict[str, list[int]] | None = None,
    *,
    resume: bool,
    overwrite: bool,
) -> RunDirectory:
    """Begin a run in a directory that exists, or continue the one that is there.

    `layers` are those that are read of each column, as the model numbers them.

    Raises
    ------
    ConfigError
        If an unfinished run is there and neither `resume` nor `overwrite` says what to do with it,
        or if it was begun with other settings or another store.
    """
    record = {"store": describe_store(store), "layers": layers or {}, "config": asdict(config)}
    file = path / "run.json"
    earlier = read_record(file)
    if earlier is not None and resume:
        check_same(file, earlier, record)
        return RunDirectory(path, earlier["run"], resumed=True)
    if earlier is not None:
        if not overwrite:
            check_replaceable(path, earlier, record)
        for old in (path / "results.json", *path.glob("*.pt")):
            old.unlink(missing_ok=True)
    run = RunDirectory(path, uuid.uuid4().hex)
    with replace_file(file) as temporary:
        temporary.write_text(json.dumps({"run": run.id, **record}, indent=1) + "\n")
    return run


@contextmanager
def lock_directory(path: Path) -> Iterator[None]:
    """Raise ConfigError if another process trains into a directory; the lock dies with us."""
    with (path / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"--output-dir: {path}: another process is training into it; wait for it, or "
                "choose another --output-dir"
            ) from error
        yield


def describe_store(store: TraceStore) -> dict[str, Any]:
    """What identifies a state of a store, and the model that its traces are of."""
    return {
        "path": str(store.path),
        "uuid": store.uuid,
        "generation": store.generation,
        "rows": len(store),
        "origins": origins_of(store.provenance),
        "layers_recorded": has_numbers(store),
    }


def check_replaceable(path: Path, earlier: dict[str, Any], record: dict[str, Any]) -> None:
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


def check_same(path: Path, earlier: dict[str, Any], record: dict[str, Any]) -> None:
    """Raise ConfigError, with the differences, unless settings and store are those of a run."""
    differences = find_differences(path, earlier, record)
    if differences:
        raise ConfigError(
            f"--resume: {path}: expected the settings and the store of the run, found "
            f"{'; '.join(differences)}; give the same ones, or choose another --output-dir"
        )


def find_differences(path: Path, earlier: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """What differs from run.json, of everything that the results of a run depend on."""
    config = settings_of(earlier, str(path))
    store = earlier.get("store")
    if not isinstance(store, dict) or not isinstance(earlier.get("run"), str):
        raise CheckpointError(f"{path}: not the record of a run; give --overwrite")
    differences = [
        f"store: {key} {record['store'][key]!r} (the run: {store.get(key)!r})"
        for key in ("uuid", "generation", "rows")
        if store.get(key) != record["store"][key]
    ]
    for setting in fields(Config):
        now = record["config"][setting.name]
        then = config.get(setting.name, setting.default)
        if now != then and not setting.metadata["free"]:
            differences.append(f"{flag_of(setting.name)} {now!r} (the run: {then!r})")
    return differences


def read_record(path: Path) -> dict[str, Any] | None:
    """The content of run.json or results.json; None where there is no file."""
    if not path.exists():
        return None
    try:
        return read_json(path)
    except ValueError as error:
        raise CheckpointError(f"{error}; train again") from error
