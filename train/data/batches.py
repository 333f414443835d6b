"""What a run reads of a store: packed batches of a split, with the column names of detectors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from lightning_fabric import Fabric
from numpy.typing import NDArray

from store import Batch, TraceLoader, TraceStore
from store.read.location import LocatedRows
from store.read.read_options import ReadOptions
from store.traces.layers import LAYERS_AXIS, choose_layers
from train.config import Config
from train.data.features import FeatureCache
from train.data.splits import Splits

__all__ = ["TrainingData"]


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
        **options: Any,
    ) -> None:
        super().__init__(store, list(names.values()), **options)
        self._names = names
        self._kept = kept

    def unread(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows if self._kept is None else self._kept.missing(rows)

    def read_located(self, located: LocatedRows, options: ReadOptions) -> Batch:
        if self._kept is None:
            return as_roles(super().read_located(located, options), self._names)
        missing = self.unread(located.rows)
        read = None
        if len(missing):
            read = as_roles(self.store.read_batch(self._plan, missing, options), self._names)
        return self._kept.complete(located.rows, read, options)


def as_roles(batch: Batch, names: Mapping[str, str]) -> Batch:
    return Batch(batch.rows, {role: batch[name] for role, name in names.items()})


@dataclass(frozen=True)
class TrainingData:
    """A store, its splits, and the settings: what is read of it, and how."""

    store: TraceStore
    splits: Splits
    # among its settings the columns that are read instead of those that detectors name, and the
    # layers to read of columns that have an axis `layers`
    config: Config = field(default_factory=Config)
    # float64 (n_rows,) or None: log-odds that the logits of detectors are added to; None for 0
    base_margin: NDArray[np.float64] | None = None

    @property
    def n_epochs(self) -> int:
        """The most passes over the training rows: as given, or fewer the more rows there are."""
        by_rows = ROWS_OF_TRAINING // max(1, len(self.splits.train))
        return self.config.epochs or min(max(by_rows, FEWEST_EPOCHS), MOST_EPOCHS)

    def with_settings(self, **changes: Any) -> "TrainingData":
        """The same rows, read with other settings."""
        return replace(self, config=replace(self.config, **changes))

    def loader(
        self,
        split: str,
        roles: Sequence[str],
        fabric: Fabric | None = None,
        *,
        shuffle: bool = False,
        kept: FeatureCache | None = None,
    ) -> TraceLoader:
        """Packed batches of a split, in its order unless shuffled by the seed of the settings.

        With a `fabric`, this process's part of each batch of `batch_size` rows, ready for its
        device. With `kept`, features instead of columns, which it keeps.
        """
        config = self.config
        rank = fabric.global_rank if fabric else 0
        world_size = fabric.world_size if fabric else 1
        return RoleLoader(
            self.store,
            self.names(roles),
            kept,
            batch_size=config.batch_size // world_size,
            shuffle=shuffle,
            seed=config.seed,
            rows=self.splits.rows(split),
            num_workers=config.num_workers,
            select=self.select(roles),
            pin_memory=fabric is not None and fabric.device.type == "cuda",
            rank=rank,
            world_size=world_size,
        )

    def read(self, rows: Sequence[int] | NDArray[np.int64], roles: Sequence[str]) -> Batch:
        """Some rows, as `loader` gives them."""
        names = self.names(roles)
        batch = self.store.read(rows, list(names.values()), select=self.select(roles))
        return as_roles(batch, names)

    def names(self, roles: Iterable[str]) -> dict[str, str]:
        """Role -> column of the store."""
        return {role: self.column(role) for role in roles}

    def column(self, role: str) -> str:
        """The column of the store that is read for a role."""
        return self.config.replaced.get(role, role)

    def select(self, roles: Iterable[str]) -> dict[str, dict[str, str]]:
        """What to read of the columns, in the form of `TraceStore.read`."""
        layers = self.config.layers
        if layers is None:
            return {}
        names = self.names(roles).values()
        return {name: {LAYERS_AXIS: layers} for name in names if self.store.layers(name)}

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
