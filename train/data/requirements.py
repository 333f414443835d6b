"""What a method reads of a store, with the settings of a run, and what it requires of both.

Columns that a store lacks, or has of another kind, are named with the commands that make them.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from models import DETECTORS, find
from models.metadata import FieldProbe
from models.reader import FeatureReader, Reader
from store import StoreError, TraceStore
from store.traces.columns import BY_HAND, TRACE_COLUMNS
from store.traces.layers import LAYERS_AXIS
from store.traces.states import DERIVED
from store.transform.samples.names import NEEDS, NLI
from train.config import Config, flag_of, own_options
from train.data.batches import TrainingData
from train.data.metadata import NO_METADATA, metadata_columns
from train.data.token_labels import ROLE
from train.errors import DataError
from train.outside import NOTHING

__all__ = [
    "check_columns",
    "check_layers",
    "check_reader",
    "check_threshold",
    "columns_of",
    "columns_with",
    "missing_columns",
    "optional_to_score",
    "present_columns",
    "reader_of",
    "roles_of",
    "settings_for",
    "trained_on",
]

PAIRS = {  # column -> number of pairs of a trace of T tokens
    "attn_mean": ("T(T+1)/2", lambda n_tokens: n_tokens * (n_tokens + 1) // 2),
    "attentions": ("T * T", lambda n_tokens: n_tokens**2),
}
KEPT_FROM = 0.05  # attention that makes an edge of attn_edges
MAX_MAPS_BYTES = 8 << 30  # of the full attention maps of a batch


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
    if "attentions" in roles:
        check_maps(name, data)


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


def check_maps(reader: str, data: TrainingData) -> None:
    """Raise DataError if the full maps of a batch could be too large for the memory.

    They grow with the square of the length: 2 GiB in float16 for one trace of 1,024 tokens and
    1,024 heads in all layers.
    """
    name = data.column("attentions")
    column = data.store.schema.columns[name]
    pair_bytes = column.storage_dtype.itemsize * math.prod(data.item_shape("attentions"))
    longest = np.sort(data.store.lengths(name))[::-1][: data.config.batch_size]
    n_bytes = (longest * pair_bytes).cumsum()  # of so many of the longest traces
    if not len(n_bytes) or n_bytes[-1] <= MAX_MAPS_BYTES:
        return
    n_fitting = int((n_bytes <= MAX_MAPS_BYTES).sum())
    way_out = f"lower --batch-size, to {n_fitting} at most, or read fewer --layers"
    if not n_fitting:
        way_out = "read fewer --layers, or leave out long traces (python -m store subset)"
    raise DataError(
        f"{data.store.location}: {reader}: expected at most {MAX_MAPS_BYTES:,} bytes of column "
        f"{name!r} in a batch, found {n_bytes[-1]:,} in the {len(longest)} longest traces; "
        f"{way_out}"
    )


BOTH = ("extract", "import")
MAKE_AGAIN = "make the traces again with that column"
EDGES = ("attn_edges", "attn_edge_ends")  # of no use without each other
LABEL = "python -m store label STORE --scores CSV adds it"
SPANS = (
    "python -m store extract STORE --model MODEL --questions FILE writes it where FILE has answers "
    "with the key spans"
)


def check_columns(data: TrainingData, reader: str, roles: Iterable[str], way_out: str) -> None:
    """Raise DataError unless the store has the columns of these roles, of the right kinds."""
    for problem in missing_columns(data, roles).values():
        raise DataError(f"{data.store.location}: {reader}: {problem}, {way_out}")


def present_columns(data: TrainingData, roles: Iterable[str]) -> list[str]:
    """Those of these roles whose column is there, of the right kind."""
    return [role for role in roles if not missing_columns(data, [role])]


def missing_columns(data: TrainingData, roles: Iterable[str]) -> dict[str, str]:
    """Each column of these roles that is not there, or of another kind -> what to do about it."""
    columns = data.store.schema.columns
    missing = {}
    for role, name in data.names(roles).items():
        if name not in columns:
            missing[name] = (
                f"expected column {name!r}, found only {', '.join(columns)}; "
                f"{_way_to_add(role, data.store)}"
            )
        elif role in TRACE_COLUMNS:
            known, column = TRACE_COLUMNS[role], columns[name]
            counts = "int" in known.dtype
            expected = kind_of(known.dtype, known.axis, len(known.item_axes), counts)
            found = kind_of(column.dtype, column.axis, len(column.item_shape), counts)
            if found != expected:
                missing[name] = (
                    f"expected column {name!r} to be {expected}, found {found}; "
                    f"{ways_to_make(role)}"
                )
    return missing


def _way_to_add(role: str, store: TraceStore) -> str:
    """What to do about a column that is not there; a command where one derives it."""
    needed = {"hidden_states"} if role == "hs_last" else {"hidden_states", "prompt_len"}
    if role in DERIVED and needed <= store.schema.columns.keys():
        return f"python -m store derive {store.location} {role} adds it"
    if role in NEEDS:
        nli = " --nli MODEL" if role in NLI else ""
        return (
            f"python -m store derive {store.location} {role}{nli} adds it, if questions have "
            "several traces (extract --num-samples)"
        )
    if role in (ROLE, "label", "score"):
        return SPANS if role == ROLE else LABEL
    return ways_to_make(role)


def ways_to_make(role: str) -> str:
    """The commands that make a column with the traces, by the registry of columns."""
    known = TRACE_COLUMNS.get(role)
    made_by = [one for one in known.made_by if one.startswith(BOTH)] if known else BOTH
    names = ",".join(["default", *(EDGES if role in EDGES else (role,))])
    ways = [f"{one} {names}" if one == BY_HAND else one for one in made_by]
    return f"{MAKE_AGAIN} (python -m store {' or '.join(ways)})"


def kind_of(dtype: str, axis: str | None, n_item_axes: int, counts: bool) -> str:
    """What a column is, in words; of one of `counts` also its numbers."""
    if dtype == "utf8":
        return "text"
    kind = f"{'ragged' if axis else 'fixed'} with {n_item_axes} item axes"
    if not counts:
        return kind
    return f"{kind} of {'integers' if 'int' in dtype or dtype == 'bool' else dtype}"


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
