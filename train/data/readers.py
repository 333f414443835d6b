"""What a method reads of a store, with the settings of a run."""

from dataclasses import asdict, replace
from typing import Any

from models import DETECTORS, find
from models.metadata import FieldProbe
from models.reader import FeatureReader, Reader
from train.config import Config, own_options
from train.data.batches import TrainingData
from train.data.metadata import metadata_columns
from train.outside.methods import NOTHING

__all__ = [
    "columns_of",
    "columns_with",
    "optional_to_score",
    "reader_of",
    "roles_of",
    "settings_for",
    "trained_on",
]


def roles_of(reader: Reader | type[Reader]) -> tuple[str, ...]:
    """The columns that a method reads: labels too, and those that may be missing."""
    return (*reader.columns, *_more(reader).optional, *reader.targets)


def _more(reader: Reader | type[Reader]) -> FeatureReader:
    """What may be read besides the columns; a detector reads nothing else."""
    return reader if isinstance(reader, FeatureReader) else FeatureReader()


def trained_on(name: str) -> tuple[str, ...]:
    """The columns besides those that a method scores from which its training has to have."""
    method = find(name)
    return (*method.targets, *_more(method).learns_from)


def reader_of(name: str, data: TrainingData) -> Any:
    """The detector or probe of a name, as it reads this store.

    The control of fields reads those that the store has.
    """
    reader = find(name)
    if isinstance(reader, FieldProbe):
        return replace(reader, columns=tuple(metadata_columns(data.store, data.config)))
    return reader


def columns_of(name: str, data: TrainingData) -> tuple[str, ...]:
    """Columns that a detector, probe or baseline reads of this store with these settings."""
    return columns_with(data.config, name, reader_of(name, data))


def columns_with(config: Config, name: str, reader: Any) -> tuple[str, ...]:
    """Columns that the reader of this name reads with some settings."""
    if name in DETECTORS:
        return reader.columns_for(settings_for(name, config))
    return reader.columns


def optional_to_score(reader: Reader | type[Reader]) -> list[str]:
    """Columns that a method scores from where they are there."""
    more = _more(reader)
    return [role for role in more.optional if role not in more.learns_from]


def settings_for(name: str, config: Config) -> dict[str, object]:
    """All settings by name, and the options that a detector has for itself."""
    given = config.outside.get(name, NOTHING).options
    return asdict(config) | own_options(name, DETECTORS[name].options, given)
