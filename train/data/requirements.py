"""What a detector, a probe or a baseline requires of a store and of the settings."""

from collections.abc import Iterable

import numpy as np

from store import StoreError
from store.traces.columns import TRACE_COLUMNS
from store.traces.layers import LAYERS_AXIS
from train.config import flag_of
from train.data.batches import TrainingData
from train.data.columns import check_columns
from train.data.metadata import NO_METADATA
from train.data.readers import columns_of, reader_of
from train.errors import DataError

__all__ = ["check_layers", "check_reader", "check_threshold"]

PAIRS = {  # column -> number of pairs of a trace of T tokens
    "attn_mean": ("T(T+1)/2", lambda n_tokens: n_tokens * (n_tokens + 1) // 2),
    "attentions": ("T * T", lambda n_tokens: n_tokens**2),
}
KEPT_FROM = 0.05  # attention that makes an edge of attn_edges


def check_reader(name: str, data: TrainingData, way_out: str) -> None:
    """Raise DataError unless the store holds what a detector, probe or baseline reads."""
    reader = reader_of(name, data)
    if not reader.columns:
        raise DataError(f"{data.store.location}: {name}: {NO_METADATA}, {way_out}")
    check_columns(data, name, reader.columns, way_out)
    roles = columns_of(name, data)
    setting = "--readout" if "readout" in reader.options else "setting of its own"
    check_columns(data, name, roles, f"or give another {setting}, {way_out}")
    check_layers(data, name, roles)
    for role in PAIRS.keys() & roles:
        check_pairs(data, role)
    if "attn_edges" in roles:
        check_kept(data, "charm_threshold", KEPT_FROM, "attn_edges has no weaker edges")


def check_layers(data: TrainingData, reader: str, roles: Iterable[str]) -> None:
    """Raise DataError if --layers names layers that a column does not have.

    Columns of other things, which the names of their axes tell, are read whole.
    """
    if data.config.layers is None:
        return
    where = f"{data.store.location}: {reader}: --layers"
    for role, name in data.names(roles).items():
        column = data.store.schema.columns[name]
        axes = column.axis_names
        known = TRACE_COLUMNS.get(role)
        is_of_layers = not axes or (known is not None and LAYERS_AXIS in known.axes)
        if column.item_shape and LAYERS_AXIS not in axes and is_of_layers:
            found = ", ".join(map(repr, axes)) or "axes without names"
            raise DataError(
                f"{where}: expected an axis 'layers' in column {name!r}, found {found}; "
                "leave out --layers"
            )
        try:
            data.layer_numbers(role)
        except StoreError as error:
            raise DataError(f"{where}: {error}") from error


def check_pairs(data: TrainingData, role: str) -> None:
    """Raise DataError unless every trace of T tokens has T(T+1)/2 pairs, or T * T of full maps.

    Only offsets are read.
    """
    store = data.store
    formula, count_pairs = PAIRS[role]
    tokens, pairs = data.names(("hidden_states", role)).values()
    n_tokens = store.lengths(tokens)
    n_pairs = store.lengths(pairs)
    expected = count_pairs(n_tokens)
    wrong = np.flatnonzero(n_pairs != expected)
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{store.location}: column {pairs!r}, trace {store.ids[row]!r}: expected {formula} = "
            f"{expected[row]} pairs for its {n_tokens[row]} tokens, found {n_pairs[row]}; "
            f"make the {len(wrong)} traces like it again"
        )


def check_threshold(data: TrainingData) -> None:
    kept_from = data.store.provenance.get("attn_threshold") or 0.0
    check_kept(data, "attn_threshold", kept_from, "weaker edges were dropped before the import")


def check_kept(data: TrainingData, setting: str, kept_from: float, why: str) -> None:
    """Raise DataError for a threshold below that of the edges that a store keeps."""
    threshold, flag = getattr(data.config, setting), flag_of(setting)
    if threshold < kept_from:
        raise DataError(
            f"{data.store.location}: {flag}: expected {kept_from!r} or more, because {why}, found "
            f"{threshold!r}; give {flag} {kept_from!r}"
        )
