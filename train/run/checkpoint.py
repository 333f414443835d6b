"""What a run has saved, and what resumes it: written atomically, loaded without running code.

While a training lasts its state is saved in `NAME-seedS.state.pt`; at its end the best weights go
to `NAME-seedS.pt`, and the state is removed. A checkpoint names its owner: run, detector and seed.
Loading compares all three, so a file that another run left in the same directory is refused.
"""

from __future__ import annotations

import io
import pickle
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import torch
from torch import Tensor, nn

from train.data.questions import Asked
from train.errors import CheckpointError
from train.evaluate.results import TrainingFacts
from train.files import make_directory, replace_file
from train.records import Range, WrongValueError, as_json, from_json, read_value

__all__ = [
    "Checkpoint",
    "FinishedTraining",
    "RunDirectory",
    "TrainingFiles",
    "check_layer",
    "load_checkpoint",
    "load_weights",
    "save_checkpoint",
]

AGAIN = "remove it and train again"  # --resume begins anew what has no file
Owner = Mapping[str, str | int]  # its "run", "detector" and "seed"
Checkpoint = dict[str, Any]  # tensors and plain values, and their owner
Size = Annotated[int, Range(1, 2**31 - 1, "a size above 0")]
UNREADABLE = (
    RuntimeError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
)


def save_checkpoint(path: Path, owner: Owner, content: Mapping[str, object]) -> None:
    """Write tensors and plain values."""
    buffer = io.BytesIO()  # torch.save to a path turns a full disk into a RuntimeError of its own
    torch.save({"owner": owner, **content}, buffer)
    with replace_file(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def load_checkpoint(path: Path, owner: Owner | None = None) -> Checkpoint:
    """Read what `save_checkpoint` wrote onto the CPU.

    Raises CheckpointError if the file is missing, unreadable or no checkpoint, or has another owner
    than `owner`.
    """
    try:
        check_sums(path)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no checkpoint; train again") from error
    except UNREADABLE as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path}: unreadable checkpoint ({reason}); {AGAIN}") from error
    return check_owner(path, checkpoint, owner)


def check_owner(path: Path, checkpoint: Any, owner: Owner | None) -> Checkpoint:
    """The checkpoint; raises CheckpointError if it has another owner than `owner`, or is none."""
    found = checkpoint.get("owner") if isinstance(checkpoint, dict) else None
    if not isinstance(found, dict) or not all(isinstance(one, str | int) for one in found.values()):
        raise CheckpointError(f"{path}: the file is not a checkpoint; {AGAIN}")
    if owner is not None and found != owner:
        raise CheckpointError(
            f"{path}: expected a checkpoint of {owner}, found one of {found}; {AGAIN}"
        )
    return checkpoint


def check_sums(path: Path) -> None:
    """Raise BadZipFile if a byte has changed: torch writes checksums, but does not check them."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"wrong checksum of {damaged}")


def load_weights(
    module: nn.Module, weights: Mapping[str, Tensor], path: Path, *, assign: bool = False
) -> None:
    """Load weights read from `path`; raises CheckpointError if they do not fit the module.

    With `assign` they take the place of its own, as in one on the device "meta".
    """
    try:
        module.load_state_dict(dict(weights), assign=assign)
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{path}: the weights do not fit this detector ({reason:.200}); {AGAIN}"
        ) from error


@dataclass(frozen=True)
class FinishedTraining:
    """The best weights of a training, and what is known of it."""

    weights: dict[str, Tensor]
    shapes: dict[str, list[int]]  # column that the detector reads -> shape of one item
    config: dict[str, object]
    facts: TrainingFacts
    followed: Sequence[Asked] = ()  # what it learned from a store that it has followed


TRIAL = "-try-"
CONTENT = ("weights", "shapes", "config")  # of a checkpoint, beside the facts
HERE = ("seed", "checkpoint", "ms_per_trace")  # facts that the file's name or its reader tells


@dataclass(frozen=True)
class RunDirectory:
    """Where a run keeps its checkpoints: files, or in memory under the names of these files."""

    path: Path
    id: str  # distinguishes this run from others that wrote to the same place
    # whether this process continues what an earlier one saved; else files that are there are
    # not read
    resumed: bool = False
    memory: dict[Path, Checkpoint] | None = None  # what is kept in memory, by path; None: files are
    replaces: bool = False  # whether a finished run of the same settings was there

    def save(self, path: Path, owner: Owner, content: Mapping[str, object]) -> None:
        if self.memory is None:
            save_checkpoint(path, owner, content)
        else:
            self.memory[path] = {"owner": owner, **content}

    def load(self, path: Path, owner: Owner | None = None) -> Checkpoint:
        """What `save` was given; raises CheckpointError as `load_checkpoint`."""
        if self.memory is None:
            return load_checkpoint(path, owner)
        if path not in self.memory:
            raise CheckpointError(f"{path}: there is no checkpoint; train again")
        return check_owner(path, self.memory[path], owner)

    def copy_to(self, directory: Path) -> None:
        """Write what is kept in memory as files."""
        for path, content in (self.memory or {}).items():
            place = directory / path
            make_directory(place.parent)
            save_checkpoint(place, content["owner"], content)

    def remove(self, pattern: str) -> None:
        """Remove the checkpoints whose names have a form."""
        if self.memory is None:
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)
        else:
            for path in [one for one in self.memory if one.parent == self.path]:
                if path.match(pattern):
                    del self.memory[path]

    def split(self, seed: int, hold_out: str | None = None) -> RunDirectory:
        """Where the run keeps the files of another split than its first."""
        name = seed if hold_out is None else f"without-{quote(hold_out, safe='')}"
        return replace(self, path=self.path / f"split-{name}")

    def training(self, name: str, seed: int) -> TrainingFiles:
        return TrainingFiles(self, name, seed)

    def probe(self, name: str) -> Path:
        return self.path / f"{name}.pt"


@dataclass(frozen=True)
class TrainingFiles:
    """The files of a training: its state while it is under way, then its best weights."""

    run: RunDirectory
    name: str
    seed: int
    trial: str = ""

    @property
    def stem(self) -> str:
        return f"{self.name}-seed{self.seed}{self.trial}"

    def trial_of(self, settings: Mapping[str, object]) -> TrainingFiles:
        """The files of a short training with some settings, which decides about this one's."""
        texts = [f"{one:.3g}" if isinstance(one, float) else str(one) for one in settings.values()]
        return replace(self, trial=TRIAL + "-".join(texts))

    @property
    def owner(self) -> Owner:
        return {"run": self.run.id, "detector": self.name, "seed": self.seed}

    @property
    def checkpoint(self) -> Path:
        """Where the best weights go at the end."""
        return self.run.path / f"{self.stem}.pt"

    @property
    def state(self) -> Path:
        """Where the state goes until then."""
        return self.run.path / f"{self.stem}.state.pt"

    @property
    def log(self) -> Path:
        return self.run.path / "tensorboard" / self.stem

    def save_state(self, state: Mapping[str, object]) -> None:
        if self.run.memory is None:  # nothing is left to resume from else
            save_checkpoint(self.state, self.owner, state)

    def load_state(self) -> Checkpoint | None:
        """The state of a training that was stopped, on the CPU; None where none was saved."""
        if not self.run.resumed or not self.state.exists():
            return None
        return load_checkpoint(self.state, self.owner)

    def finish(self, finished: FinishedTraining) -> None:
        """Save the best weights and facts of the training, and remove its state and its trials."""
        content = {key: getattr(finished, key) for key in CONTENT}
        facts = {key: value for key, value in as_json(finished.facts).items() if key not in HERE}
        self.run.save(self.checkpoint, self.owner, content | facts)
        for pattern in (self.state.name, f"{self.stem}{TRIAL}*.pt"):
            self.run.remove(pattern)

    def load_finished(self) -> FinishedTraining | None:
        """What `finish` wrote in this run; None if the training has not ended yet."""
        if not self.run.resumed or not self.checkpoint.exists():
            return None
        content = load_checkpoint(self.checkpoint)
        if content["owner"] != self.owner:  # of another run: will be replaced
            return None
        return self._read_finished(content)

    def load_trained(self) -> FinishedTraining:
        """What `finish` wrote; raises CheckpointError where there is none, or something else."""
        return self._read_finished(self.run.load(self.checkpoint, self.owner))

    def _read_finished(self, content: Checkpoint) -> FinishedTraining:
        """A finished training; raises CheckpointError unless a training that ended wrote it."""
        path = self.checkpoint
        if not all(isinstance(content.get(key), dict) for key in CONTENT):
            raise CheckpointError(f"{path}: no weights of a finished training; train again")
        here = {"seed": self.seed, "checkpoint": path.name, "ms_per_trace": 0.0}
        try:
            facts = from_json(TrainingFacts, content | here)
            read_value(dict[str, list[Size]], content["shapes"], "shapes")
        except WrongValueError as error:
            raise CheckpointError(f"{path}: expected {error}; train again") from error
        return FinishedTraining(**{key: content[key] for key in CONTENT}, facts=facts)


def check_layer(path: Path, found: object, expected: str, layer: int | None) -> None:
    """Raise CheckpointError unless the training in a file reads the layer that it would now.

    `layer` is None where several are read, or none.
    """
    if type(found) is not type(layer) or found != layer:
        raise CheckpointError(
            f"{path}: expected a training on {expected}, found layer {found!r:.80}; "
            "train again: --overwrite"
        )
