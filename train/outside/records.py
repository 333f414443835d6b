"""What a run records of the methods from outside. Pure.

A record may come from anywhere: no path in it is ever opened or imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "NOTHING",
    "ORIGIN_KEYS",
    "Difference",
    "Record",
    "Records",
    "describe_outside",
    "outside_differences",
    "shorten",
]

N_DIGITS = 12  # of a SHA-256 that is shown
ORIGIN_KEYS = ("sha256", "package")
Difference = tuple[str, object, object]  # what, now, then


@dataclass(frozen=True)
class Record:
    """Where a method came from, and the values of its options, which nothing has checked."""

    place: str | None = None  # FILE.py:CLASS, or MODULE:NAME of an installed package
    sha256: str | None = None  # of the file, in hexadecimal
    package: str | None = None  # name and version of the installed package
    options: dict[str, object] = field(default_factory=dict)


NOTHING = Record()
Records = Mapping[str, Record]  # by the name of the method


def outside_differences(now: Records, then: Records) -> list[Difference]:
    """What differs between the recorded methods of two runs: what, and both values.

    Of a file its bytes count, of a package its version; not where it lies.
    """
    differences: list[Difference] = []
    for name in {**now, **then}:
        a, b = now.get(name, NOTHING), then.get(name, NOTHING)
        for key in ORIGIN_KEYS:
            what = f"{a.place or b.place}: {key}"
            differences.append((what, shorten(getattr(a, key)), shorten(getattr(b, key))))
        for option in {**a.options, **b.options}:
            flag = f"--{name}-{option}".replace("_", "-")
            differences.append((flag, a.options.get(option), b.options.get(option)))
    return [(what, a, b) for what, a, b in differences if a != b]


def shorten(value: object) -> object:
    """The first digits of a SHA-256; anything else as it is."""
    if isinstance(value, str) and len(value) == 64:
        return value[:N_DIGITS]
    return value


def describe_outside(recorded: Records) -> list[str]:
    """Each method from outside with its origin and its options, for a report."""
    texts = []
    for name, one in recorded.items():
        origin = one.package or f"sha256 {shorten(one.sha256)}"
        texts.append(f"{name} from {Path(str(one.place)).name} ({origin})")
        texts += [f"{name}_{key} = {value}" for key, value in one.options.items()]
    return texts
