"""The columns of a store or a batch in a few lines, for `repr`. Pure."""

from collections.abc import Mapping, Sequence

__all__ = ["column_lines", "shape_text"]

MAX_LINES = 11  # with the headline, half a terminal


def shape_text(first: int | str, item_shape: Sequence[int], axis_names: Sequence[str] = ()) -> str:
    """A shape as Python writes it, e.g. '(tokens, layers=32, hidden=4096)' or '(17,)'."""
    names = [f"{name}=" for name in axis_names] or [""] * len(item_shape)
    parts = [str(first), *(f"{name}{n}" for name, n in zip(names, item_shape, strict=True))]
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def column_lines(columns: Mapping[str, tuple[str, str]]) -> list[str]:
    """A line for each column with its dtype and shape, aligned; of many columns the first ten."""
    n_shown = len(columns) if len(columns) <= MAX_LINES else MAX_LINES - 1
    shown = list(columns)[:n_shown]
    name_width = max(map(len, shown), default=0)
    dtype_width = max((len(columns[name][0]) for name in shown), default=0)
    lines = []
    for name in shown:
        dtype, shape = columns[name]
        lines.append(f"  {name:<{name_width}}  {dtype:<{dtype_width}}  {shape}".rstrip())
    if n_shown < len(columns):
        lines.append(f"  … and {len(columns) - n_shown} more")
    return lines
