"""What a run asks of a store and of its settings, checked before the first file is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from models import BASELINES, DETECTORS, PROBES, find
from store import Column, StoreError, TraceStore
from store.errors import closest
from store.format.layers import recorded_layers
from store.format.origin import origins_of
from store.sources.split import SIDES as SPLITS
from store.write.build import unfinished
from train.config import ALL, Config, check_names, off_flag
from train.data.batches import TrainingData
from train.data.split import all_as_test, check_batch, read_splits
from train.errors import ConfigError, DataError

__all__ = [
    "KINDS",
    "check_columns",
    "check_layers",
    "check_reader",
    "chosen",
    "find_remarks",
    "has_numbers",
    "kind_of",
    "missing",
    "open_data",
]

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
MIN_OF_A_CLASS = 20
MAKE_AGAIN = "make the traces again with that column (python -m store extract or import)"


def open_data(config: Config, path: Path) -> TrainingData:
    """Open the store and split it; raises StoreError, ConfigError or DataError before anything is
    written."""
    begun = unfinished(path)
    if begun is not None:
        raise DataError(begun)
    try:
        store = TraceStore.open(path, config.cache_size)
    except ValueError as error:
        raise ConfigError(f"--cache-size: {error}") from error
    data = TrainingData(store, all_as_test(store), config.replaced, config.layers)
    for name in chosen(config, data):
        check_reader(name, data, f"or leave it out with {off_flag(name)}")
        if "attn_mean" in find(name).columns:
            check_threshold(store, config.attn_threshold)
    check_start(config, data)
    check_replaced(config, data)
    label = "label" if config.score_threshold is None else "score"
    check_columns(
        store,
        "the split",
        {name: name for name in ("question_id", label)},
        "or add it to the store",
    )
    splits = read_splits(store, config)
    check_batch(splits, store, config.batch_size)
    return replace(data, splits=splits)


def find_remarks(data: TrainingData) -> list[str]:
    """What the user should know of the data before a long training: few rows of a class, layers
    without numbers."""
    remarks = []
    for split in SPLITS:
        labels = data.splits.labels[data.splits.rows(split)]
        n_wrong = int(labels.sum())
        fewest = min(n_wrong, len(labels) - n_wrong)
        if fewest < MIN_OF_A_CLASS:
            remarks.append(
                f"warning: the {split} split has {n_wrong} hallucinations and {len(labels) - n_wrong} right answers: "
                f"with fewer than {MIN_OF_A_CLASS} of a class its AUROC says little, whatever its interval"
            )
    n_origins = len(origins_of(data.store.provenance))
    if n_origins > 1:
        remarks.append(
            f"warning: the store holds traces of {n_origins} different models, layers or prompts (merged with "
            "--mixed): they may not be comparable"
        )
    has_layers = any(data.store.layers(name) for name in data.store.schema.columns)
    if has_layers and not has_numbers(data.store):
        remarks.append(
            "the store does not record which layers of the model it keeps: they are counted from 1"
        )
    return remarks


def has_numbers(store: TraceStore) -> bool:
    """Whether the store records the numbers of its layers, and as many as each of its columns
    has."""
    recorded = recorded_layers(store.provenance)
    columns = [store.layers(name) for name in store.schema.columns]
    return recorded is not None and all(
        len(numbers) == len(recorded) for numbers in columns if numbers
    )


def chosen(config: Config, data: TrainingData) -> list[str]:
    """Names of the detectors and probes to train; of `all` those whose columns the store has."""
    check_names(config)
    names = list(dict.fromkeys(config.detectors))
    if names == [ALL]:
        every = [name for name in [*DETECTORS, *PROBES] if name not in config.left_out]
        names = [name for name in every if not missing(find(name).columns, data)]
    if not names:
        raise ConfigError(
            f"--models all: expected a store with columns of a detector, found none in {data.store.path}"
        )
    return names


def missing(roles: tuple[str, ...], data: TrainingData) -> list[str]:
    """Columns that the store lacks of those that stand for `roles`."""
    return missing_columns(data.store, data.names(roles))


def check_replaced(config: Config, data: TrainingData) -> None:
    """Raise ConfigError unless something reads each of the columns that others stand in for."""
    readers = [*chosen(config, data), *BASELINES]
    roles = {role for name in readers for role in find(name).columns} - {"question_id"}
    for role in config.replaced:
        if role not in roles:
            raise ConfigError(
                f"--columns: expected names that these detectors and baselines read, {', '.join(sorted(roles))}, "
                f"found {role!r:.80}{closest(role, sorted(roles))}"
            )


def check_start(config: Config, data: TrainingData) -> None:
    """Raise ConfigError or DataError unless the baseline that detectors start from is one that the
    store can give."""
    name = config.on_top_of
    if name is None:
        return
    if not set(chosen(config, data)) & DETECTORS.keys():
        raise ConfigError(
            f"--on-top-of: expected a detector of {', '.join(DETECTORS)} among --models, found none"
        )
    check_reader(name, data, "or leave out --on-top-of")


def check_reader(name: str, data: TrainingData, way_out: str) -> None:
    """Raise DataError unless the store holds what a detector, probe or baseline reads."""
    roles = find(name).columns
    check_columns(data.store, name, data.names(roles), way_out)
    check_layers(data, name, roles)
    if "attn_mean" in roles:
        check_pairs(data.store, data.names(roles))


def check_columns(store: TraceStore, reader: str, columns: Mapping[str, str], way_out: str) -> None:
    """Raise DataError unless the store has the columns (role -> name) that `reader` needs, of the
    right kind."""
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
    """Raise DataError if only some layers are to be read of columns that have none, or have
    fewer."""
    for role, name in data.names(roles).items():
        column = data.store.schema.columns[name]
        if data.layers is None or not column.item_shape:
            continue
        if "layers" not in column.axis_names:
            raise DataError(
                f"{data.store.path}: {reader}: --layers: expected an axis 'layers' in column {name!r}, found "
                f"{', '.join(map(repr, column.axis_names)) or 'axes without names'}; leave out --layers"
            )
        try:
            data.layer_numbers(role)
        except StoreError as error:
            raise DataError(f"{data.store.path}: {reader}: --layers: {error}") from error


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
    """Raise DataError if graphs want edges that were dropped before the traces came into the
    store."""
    kept_from = store.provenance.get("attn_threshold") or 0.0
    if threshold < kept_from:
        raise DataError(
            f"{store.path}: --attn-threshold: expected {kept_from!r} or more, because weaker edges were dropped "
            f"before the import, found {threshold!r}; give --attn-threshold {kept_from!r}"
        )


def missing_columns(store: TraceStore, columns: Mapping[str, str]) -> list[str]:
    """Those of the columns (role -> name) that the store lacks, or has of another kind than their
    role."""
    known = store.schema.columns
    return [
        name
        for role, name in columns.items()
        if name not in known or kind_of(known[name]) != KINDS.get(role, kind_of(known[name]))
    ]
