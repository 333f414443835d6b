"""Which rows a run learns from and which it is judged by, and the packed batches of either.

The side of a row is a pure function of (question_id, seed): rows of one question stay together, and rows appended later
move nobody. Unlabelled rows (label -1) are on no side; they are counted, never taken for right answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from lightning_fabric import Fabric
from numpy.typing import NDArray

from store import Batch, Column, TraceLoader, TraceStore
from store.split import SIDES, side_of_question
from train.config import Config
from train.errors import DataError

__all__ = [
    "Split",
    "TrainingData",
    "check_batch",
    "check_columns",
    "check_layers",
    "check_pairs",
    "check_threshold",
    "missing_columns",
    "no_split",
    "read_split",
    "split_rows",
]

UNLABELLED = -1
KINDS = {  # of the columns that detectors, probes and the split read
    "question_id": "text",
    "label": "fixed with 0 item axes",
    "score": "fixed with 0 item axes",
    "hs_last": "fixed with 2 item axes",
    "hidden_states": "ragged with 2 item axes",
    "attn_mean": "ragged with 1 item axes",
    "attn_diag": "ragged with 2 item axes",
    "attn_colsum": "ragged with 2 item axes",
    "attn_pmass": "ragged with 2 item axes",
    "logprob": "ragged with 0 item axes",
    "entropy": "ragged with 0 item axes",
    "prompt_len": "fixed with 0 item axes",
    "answer_len": "fixed with 0 item axes",
}
WAYS_IN = {  # column -> the command that adds it to a store
    "label": "python -m store label STORE --scores CSV adds it",
    "score": "python -m store label STORE --scores CSV adds it",
}
MAKE_AGAIN = "make the traces again with that column (python -m store extract or import)"


@dataclass(frozen=True)
class Split:
    """The rows of each side, and what is known of every row.

    Attributes
    ----------
    train, val, test : int64 (n_side,)
        Labelled rows of the store, ascending.
    labels : int64 (n_rows,)
        1, 0, or -1 where unlabelled.
    questions : int64 (n_rows,)
        Equal for rows of the same question.
    seed : int
        The seed that made it.
    """

    train: NDArray[np.int64]
    val: NDArray[np.int64]
    test: NDArray[np.int64]
    labels: NDArray[np.int64]
    questions: NDArray[np.int64]
    seed: int

    def summary(self) -> dict:
        """Counts for the report, JSON-able."""
        sides = {side: self._count(getattr(self, side)) for side in SIDES}
        return {"seed": self.seed, "by": "question_id", **sides, "unlabelled": int(np.sum(self.labels == UNLABELLED))}

    def _count(self, rows: NDArray[np.int64]) -> dict[str, int]:
        n_questions = len(np.unique(self.questions[rows]))
        return {"rows": len(rows), "questions": n_questions, "hallucinations": int(self.labels[rows].sum())}


class RoleLoader(TraceLoader):
    """A loader whose batches have the names that detectors know (roles) in place of the store's.

    Parameters
    ----------
    names : role -> column of the store
    **options : of `TraceLoader`
    """

    def __init__(self, store: TraceStore, names: Mapping[str, str], **options: Any) -> None:
        super().__init__(store, list(names.values()), **options)
        self._names = names

    def __iter__(self) -> Iterator[Batch]:
        return (as_roles(batch, self._names) for batch in super().__iter__())


def as_roles(batch: Batch, names: Mapping[str, str]) -> Batch:
    """The batch with its columns called by role."""
    return Batch(batch.rows, {role: batch[name] for role, name in names.items()})


@dataclass(frozen=True)
class TrainingData:
    """A store, its split, and what of it is read.

    Attributes
    ----------
    replaced : role -> column of the store
        Of columns that stand in for those that detectors name.
    layers : slice or None
        The layers to read of columns that have an axis `layers`; None for all.
    """

    store: TraceStore
    split: Split
    replaced: Mapping[str, str] = field(default_factory=dict)
    layers: slice | None = None

    def loader(
        self, side: str, roles: Sequence[str], config: Config, fabric: Fabric | None = None, *, shuffle: bool = False
    ) -> TraceLoader:
        """Packed batches of one side, in the order of the split unless shuffled by `config.seed`.

        With a `fabric`, this process's share of each batch of `config.batch_size` rows, ready for its device.
        """
        rank, world_size = (fabric.global_rank, fabric.world_size) if fabric else (0, 1)
        return RoleLoader(
            self.store,
            self.names(roles),
            batch_size=config.batch_size // world_size,
            shuffle=shuffle,
            seed=config.seed,
            rows=getattr(self.split, side),
            num_workers=config.num_workers,
            select=self.select(roles),
            pin_memory=fabric is not None and fabric.device.type == "cuda",
            rank=rank,
            world_size=world_size,
        )

    def read(self, rows: Sequence[int], roles: Sequence[str]) -> Batch:
        """Some rows, as `loader` gives them."""
        names = self.names(roles)
        return as_roles(self.store.read(rows, list(names.values()), select=self.select(roles)), names)

    def names(self, roles: Iterable[str]) -> dict[str, str]:
        """Role -> column of the store."""
        return {role: self.replaced.get(role, role) for role in roles}

    def select(self, roles: Iterable[str]) -> dict[str, dict[str, slice]]:
        """What to read of the columns, in the form of `TraceStore.read`."""
        columns = {name: self.store.schema.columns[name] for name in self.names(roles).values()}
        if self.layers is None:
            return {}
        return {name: {"layers": self.layers} for name, column in columns.items() if "layers" in column.axis_names}

    def item_shapes(self, roles: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Role -> shape of one item, as it is read."""
        select, shapes = self.select(roles), {}
        for role, name in self.names(roles).items():
            column = self.store.schema.columns[name]
            axes = column.axis_names or ("",) * len(column.item_shape)
            parts = [select.get(name, {}).get(axis, slice(None)) for axis in axes]
            shapes[role] = tuple(len(range(n)[part]) for n, part in zip(column.item_shape, parts, strict=True))
        return shapes


def split_rows(
    question_ids: Sequence[str], labels: NDArray[np.int64], seed: int, max_traces: int | None = None
) -> Split:
    """Split the labelled rows by question; with `max_traces`, only that many of them, drawn by `seed`."""
    distinct, questions = np.unique(np.asarray(question_ids, dtype=object), return_inverse=True)
    sides = np.array([side_of_question(question_id, seed) for question_id in distinct], dtype=object)[questions]
    labelled = np.flatnonzero(labels != UNLABELLED)
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[np.random.default_rng(seed).permutation(labelled)[:max_traces]] = True
    train, val, test = (np.flatnonzero(chosen & (sides == side)) for side in SIDES)
    return Split(train, val, test, labels, questions, seed)


def no_split(store: TraceStore, seed: int = 0) -> Split:
    """Every row on the test side, and no labels: what is needed to score a store."""
    none, every = np.zeros(0, np.int64), np.arange(len(store))
    return Split(none, none, every, np.full(len(store), UNLABELLED), every, seed)


def read_split(store: TraceStore, config: Config) -> Split:
    """Read questions and labels and split; raises DataError where a side lacks a class."""
    label_column = "label" if config.score_threshold is None else "score"
    check_columns(store, "the split", {name: name for name in ("question_id", label_column)}, "or add it to the store")
    batch = store.read(np.arange(len(store)), columns=["question_id", label_column])
    values = batch[label_column].numpy()
    if config.score_threshold is None:
        labels = check_labels(values, store)
    else:
        labels = label_scores(values, config.score_threshold)
    split = split_rows(batch["question_id"], labels, config.seed, config.max_traces)
    check_split(split, store)
    return split


def label_scores(scores: NDArray[np.float32], threshold: float) -> NDArray[np.int64]:
    """Label 1 iff score < threshold; -1 where the score is NaN."""
    return np.where(np.isnan(scores), UNLABELLED, scores < threshold).astype(np.int64)


def check_labels(labels: NDArray, store: TraceStore) -> NDArray[np.int64]:
    """The labels as int64; raises DataError for any but 1, 0 and -1."""
    wrong = np.flatnonzero(~np.isin(labels, (0, 1, UNLABELLED)))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{store.path}: column 'label', trace {store.ids[row]!r}: expected 1, 0 or -1, found {labels[row]}; "
            f"mend the {len(wrong)} labels like it"
        )
    return labels.astype(np.int64)


def check_split(split: Split, store: TraceStore) -> None:
    """Raise DataError unless each side holds both classes."""
    if not np.any(split.labels != UNLABELLED):
        raise DataError(
            f"{store.path}: expected labelled traces, found all {len(split.labels)} unlabelled; "
            "add scores to the store, then train again"
        )
    for side in SIDES:
        labels = split.labels[getattr(split, side)]
        n_positive = int(labels.sum())
        if not 0 < n_positive < len(labels):
            raise DataError(
                f"{store.path}: {side} side: expected both classes, found {n_positive} hallucinations among "
                f"{len(labels)} labelled traces; add traces, or try another --seed or --score-threshold"
            )


def check_batch(split: Split, store: TraceStore, batch_size: int) -> None:
    """Raise DataError unless train fills a batch."""
    if len(split.train) < batch_size:
        raise DataError(
            f"{store.path}: train side: expected at least one batch of {batch_size} traces, found {len(split.train)}; "
            f"lower --batch-size, to {len(split.train)} at most"
        )


def check_columns(store: TraceStore, reader: str, columns: Mapping[str, str], way_out: str) -> None:
    """Raise DataError unless the store has the columns (role -> name) that `reader` needs, of the right kind."""
    for role, name in columns.items():
        if name not in store.schema.columns:
            raise DataError(
                f"{store.path}: {reader}: expected column {name!r}, found only {', '.join(store.schema.columns)}; "
                f"{WAYS_IN.get(role, MAKE_AGAIN)}, {way_out}"
            )
        found = kind_of(store.schema.columns[name])
        if found != KINDS.get(role, found):
            raise DataError(
                f"{store.path}: {reader}: expected column {name!r} to be {KINDS[role]}, found {found}; "
                f"{MAKE_AGAIN}, {way_out}"
            )


def check_layers(data: TrainingData, reader: str, roles: Iterable[str]) -> None:
    """Raise DataError if only some layers are to be read of columns that have none, or have fewer."""
    shapes = data.item_shapes(roles)
    for role, name in data.names(roles).items():
        column = data.store.schema.columns[name]
        if data.layers is None or not column.item_shape:
            continue
        if "layers" not in column.axis_names:
            raise DataError(
                f"{data.store.path}: {reader}: --layers: expected an axis 'layers' in column {name!r}, found "
                f"{', '.join(map(repr, column.axis_names)) or 'axes without names'}; leave out --layers"
            )
        if 0 in shapes[role]:
            n_layers = column.item_shape[column.axis_names.index("layers")]
            raise DataError(
                f"{data.store.path}: {reader}: --layers: expected some of the {n_layers} layers of column {name!r}, "
                "found none of them; choose from 0 on"
            )


def kind_of(column: Column) -> str:
    """What a column is, in the words of `KINDS`."""
    if column.is_text:
        return "text"
    return f"{'ragged' if column.axis else 'fixed'} with {len(column.item_shape)} item axes"


def check_pairs(store: TraceStore, names: Mapping[str, str]) -> None:
    """Raise DataError unless every trace of T tokens has T(T+1)/2 pairs; reads offsets only."""
    n_tokens, n_pairs = store.lengths(names["hidden_states"]), store.lengths(names["attn_mean"])
    wrong = np.flatnonzero(n_pairs != n_tokens * (n_tokens + 1) // 2)
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{store.path}: column {names['attn_mean']!r}, trace {store.ids[row]!r}: expected T(T+1)/2 = "
            f"{n_tokens[row] * (n_tokens[row] + 1) // 2} pairs for its {n_tokens[row]} tokens, found {n_pairs[row]}; "
            f"make the {len(wrong)} traces like it again"
        )


def check_threshold(store: TraceStore, threshold: float) -> None:
    """Raise DataError if graphs want edges that were dropped before the traces came into the store."""
    kept_from = store.provenance.get("attn_threshold") or 0.0
    if threshold < kept_from:
        raise DataError(
            f"{store.path}: --attn-threshold: expected {kept_from!r} or more, because weaker edges were dropped "
            f"before the import, found {threshold!r}; give --attn-threshold {kept_from!r}"
        )


def missing_columns(store: TraceStore, columns: Mapping[str, str]) -> list[str]:
    """Those of the columns (role -> name) that the store lacks, or has of another kind than their role."""
    known = store.schema.columns
    return [
        name
        for role, name in columns.items()
        if name not in known or kind_of(known[name]) != KINDS.get(role, kind_of(known[name]))
    ]
