"""Which axis of an array is which: what shapes tell, and what only who maps it can say. Pure.

Nothing is guessed: where an array may be read in several ways, all of them are named.
"""

from collections.abc import Mapping, Sequence

from store.errors import SchemaError
from store.importers.arrays.contents import LIST, Key
from store.importers.arrays.mapping import LISTS, RECORDS, Mapped
from store.traces.layers import LAYERS_AXIS

__all__ = ["check_named", "has_rows", "has_tokens_and_layers", "readings"]


def has_rows(mapped: Sequence[Mapped], keys: Mapping[str, Key]) -> bool:
    """Return whether arrays have a row for each record, or are one record.

    Raises SchemaError where the shapes of some arrays say the one, those of others the other, or
    nothing tells states of many layers from those of one layer in many records.
    """
    votes: dict[str, bool] = {}
    shapes: dict[str, bool] = {}
    unclear: list[Mapped] = []  # of one record, or of rows without the axis of layers
    named = {item.key: True for item in mapped if keys[item.key].dtype == LIST}
    named |= {item.key: RECORDS in item.names for item in mapped if item.names is not None}
    for item in mapped:
        if item.axes is None or item.column in LISTS:
            continue
        axis, names = item.axes
        shape = keys[item.key].shape
        n_more = len(shape) - (axis is not None) - len(names)
        is_single = axis is None and not names
        is_one = axis is None and shape[:1] == (1,)  # one record of one layer, either way
        if n_more == 0 and names[:1] == (LAYERS_AXIS,) and not is_one:
            unclear.append(item)
        elif n_more in (0, 1) and (not is_single or shape != (1,)):
            (votes if is_single else shapes)[item.key] = bool(n_more)
    found = named or votes or shapes
    if unclear and not found:
        if len({keys[item.key].shape[:1] for item in mapped}) > 1:
            return False  # they are no rows: they differ in length
        item = unclear[0]
        shape = keys[item.key].shape
        raise SchemaError(
            "expected one trace of many layers or many traces of one layer, found "
            f"{item.key!r:.80} {shape}, which may be either: add a key of ids or labels, or "
            f"{advice(item, shape, None)}"
        )
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{name} {keys[name].shape}" for name in found)
        raise SchemaError(
            "expected arrays that all have a row for each trace, or all are of one trace, "
            f"found {shown:.300}"
        )
    return next(iter(found.values()), True)


def check_named(mapped: Sequence[Mapped], keys: Mapping[str, Key], by_row: bool | None) -> None:
    """Raise SchemaError for states of tokens and layers whose axes the map does not name.

    Nothing tells the two apart: both may be as long in every record.
    """
    for item in mapped:
        if item.names is None and has_tokens_and_layers(item):
            shape = keys[item.key].shape
            raise SchemaError(
                f"{item.key!r:.80} {shape}: expected its axes, of which nothing tells tokens from "
                f"layers; {advice(item, shape, by_row)}"
            )


def has_tokens_and_layers(item: Mapped) -> bool:
    return item.axes is not None and item.axes[0] is not None and LAYERS_AXIS in item.axes[1]


def readings(item: Mapped, shape: tuple[int, ...], by_row: bool | None) -> list[str]:
    """Return what a key of states may mean, as pieces of a map that name its axes.

    The shape is of the whole array, which has a row for each record (None: perhaps), or of one.
    """
    axis, names = item.axes or (None, (LAYERS_AXIS,))
    layers, rest = names[:1], names[1:]
    if axis is None:
        found = [(item.column, names), (item.column, rest), ("hidden_states", ("tokens", *rest))]
    else:
        fixed = "hs_last" if item.column == "hidden_states" else f"fixed_{item.column}"
        orders = [(axis, *names), (*layers, axis, *rest), (axis, *rest)]
        found = [*((item.column, order) for order in orders), (fixed, names)]
    records = [(column, (RECORDS, *order)) for column, order in found]
    wholes = (found if by_row is not True else []) + (records if by_row is not False else [])
    return [
        f"{column}={item.key}[{','.join(order)}]"
        for column, order in wholes
        if len(order) == len(shape)
    ]


def advice(item: Mapped, shape: tuple[int, ...], by_row: bool | None) -> str:
    """Return how to name the axes of a key, in every way that it can be read."""
    ways = readings(item, shape, by_row) or [f"{item.column}={item.key}[tokens,layers,hidden]"]
    return f"name its axes, --map {' or '.join(map(repr, ways))}"
