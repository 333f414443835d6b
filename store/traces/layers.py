"""Layers of a model: how they are numbered, and the syntax that chooses some. Pure.

Layers are numbered as the model numbers them, from 1 (the first block) to L; 0 is the embedding,
which is kept only where it was asked for. A store that keeps some of them records their numbers
(`layers` in its provenance), so layer 16 is layer 16 everywhere: when traces are made, read,
trained on and reported. A store without that record counts its layers from 1.

One syntax chooses layers: numbers and ranges between commas, both ends of a range included.

============  ====================================================
``8,16,24``   these three
``8-16``      from 8 to 16; ``8:16`` says the same
``8:16:4``    8, 12 and 16
``8:``        from 8 to the last one; ``:8`` from the first to 8
``-1``        the last one; ``-2`` the one before; ``-4:`` the last four
============  ====================================================
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from store.errors import NotFoundError, SchemaError
from store.traces.origin import records_of

__all__ = [
    "LAYERS_AXIS",
    "check_recorded",
    "choose_layers",
    "format_layers",
    "layer_numbers",
    "parse_layers",
    "recorded_layers",
]

LAYERS_AXIS = "layers"  # name of the item axis that counts layers
FORM = "8,16,24 or 8-16 or -2"
MAX_LAYER = 1_000_000

_NUMBER = r"\d{1,6}"
_SINGLE = re.compile(rf"-?{_NUMBER}")
_DASH = re.compile(rf"{_NUMBER}-{_NUMBER}")
_COLON = re.compile(rf"(-?{_NUMBER})?:(-?{_NUMBER})?(?::(?!0+$)({_NUMBER}))?")


class LayerRange(NamedTuple):
    """Layers from `first` to `last`, both included, or every `step`-th of them.

    Negative numbers count from the last layer (-1), None stands for the first or last one.
    """

    first: int | None
    last: int | None
    step: int


def parse_layers(text: str) -> list[LayerRange]:
    """Read the syntax of the module's docstring; raises SchemaError for anything else."""
    return [_parse_range(piece.strip(), text) for piece in text.split(",")]


def _parse_range(piece: str, text: str) -> LayerRange:
    if _SINGLE.fullmatch(piece):
        piece = f"{piece}:{piece}"
    elif _DASH.fullmatch(piece):
        piece = piece.replace("-", ":")
    colon = _COLON.fullmatch(piece)
    if colon is None:
        raise SchemaError(f"layers: expected a form like {FORM}, found {text!r:.80}")
    first, last, step = (int(part) if part else None for part in colon.groups())
    if first is not None and last is not None and first > last >= 0:
        raise SchemaError(f"layers: expected a range that rises, found {text!r:.80}")
    return LayerRange(first, last, step or 1)


def choose_layers(text: str, numbers: Sequence[int], where: str) -> list[int]:
    """Find the layers that a text chooses, in the syntax of the module's docstring.

    `numbers` are the layers to choose from, as the model numbers them, ascending; `where` says what
    has them, and begins messages. Returns positions in `numbers`, ascending, each once. Raises
    SchemaError for a text of none of the forms, NotFoundError for a layer that is not there.
    """
    chosen: set[int] = set()
    for wanted in parse_layers(text):
        chosen.update(_positions(wanted, numbers, where))
    return sorted(chosen)


def _positions(wanted: LayerRange, numbers: Sequence[int], where: str) -> list[int]:
    first = _end_of_range(wanted.first, numbers, where, default=0)
    last = _end_of_range(wanted.last, numbers, where, default=-1)
    positions = [
        position
        for position, number in enumerate(numbers)
        if first <= number <= last and (number - first) % wanted.step == 0
    ]
    if not positions:
        raise _no_layer(f"{first}" if first == last else f"{first} to {last}", numbers, where)
    return positions


def _end_of_range(end: int | None, numbers: Sequence[int], where: str, default: int) -> int:
    """The number of a layer that a range begins or ends with."""
    if end is None:
        return numbers[default]
    if -len(numbers) <= end < 0:
        return numbers[end]
    if numbers[0] <= end <= numbers[-1]:
        return end
    raise _no_layer(str(end), numbers, where)


def _no_layer(layer: str, numbers: Sequence[int], where: str) -> NotFoundError:
    known = f"layers {format_layers(numbers)}, as the model numbers them (if that is recorded)"
    return NotFoundError(f"{where}: there is no layer {layer}; it has {known}")


def format_layers(numbers: Sequence[int]) -> str:
    """Write ascending numbers in the syntax of the module's docstring: [1, 2, 3, 8] is '1-3,8'."""
    runs: list[list[int]] = []
    for number in numbers:
        if not runs or number != runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(number)
    return ",".join(map(_format_run, runs))


def _format_run(run: Sequence[int]) -> str:
    if len(run) > 2:
        return f"{run[0]}-{run[-1]}"
    return ",".join(map(str, run))


def recorded_layers(provenance: Mapping[str, object]) -> list[int] | None:
    """The numbers of a store's layers as its provenance records them.

    None where it records none, or something else than different rising numbers, or where the stores
    that it was merged from do not agree.
    """
    first, *others = map(_numbers_in, records_of(provenance))
    agree = all(numbers == first for numbers in others)
    return first if agree else None


def check_recorded(provenance: Mapping[str, object]) -> None:
    """Raise SchemaError for layers that are recorded in another order than that of their model."""
    layers = provenance.get("layers")
    is_list = isinstance(layers, list) and {*map(type, layers)} == {int}
    if is_list and _numbers_in(provenance) is None:
        raise SchemaError(
            f"provenance: expected the numbers of layers rising, found {layers!r:.100}; put the "
            "layers of the columns in that order too"
        )


def _numbers_in(record: Mapping[str, object]) -> list[int] | None:
    """The layers of one record; None unless they are rising numbers."""
    layers = record.get("layers")
    if not isinstance(layers, list) or {*map(type, layers)} != {int}:
        return None
    is_rising = layers == sorted(set(layers)) and layers[0] >= 0 and layers[-1] < MAX_LAYER
    return list(layers) if is_rising else None


def layer_numbers(provenance: Mapping[str, object], n_layers: int) -> list[int]:
    """The numbers of a column's `n_layers` layers: as recorded if so many are, else from 1."""
    recorded = recorded_layers(provenance)
    if recorded is not None and len(recorded) == n_layers:
        return recorded
    return list(range(1, n_layers + 1))
