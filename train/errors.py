"""Errors of a run that the user can correct: one line that says where, what, and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

from store.errors import StoreError

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "OneClassError",
    "OutputError",
    "PeerError",
    "ResourceError",
    "TrainError",
    "store_errors",
]


class TrainError(Exception):
    """Base of the errors that end a run with one line and exit status 2."""


class ConfigError(TrainError, ValueError):
    """A setting out of its range, or one that contradicts another: correct the command."""


class DataError(TrainError):
    """The store cannot be trained on as it is: choose another or correct it."""


class OneClassError(DataError):
    """A split without right answers, or without hallucinations."""

    def __init__(self, message: str, found: str) -> None:
        super().__init__(message)
        self.found = found  # which split would have what, in words


class CheckpointError(TrainError):
    """A file of a run that is missing, damaged or of another run: train again."""


class OutputError(TrainError):
    """A result cannot be written: make room, or choose another place."""


class PeerError(TrainError):
    """Another process of the run has ended: read its message."""


class ResourceError(TrainError):
    """The device has too little memory for the run: lower the setting that is named."""


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn errors of the store into DataErrors of the same message."""
    try:
        yield
    except StoreError as error:
        raise DataError(str(error)) from error
