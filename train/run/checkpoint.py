"""Weights and states of a training, on disk: written atomically, loaded without running code, tied
to their run.

A checkpoint names its run, its detector and its seed. Loading asks for all three, so the file that
another run left in the same directory is refused, never used.
"""

from __future__ import annotations

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
from train.files import replace_file

__all__ = ["load_checkpoint", "load_weights", "save_checkpoint"]

UNREADABLE = (
    RuntimeError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
)


def save_checkpoint(path: Path, owner: dict[str, Any], content: Mapping[str, Any]) -> None:
    """Write tensors and plain values of `owner` = {"run", "detector", "seed"}."""
    buffer = io.BytesIO()  # torch.save to a path turns a full disk into a RuntimeError of its own
    torch.save({"owner": owner, **content}, buffer)
    with replace_file(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def load_checkpoint(path: Path, owner: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote, for the same `owner` if one is given, onto the CPU.

    Raises
    ------
    CheckpointError
        If the file is missing or unreadable, or another run's, detector's or seed's.
    """
    try:
        check_sums(path)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path}: expected a checkpoint, found no file; train again"
        ) from error
    except UNREADABLE as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{path}: expected a checkpoint, found an unreadable file ({reason}); train again"
        ) from error
    found = checkpoint.get("owner") if isinstance(checkpoint, dict) else type(checkpoint).__name__
    if not isinstance(found, dict) or (owner is not None and found != owner):
        raise CheckpointError(
            f"{path}: expected a checkpoint of {owner or 'a run'}, found one of {found}; train again"
        )
    return checkpoint


def check_sums(path: Path) -> None:
    """Raise BadZipFile if a byte of a checkpoint has changed; torch, which writes checksums, does
    not read them."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"wrong checksum of {damaged}")


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Give a module the weights that were read from `path`; raises CheckpointError if they are
    another's."""
    try:
        module.load_state_dict(dict(weights))
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{path}: expected the weights of this detector, found others ({reason:.200}); train again"
        ) from error
