"""What detectors, probes, baselines and controls have in common: what they read of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

__all__ = ["FeatureReader", "Reader"]


class Reader:
    """The defaults of all methods."""

    columns: tuple[str, ...]
    # columns of labels that are learned from besides those of traces
    targets: ClassVar[tuple[str, ...]] = ()
    # names of settings that methods share, and `models.Option`s of its own
    options: ClassVar[tuple[str, ...]] = ()
    # positions in the first column of the layers that are read, rising; None for all; batches may
    # hold these alone
    layers_read: Sequence[int] | None = None
    tokens_read: str = "all"  # of `models.tokens.TOKENS_READ`; batches may lack others
    # of one that reads all states: whether the score of a token depends on that token alone
    scores_tokens_alone: ClassVar[bool] = False


class FeatureReader(Reader):
    """Those of probes, baselines and controls alone: parts of a detector may have these names."""

    # columns that are read where the store has them
    optional: tuple[str, ...] = ()
    # of `optional`, what has to be there to learn; scores do not need it
    learns_from: ClassVar[tuple[str, ...]] = ()
    by_layer: bool = False  # whether what is fitted reads one layer of those
