"""What makes two commands parts of one job: the arguments that decide the rows, and the inputs."""

import argparse
import hashlib
import json
import os
from pathlib import Path
from typing import Any

__all__ = ["arguments_digest", "file_digest", "recorded_inputs"]

BLOCK_BYTES = 1 << 20
INPUTS = ("sources", "questions")
# where a part goes and how it is computed, which may differ from worker to worker
UNDECIDING = (
    "store",
    "part",
    "typed",
    "inspect",
    "ignore_space",
    "batch_size",
    "device",
    "device_map",
    "max_file_gb",
)


def arguments_digest(args: argparse.Namespace) -> str:
    """Return the SHA-256 of the arguments that decide the rows, as hexadecimal digits.

    A file that an option names counts by its content, a folder by its name. Raises OSError if one
    cannot be read.
    """
    deciding = {
        name: _stable(value)
        for name, value in vars(args).items()
        if name not in UNDECIDING + INPUTS
    }
    canonical = json.dumps(deciding, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _stable(value: Any) -> Any:
    if isinstance(value, Path):
        return {"sha256": file_digest(value)}
    if isinstance(value, str) and Path(value).is_dir():
        return os.path.realpath(value)
    return value


def recorded_inputs(args: argparse.Namespace, provenance: dict[str, Any]) -> str:
    """Return the SHA-256 of what is imported, or asked, as hexadecimal digits.

    `provenance` is of the store that the import or extraction made: an import records its files'
    names, sizes and times there, those of the other parts included.
    """
    if args.command == "extract":
        return file_digest(args.questions)
    return str(provenance["files_sha256"])


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
