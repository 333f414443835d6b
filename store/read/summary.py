"""The columns of a store or a batch in a few lines, for `repr`. Pure."""

from collections.abc import Mapping, Sequence

__all__ = ["column_lines", "shape_text"]

MAX_LINES = 11  # with the headline, half a terminal


def shape_text(first: int | str, item_shape: Sequence[int], axis_names: Sequence[str] = ()) -> str:
    """A shape as Python writes it, e.g. '(tokens, layers=32, hidden=4096)' or '(17,)'."""
    if not item_shape:
        return f"({first},)"
    sizes = [str(size) for size in item_shape]
    if axis_names:
        sizes = [f"{name}={size}" for name, size in zip(axis_names, sizes, strict=True)]
    return f"({first}, {', '.join(sizes)})"


def column_lines(columns: Mapping[str, tuple[str, str]]) -> list[str]:
    """A line for each column with its dtype and shape, aligned; of many columns the first ten."""
    rows = [(name, dtype, shape) for name, (dtype, shape) in columns.items()]
    if len(rows) > MAX_LINES:
        rows = rows[: MAX_LINES - 1]
    name_width = max((len(name) for name, _, _ in rows), default=0)
    dtype_width = max((len(dtype) for _, dtype, _ in rows), default=0)
    lines = []
    for name, dtype, shape in rows:
        line = f"  {name.ljust(name_width)}  {dtype.ljust(dtype_width)}  {shape}"
        lines.append(line.rstrip())
    n_more = len(columns) - len(rows)
    if n_more:
        lines.append(f"  … and {n_more} more")
    return lines
