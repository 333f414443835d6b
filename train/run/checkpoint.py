"""Weights and states of a training on disk: written atomically, loaded without running code.

A checkpoint names its owner: run, detector and seed. Loading compares all three, so a file that
another run left in the same directory is refused.
"""

import io
import pickle
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from train.errors import CheckpointError
from train.files import Json, replace_file

__all__ = ["load_checkpoint", "load_weights", "save_checkpoint"]

AGAIN = "remove it and train again"  # --resume begins anew what has no file
UNREADABLE = (
    RuntimeError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
)


def save_checkpoint(path: Path, owner: Json, content: Mapping[str, Any]) -> None:
    """Write tensors and plain values of `owner` = {"run", "detector", "seed"}."""
    buffer = io.BytesIO()  # torch.save to a path turns a full disk into a RuntimeError of its own
    torch.save({"owner": owner, **content}, buffer)
    with replace_file(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def load_checkpoint(path: Path, owner: Json | None = None) -> Json:
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
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("owner"), dict):
        raise CheckpointError(f"{path}: the file is not a checkpoint; {AGAIN}")
    found = checkpoint["owner"]
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


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Load weights read from `path`; raises CheckpointError if they do not fit the module."""
    try:
        module.load_state_dict(dict(weights))
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{path}: the weights do not fit this detector ({reason:.200}); {AGAIN}"
        ) from error
