"""What a run reads of a store: packed batches of a split, with the column names of detectors.

And how it opens the store, or several as one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray

from models import Detector, Probe
from models.tokens import SKIPPED, TOKENS_READ
from store import Batch, TraceLoader, TraceStore
from store.feed.epoch_reads import BatchReader
from store.read.arrays.read_options import ReadOptions
from store.read.joined.joined_store import open_joined
from store.read.plan import RowRanges
from store.read.row_location import LocatedRows
from store.traces.columns import TRACE_COLUMNS
from store.traces.layers import LAYERS_AXIS, choose_layers, recorded_layers
from store.write.build import partial_path, unfinished
from train.config import Config
from train.data.features import FeatureCache
from train.data.splits import Splits, label_column, read_splits
from train.errors import ConfigError, DataError

__all__ = ["TrainingData", "has_numbers", "open_store", "open_stores"]

ROWS_OF_TRAINING = 25_000  # in all epochs
FEWEST_EPOCHS, MOST_EPOCHS = 5, 10


class RoleLoader(TraceLoader):
    """A loader whose batches name columns as detectors do, by role.

    `names` are role -> column of the store. With `kept`, batches have its features instead of
    columns, and rows that it has are not read. The options are those of `TraceLoader`.
    """

    lends_rows = False  # global batches do not depend on the processes that share them

    def __init__(
        self,
        store: TraceStore,
        names: Mapping[str, str],
        kept: FeatureCache | None = None,
        ranges: RowRanges | None = None,
        **options: Any,
    ) -> None:
        super().__init__(store, list(names.values()), **options)
        self._names = names
        self._ranges = ranges
        self._kept = kept

    def unread(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows if self._kept is None else self._kept.missing(rows)

    def batch_reader(self) -> BatchReader:
        read_columns = super().batch_reader()

        def read(located: LocatedRows, options: ReadOptions) -> Batch:
            return as_roles(read_columns(located, options), self._names, self._ranges)

        return read if self._kept is None else partial(self._complete, self._kept)

    def _complete(self, kept: FeatureCache, located: LocatedRows, options: ReadOptions) -> Batch:
        """The features that are kept of some rows, and of those that are read."""
        missing = kept.missing(located.rows)
        read = None
        if len(missing):
            read = self.store.read_batch(self._plan, missing, options)
            read = as_roles(read, self._names, self._ranges)
        return kept.complete(located.rows, read, options)


def as_roles(batch: Batch, names: Mapping[str, str], ranges: RowRanges | None) -> Batch:
    """The batch by roles, and where the tokens that were read begin, if not all were."""
    columns = {role: batch[name] for role, name in names.items()}
    if ranges is not None:
        columns[SKIPPED] = torch.from_numpy(ranges.starts[batch.rows.numpy()])
    return Batch(batch.rows, columns)


def is_of_tokens(role: str) -> bool:
    known = TRACE_COLUMNS.get(role)
    return known is not None and known.axis == "tokens"


@dataclass(frozen=True)
class TrainingData:
    """A store, its splits, and the settings: what is read of it, and how."""

    store: TraceStore
    splits: Splits
    # among its settings the columns that are read instead of those that detectors name, and the
    # layers to read of columns that have an axis `layers`
    config: Config = field(default_factory=Config)
    # what is read of the columns of tokens, and of one column the layers, by their positions; None
    # for all of them
    ranges: RowRanges | None = None
    layers_of: tuple[str, Sequence[int] | None] = ("", None)
    # float64 (n_rows,) or None: log-odds that the logits of detectors are added to; None for 0
    base_margin: NDArray[np.float64] | None = None

    @property
    def n_epochs(self) -> int:
        """The most passes over the training rows: as given, or fewer the more rows there are."""
        by_rows = ROWS_OF_TRAINING // max(1, len(self.splits.train))
        return self.config.epochs or min(max(by_rows, FEWEST_EPOCHS), MOST_EPOCHS)

    @property
    def n_visits(self) -> int:
        """Training rows of an epoch of a detector, those that come again counted again."""
        if self.config.weights is None:
            return len(self.splits.train)
        return self.loader("train", [label_column(self.config)], shuffle=True).n_visits

    def with_settings(self, **changes: Any) -> "TrainingData":
        """The same rows, read with other settings."""
        return replace(self, config=replace(self.config, **changes))

    def with_new_rows(self) -> "TrainingData":
        """The data with the training traces that were committed since; val and test stay.

        No question of val or test is trained on from here on, also where a new trace shows that it
        is one with another. Raises DataError if another store than the last of several has grown.
        """
        store = self.store.refresh()
        if store.uuid != self.store.uuid:
            raise DataError(
                f"{self.store.location}: --follow: expected that only the last of several stores "
                "grows, found that another has"
            )
        if len(store) == len(self.store):
            return self
        drawn = replace(self.config, seed=self.splits.seed)  # the seed of a training is another
        splits = read_splits(store, drawn)
        val, test = self.splits.val, self.splits.test
        kept = splits.questions[np.concatenate([val, test])]
        train = splits.train[~np.isin(splits.questions[splits.train], kept)]
        return replace(self, store=store, splits=replace(splits, train=train, val=val, test=test))

    def reading(
        self, reader: Detector | Probe, layers: Sequence[int] | None = None
    ) -> "TrainingData":
        """The same rows, of which only what a detector or a probe reads is read.

        With `layers` only these of its first column, by position.
        """
        ranges = None
        if reader.tokens_read != "all":
            ranges = self.ranges_of(reader.tokens_read)
        layers = reader.layers_read if layers is None else layers
        return replace(self, ranges=ranges, layers_of=(reader.columns[0], layers))

    def ranges_of(self, tokens: str) -> RowRanges:
        """The tokens of each row of the store that are of some kind; see `TOKENS_READ`."""
        # a control of the prompt may be there without the length of the answer
        prompt_len, answer_len = (
            np.asarray(self.store.column_array(name), np.int64)
            if name in self.store.schema.columns
            else np.zeros(len(self.store), np.int64)
            for name in self.names(("prompt_len", "answer_len")).values()
        )
        starts, stops = TOKENS_READ[tokens](prompt_len, answer_len)
        is_known = prompt_len >= 0
        first = -1 if tokens == "prompt end" else 0
        stops = np.where(is_known, stops, np.iinfo(np.int64).max)
        return RowRanges(np.where(is_known, starts, first), stops)

    def loader(
        self,
        part: str | NDArray[np.int64],
        roles: Sequence[str],
        fabric: Fabric | None = None,
        *,
        shuffle: bool = False,
        kept: FeatureCache | None = None,
    ) -> TraceLoader:
        """Packed batches of a split, or of some rows, in order unless shuffled by the seed.

        With a `fabric`, this process's part of each batch of `batch_size` rows, ready for its
        device. With `kept`, features instead of columns, which it keeps.
        """
        config = self.config
        weights = config.shares if shuffle else None
        rank = fabric.global_rank if fabric else 0
        world_size = fabric.world_size if fabric else 1
        return RoleLoader(
            self.store,
            self.names(roles),
            kept,
            self.ranges,
            batch_size=config.batch_size // world_size,
            shuffle=shuffle,
            seed=config.seed,
            rows=self.splits.rows(part) if isinstance(part, str) else part,
            num_workers=config.num_workers,
            select=self.select(roles),
            pin_memory=fabric is not None and fabric.device.type == "cuda",
            rank=rank,
            world_size=world_size,
            weights=weights,
            replacement=weights is not None and config.replacement,
        )

    def read(self, rows: Sequence[int] | NDArray[np.int64], roles: Sequence[str]) -> Batch:
        """Some rows, as `loader` gives them."""
        names = self.names(roles)
        batch = self.store.read(rows, list(names.values()), select=self.select(roles))
        return as_roles(batch, names, self.ranges)

    def names(self, roles: Iterable[str]) -> dict[str, str]:
        """Role -> column of the store."""
        return {role: self.column(role) for role in roles}

    def column(self, role: str) -> str:
        """The column of the store that is read for a role."""
        return self.config.replaced.get(role, role)

    def select(self, roles: Iterable[str]) -> dict[str, dict[str, str | RowRanges]]:
        """What to read of the columns, in the form of `TraceStore.read`."""
        found: dict[str, dict[str, str | RowRanges]] = {}
        narrowed, positions = self.layers_of
        for role, name in self.names(roles).items():
            parts = found.setdefault(name, {})
            numbers = self.layer_numbers(role)
            if role == narrowed and positions is not None and numbers:
                parts[LAYERS_AXIS] = ",".join(str(numbers[i]) for i in positions)
            elif self.config.layers is not None and numbers:
                parts[LAYERS_AXIS] = self.config.layers
            column = self.store.schema.columns[name]
            if self.ranges is not None and is_of_tokens(role) and column.axis is not None:
                parts[column.axis] = self.ranges
        return found

    def layer_numbers(self, role: str) -> list[int]:
        """The layers read of a column, as the model numbers them; [] without an axis `layers`."""
        name = self.column(role)
        numbers = self.store.layers(name)
        layers = self.config.layers
        if layers is None or not numbers:
            return numbers
        return [numbers[i] for i in choose_layers(layers, numbers, f"column {name!r}")]

    def layers_or_count(self, role: str, n: int) -> list[int]:
        """As `layer_numbers`, but 1 to n without an axis `layers`."""
        return self.layer_numbers(role) or list(range(1, n + 1))

    def item_shapes(self, roles: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Role -> shape of one item, as it is read."""
        return {role: self.item_shape(role) for role in roles}

    def item_shape(self, role: str) -> tuple[int, ...]:
        """Shape of one item, as it is read."""
        column = self.store.schema.columns[self.column(role)]
        shape = list(column.item_shape)
        if LAYERS_AXIS in column.axis_names:
            shape[column.axis_names.index(LAYERS_AXIS)] = len(self.layer_numbers(role))
        return tuple(shape)


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
