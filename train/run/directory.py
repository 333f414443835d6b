"""The directory of a run: what the run was begun with, and what it has saved so far.

`run.json` is written first. Each training saves its state in `NAME-seedS.state.pt` while it lasts;
at its end the best weights go to `NAME-seedS.pt`, and the state is removed. `results.json`, which
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
from train.files import replace_file
from train.run.checkpoint import load_checkpoint, save_checkpoint

__all__ = ["RunDirectory", "begin_run", "describe_store", "lock_directory", "read_json"]

MAX_JSON_BYTES = 100_000_000


@dataclass(frozen=True)
class RunDirectory:
    """Where a run keeps its files.

    Attributes
    ----------
    path : Path
        The directory.
    id : str
        Tells this run from others that wrote to the same place.
    resumed : bool
        Whether this process goes on with what an earlier one saved; else what lies there is not
        looked at.
    """

    path: Path
    id: str
    resumed: bool = False

    def owner(self, name: str, seed: int) -> dict[str, Any]:
        """What the files of a training say of whose they are."""
        return {"run": self.id, "detector": name, "seed": seed}

    def checkpoint(self, name: str, seed: int) -> Path:
        """The best weights of a finished training."""
        return self.path / f"{name}-seed{seed}.pt"

    def state(self, name: str, seed: int) -> Path:
        """The state of a training that is under way."""
        return self.path / f"{name}-seed{seed}.state.pt"

    def save_state(self, name: str, seed: int, state: dict[str, Any]) -> None:
        """Keep the state of a training, in place of the one before."""
        save_checkpoint(self.state(name, seed), self.owner(name, seed), state)

    def load_state(self, name: str, seed: int) -> dict[str, Any] | None:
        """The state of a training that was stopped, on the CPU; None where none was saved."""
        path = self.state(name, seed)
        return (
            load_checkpoint(path, self.owner(name, seed))
            if self.resumed and path.exists()
            else None
        )

    def finish(self, name: str, seed: int, content: dict[str, Any]) -> None:
        """Keep the best weights and facts of a training, and drop its state."""
        save_checkpoint(self.checkpoint(name, seed), self.owner(name, seed), content)
        self.state(name, seed).unlink(missing_ok=True)

    def load_finished(self, name: str, seed: int) -> dict[str, Any] | None:
        """What `finish` wrote in this run; None if this training has not come so far."""
        path = self.checkpoint(name, seed)
        if not self.resumed or not path.exists():
            return None
        found = load_checkpoint(path)
        ours = found["owner"] == self.owner(name, seed)  # another run's will be replaced
        return check_trained(path, found) if ours else None

    def load_trained(self, name: str, seed: int) -> dict[str, Any]:
        """What `finish` wrote; raises CheckpointError where there is none, or something else."""
        path = self.checkpoint(name, seed)
        return check_trained(path, load_checkpoint(path, self.owner(name, seed)))


def check_trained(path: Path, found: dict[str, Any]) -> dict[str, Any]:
    """The content of a checkpoint; raises CheckpointError unless a training that came to its end
    wrote it."""
    if not all(isinstance(found.get(key), dict) for key in ("weights", "shapes", "config")):
        raise CheckpointError(
            f"{path}: expected the weights of a finished training, found none; train again"
        )
    return found


def begin_run(
    path: Path,
    config: Config,
    store: TraceStore,
    layers: dict[str, list[int]] | None = None,
    *,
    resume: bool,
    overwrite: bool,
) -> RunDirectory:
    """Begin a run in a directory that exists, or go on with the one that is there.

    `layers` are those that are read of each column, as the model numbers them.

    Raises
    ------
    ConfigError
        If an unfinished run is there and neither `resume` nor `overwrite` says what to do with it,
        or if it was begun with other settings or another store.
    """
    described = {
        "store": describe_store(store),
        "layers": layers or {},
        "config": asdict(config),
    }
    known = read_json(path / "run.json")
    if known is not None and resume:
        check_same(path / "run.json", known, described)
        return RunDirectory(path, known["run"], resumed=True)
    if known is not None and not overwrite:
        check_replaceable(path, known, described)
    run = RunDirectory(path, uuid.uuid4().hex)
    if known is not None:  # what lies there is a run's
        for old in (path / "results.json", *path.glob("*.pt")):
            old.unlink(missing_ok=True)
    with replace_file(path / "run.json") as temporary:
        temporary.write_text(json.dumps({"run": run.id, **described}, indent=1) + "\n")
    return run


@contextmanager
def lock_directory(path: Path) -> Iterator[None]:
    """Keep other processes from training into a directory; raises ConfigError if one does. The lock
    dies with us."""
    with (path / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"--output-dir: {path}: expected no other process that trains into it, found one; wait for it, or "
                "choose another --output-dir"
            ) from error
        yield


def describe_store(store: TraceStore) -> dict[str, Any]:
    """What tells one state of a store from all others, and its traces from those of other
    models."""
    return {
        "path": str(store.path),
        "uuid": store.uuid,
        "generation": store.generation,
        "rows": len(store),
        "origins": origins_of(store.provenance),
        "layers_recorded": has_numbers(store),
    }


def is_unfinished(path: Path, known: dict[str, Any]) -> bool:
    """Whether the run of run.json has saved something and not written its results."""
    results = read_json(path / "results.json")
    return any(path.glob("*-seed*.pt")) and (
        results is None or results.get("run") != known.get("run")
    )


def check_replaceable(path: Path, known: dict[str, Any], described: dict[str, Any]) -> None:
    """Raise ConfigError if a new run would cost one that is unfinished, or that was made with other
    settings."""
    if is_unfinished(path, known):
        raise ConfigError(
            f"--output-dir: {path}: expected no unfinished run, found that of run.json; give --resume to go on with "
            "it, --overwrite to lose it, or another --output-dir"
        )
    try:
        differences = find_differences(path / "run.json", known, described)
    except ConfigError as error:
        raise ConfigError(
            f"--output-dir: {path}: a run is there whose settings cannot be compared ({error}); give --overwrite to "
            "lose it, or another --output-dir"
        ) from error
    if differences and read_json(path / "results.json") is not None:
        raise ConfigError(
            f"--output-dir: {path}: expected no results of another run, found those of run.json, which differs in "
            f"{'; '.join(differences)}; give --overwrite to lose them, or another --output-dir"
        )


def check_same(path: Path, known: dict[str, Any], described: dict[str, Any]) -> None:
    """Raise ConfigError, which shows the differences, unless a run was begun with these settings on
    this store."""
    differences = find_differences(path, known, described)
    if differences:
        raise ConfigError(
            f"--resume: {path}: expected the settings and the store that the run was begun with, found "
            f"{'; '.join(differences)}; give the same ones, or train anew in another --output-dir"
        )


def find_differences(path: Path, known: dict[str, Any], described: dict[str, Any]) -> list[str]:
    """What is not as it was when the run of run.json began, of all that its results depend on."""
    store, config = known.get("store"), settings_of(known, str(path))
    if not isinstance(store, dict) or not isinstance(known.get("run"), str):
        raise CheckpointError(
            f"{path}: expected what a run was begun with, found something else; give --overwrite"
        )
    differences = [
        f"store: {key} {described['store'][key]!r} (the run: {store.get(key)!r})"
        for key in ("uuid", "generation", "rows")
        if store.get(key) != described["store"][key]
    ]
    for setting in fields(Config):
        now, then = described["config"][setting.name], config.get(setting.name, setting.default)
        if now != then and not setting.metadata["free"]:
            differences.append(f"{flag_of(setting.name)} {now!r} (the run: {then!r})")
    return differences


def read_json(path: Path) -> dict[str, Any] | None:
    """Read an object from a JSON file; None where there is no file, CheckpointError for anything
    else."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(
                f"{path}: expected at most {MAX_JSON_BYTES:,} bytes, found more; train again"
            )
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: expected a JSON file of a run, found: {error!s:.200}; train again"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path}: expected an object, found {type(content).__name__}; train again"
        )
    return content
