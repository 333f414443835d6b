"""What a run reads of a store: packed batches of a split, with the column names of detectors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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


class RoleLoader(TraceLoader):
    """A loader whose batches name columns as detectors do, by role.

    Parameters
    ----------
    names : role -> column of the store
    kept : FeatureCache, optional
        Batches have its features instead of columns, and rows that it has are not read.
    **options : of `TraceLoader`
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
    """A store, its splits, and what is read of it.

    Attributes
    ----------
    replaced : role -> column of the store
        Columns that are read instead of those that detectors name.
    layers : str or None
        The layers to read of columns that have an axis `layers`, as the model numbers them (in a
        form of `store.traces.layers`); None for all.
    base_margin : float64 (n_rows,) or None
        Log-odds that the logits of detectors are added to; None for 0.
    """

    store: TraceStore
    splits: Splits
    replaced: Mapping[str, str] = field(default_factory=dict)
    layers: str | None = None
    base_margin: NDArray[np.float64] | None = None

    def loader(
        self,
        split: str,
        roles: Sequence[str],
        config: Config,
        fabric: Fabric | None = None,
        *,
        shuffle: bool = False,
        kept: FeatureCache | None = None,
    ) -> TraceLoader:
        """Packed batches of a split, in its order unless shuffled by `config.seed`.

        With a `fabric`, this process's part of each batch of `config.batch_size` rows, ready for
        its device. With `kept`, features instead of columns, which it keeps.
        """
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
        return self.replaced.get(role, role)

    def select(self, roles: Iterable[str]) -> dict[str, dict[str, str]]:
        """What to read of the columns, in the form of `TraceStore.read`."""
        if self.layers is None:
            return {}
        names = self.names(roles).values()
        return {name: {LAYERS_AXIS: self.layers} for name in names if self.store.layers(name)}

    def layer_numbers(self, role: str) -> list[int]:
        """The layers read of a column, as the model numbers them; [] without an axis `layers`."""
        name = self.column(role)
        numbers = self.store.layers(name)
        if self.layers is None or not numbers:
            return numbers
        return [numbers[i] for i in choose_layers(self.layers, numbers, f"column {name!r}")]

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
