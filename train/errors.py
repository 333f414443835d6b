"""What can go wrong in a run through no fault of the program, each in one line: where, expected, found, what to do."""

__all__ = ["CheckpointError", "ConfigError", "DataError", "OutputError", "ResourceError", "TrainError"]


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
