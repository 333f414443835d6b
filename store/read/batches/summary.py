"""The columns of a store or a batch in a few lines, for `repr`. Pure."""

from collections.abc import Mapping, Sequence

from store.format.schema import Column
from store.reports import aligned

__all__ = ["column_lines", "column_shape", "shape_text"]

MAX_LINES = 11  # with the headline, half a terminal


def shape_text(first: int | str, item_shape: Sequence[int], axis_names: Sequence[str] = ()) -> str:
    """A shape as Python writes it, e.g. '(tokens, layers=32, hidden=4096)' or '(17,)'."""
    if not item_shape:
        return f"({first},)"
    sizes = [str(size) for size in item_shape]
    if axis_names:
        sizes = [f"{name}={size}" for name, size in zip(axis_names, sizes, strict=True)]
    return f"({first}, {', '.join(sizes)})"


def column_shape(column: Column, n_rows: int) -> str:
    """The shape of a column of a store; none of texts."""
    first = n_rows if column.axis is None else column.axis
    return "" if column.is_text else shape_text(first, column.item_shape, column.axis_names)


def column_lines(columns: Mapping[str, tuple[str, str]]) -> list[str]:
    """A line for each column with its dtype and shape, aligned; of many columns the first ten."""
    n_shown = len(columns) if len(columns) <= MAX_LINES else MAX_LINES - 1
    n_more = len(columns) - n_shown
    shown = [(name, *text) for name, text in columns.items()][:n_shown]
    lines = [f"  {line}" for line in aligned(shown)]
    if n_more:
        lines.append(f"  … and {n_more} more")
    return lines
