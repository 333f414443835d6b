"""The columns of a model's traces: which there are, and which are kept unless others are named."""

from collections.abc import Collection, Sequence

from store.errors import NotFoundError, closest
from store.format.schema import Schema
from store.traces.columns import BY_HAND, TRACE_COLUMNS, columns_of

__all__ = ["DEFAULT", "NOT_BY_DEFAULT", "build_schema", "choose_columns", "needs_maps"]

DEFAULT = "default"  # a name for all columns that are kept unless others are named
NOT_BY_DEFAULT = columns_of(command=BY_HAND)


def build_schema(
    n_layers: int, n_heads: int, hidden_size: int, top_k: int, state_dtype: str = "float16"
) -> Schema:
    """Build the schema of a trace.

    Parameters
    ----------
    state_dtype : str
        'float16' or 'bfloat16', of the hidden states.

    Returns
    -------
    Schema
        Columns of one trace; T tokens are the axis "tokens", T * (T + 1) / 2 pairs of tokens the
        axis "pairs", all T * T the axis "squares".
    """
    sizes = {
        "layers": n_layers,
        "heads": n_heads,
        "hidden": hidden_size,
        "candidates": top_k,
        "ends": 2,
    }
    names = columns_of(command="extract")
    return Schema({name: TRACE_COLUMNS[name].stored(sizes, state_dtype) for name in names})


def choose_columns(columns: Sequence[str] | None, every: Schema) -> Schema:
    """The columns to keep, with the question's id, which a split needs.

    Parameters
    ----------
    columns : sequence of str, optional
        Names, of which 'default' stands for all but those of `NOT_BY_DEFAULT`; so does None. A name
        after a minus takes a column away, or those that begin with it: '-attn' is '-attn_mean' etc.
    every : Schema
        What `build_schema` returned.

    Raises
    ------
    NotFoundError
        There is no such column.
    """
    for name in columns or ():
        if not _named(name, every.columns):
            raise NotFoundError(
                f"columns: expected some of {list(every.columns)}, found {name!r:.200}"
                f"{closest(name.removeprefix('-'), every.columns)}"
            )
    kept = {"question_id"} | _kept(columns, every.columns)
    return Schema({name: column for name, column in every.columns.items() if name in kept})


def _kept(columns: Sequence[str] | None, every: Collection[str]) -> set[str]:
    """Return which of all columns are kept: names are added and taken away from left to right."""
    names = [DEFAULT] if columns is None else list(columns)
    if names and names[0].startswith("-"):
        names.insert(0, DEFAULT)
    kept: set[str] = set()
    for name in names:
        kept = kept - _named(name, every) if name.startswith("-") else kept | _named(name, every)
    return kept


def _named(name: str, every: Collection[str]) -> set[str]:
    if name == DEFAULT:
        return set(every).difference(NOT_BY_DEFAULT)
    if name.startswith("-"):
        return {one for one in every if one == name[1:] or one.startswith(f"{name[1:]}_")}
    return {name}.intersection(every)


def needs_maps(columns: Sequence[str] | None) -> bool:
    """Whether attention maps must be computed, which takes the eager implementation."""
    return bool(_kept(columns, columns_of("attention")))
