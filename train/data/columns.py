"""Columns that a store lacks, or has of another kind, and the commands that make them."""

from collections.abc import Iterable

from store import TraceStore
from store.traces.columns import BY_HAND, TRACE_COLUMNS
from store.traces.states import DERIVED
from store.transform.samples.names import NEEDS, NLI
from train.data.batches import TrainingData
from train.data.token_labels import ROLE
from train.errors import DataError

__all__ = ["check_columns", "missing_columns", "present_columns"]

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
