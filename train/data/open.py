"""Open the stores of a run; and whether one records which layers it keeps."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from store import TraceStore
from store.read.joined.joined_store import open_joined
from store.traces.layers import recorded_layers
from store.write.build import partial_path, unfinished
from train.config import Config
from train.errors import ConfigError, DataError

__all__ = ["has_numbers", "open_store", "open_stores"]


def open_stores(paths: Sequence[Path], config: Config) -> TraceStore:
    """Open a store, or several as one; raises DataError for one that is given twice, also as a copy
    with the same uuid."""
    stores = [open_store(path, config) for path in paths]
    for first, second in combinations(stores, 2):
        if first.uuid == second.uuid:
            raise DataError(
                f"--store: expected each store once, found {first.location} and "
                f"{second.location}, which have one uuid; --weights gives a store a larger share"
            )
    return open_joined(stores)


def open_store(path: Path, config: Config) -> TraceStore:
    """Open a store; raises DataError where only an unfinished build of it is there, unless its
    commits are followed."""
    build = unfinished(path)
    if build is not None and config.follow:
        path = partial_path(path)
    elif build is not None:
        raise DataError(build)
    try:
        return TraceStore.open(path, config.cache_size)
    except ValueError as error:
        raise ConfigError(f"--cache-size: {error}") from error


def has_numbers(store: TraceStore) -> bool:
    """Whether the store records a number for each layer that its columns have."""
    recorded = recorded_layers(store.provenance)
    if recorded is None:
        return False
    n_layers = {len(store.layers(name)) for name in store.schema.columns}
    return n_layers <= {0, len(recorded)}
