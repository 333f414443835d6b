"""What can go wrong in a run through no fault of the program, each in one line: where, expected,
found, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "OutputError",
    "ResourceError",
    "TrainError",
    "missing_package_message",
    "store_errors",
]


class TrainError(Exception):
    """Base of the errors that end a run with one line and exit status 2."""


class ConfigError(TrainError, ValueError):
    """A setting out of its range, or one that contradicts another: correct the command."""


class DataError(TrainError):
    """The store cannot be trained on as it is: choose or mend the store."""


class CheckpointError(TrainError):
    """A checkpoint that is not this run's: train again."""


class OutputError(TrainError):
    """A result could not be written: make room, or choose another place."""


class ResourceError(TrainError):
    """The device is too small for the run: lower what is named."""


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn what the store finds wrong into a DataError of the same words."""
    # here, because the store imports torch, which takes seconds
    from store.errors import StoreError

    try:
        yield
    except StoreError as error:
        raise DataError(str(error)) from error


def missing_package_message(error: ModuleNotFoundError) -> str | None:
    """One line for a required package that is not installed; None for a bug."""
    from store.extras import missing_package

    return missing_package(error)
