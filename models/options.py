"""Options that one detector has for itself, declared beside its code. Needs no torch."""

from __future__ import annotations

import math

__all__ = ["Option"]

Value = bool | int | float | str | None
KINDS = (bool, int, float, str)


class Option(str):
    """The name of an option, with what makes a flag of it: default, help, range or choices.

    A detector lists it in `options`, beside the plain names of settings that are shared by all
    detectors. Its flag is `--DETECTOR-OPTION`, with the name of the detector; the constructor
    takes it by its own name.

    Examples
    --------
    >>> Option("width", 128, "width of the hidden layer", low=1)
    'width'
    """

    default: Value
    help: str
    low: float
    high: float
    choices: tuple[str, ...]
    kind: type

    def __new__(
        cls,
        name: str,
        default: Value,
        help: str = "",
        *,
        low: float = -math.inf,
        high: float = math.inf,
        choices: tuple[str, ...] = (),
        kind: type | None = None,
    ) -> Option:
        """Check the declaration; raises ValueError.

        The name is an identifier; the option has the type of its default, or `kind` if that is
        None; the help is one line, with the unit; both ends of the range are included.
        """
        option = super().__new__(cls, name)
        option.default = default
        option.help = help or name.replace("_", " ")
        option.low = low
        option.high = high
        option.choices = tuple(choices)
        option.kind = kind or type(default)
        if not (name.isascii() and name.isidentifier()) or name.startswith("_"):
            raise ValueError(f"option {name!r:.80}: expected a name of letters, digits and '_'")
        if option.kind not in KINDS:
            raise ValueError(
                f"option {name!r}: expected a default that is a bool, int, float or str, or a "
                f"kind of these, found {option.kind.__name__}"
            )
        return option

    def __getnewargs_ex__(self) -> tuple[tuple[str, Value, str], dict[str, object]]:
        """What `copy` and `pickle` construct it from."""
        keywords = ("low", "high", "choices", "kind")
        return (str(self), self.default, self.help), {key: getattr(self, key) for key in keywords}
