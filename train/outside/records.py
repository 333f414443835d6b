"""What a run records of the methods from outside, read back. Pure.

A record may come from anywhere: whatever is not as it is written here counts as nothing, and no
path in it is ever opened or imported.
"""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

__all__ = [
    "NOTHING",
    "ORIGIN_KEYS",
    "Difference",
    "Record",
    "describe_outside",
    "outside_differences",
    "record_of",
    "shorten",
]

N_DIGITS = 12  # of a SHA-256 that is shown
ORIGIN_KEYS = ("sha256", "package")
Difference = tuple[str, object, object]  # what, now, then


@dataclass(frozen=True)
class Record:
    """Where a method came from, and the values of its options, which nothing has checked."""

    place: str | None  # FILE.py:CLASS, or MODULE:NAME of an installed package
    sha256: str | None  # of the file, in hexadecimal
    package: str | None  # name and version of the installed package
    options: dict[str, object]


NOTHING = Record(None, None, None, {})


def record_of(recorded: object, name: str) -> Record:
    """What a run recorded of a method from outside; `NOTHING` where it recorded no such thing."""
    entry = as_object(as_object(recorded).get(name))
    texts = (entry.get(key) for key in ("place", *ORIGIN_KEYS))
    place, sha256, package = (one if isinstance(one, str) else None for one in texts)
    return Record(place, sha256, package, as_object(entry.get("options")))


def as_object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def outside_differences(now: object, then: object) -> list[Difference]:
    """What differs between the recorded methods of two runs: what, and both values.

    Of a file its bytes count, of a package its version; not where it lies.
    """
    differences: list[Difference] = []
    for name in names_in(now, then):
        a, b = record_of(now, name), record_of(then, name)
        for key in ORIGIN_KEYS:
            what = f"{a.place or b.place}: {key}"
            differences.append((what, shorten(getattr(a, key)), shorten(getattr(b, key))))
        for option in names_in(a.options, b.options):
            flag = f"--{name}-{option}".replace("_", "-")
            differences.append((flag, a.options.get(option), b.options.get(option)))
    return [(what, a, b) for what, a, b in differences if a != b]


def names_in(*records: object) -> list[str]:
    """The keys of several records, each once."""
    keys = chain.from_iterable(map(as_object, records))
    return list(dict.fromkeys(keys))


def shorten(value: object) -> object:
    """The first digits of a SHA-256; anything else as it is."""
    if isinstance(value, str) and len(value) == 64:
        return value[:N_DIGITS]
    return value


def describe_outside(recorded: object) -> list[str]:
    """Each method from outside with its origin and its options, for a report."""
    texts = []
    for name in names_in(recorded):
        one = record_of(recorded, name)
        origin = one.package or f"sha256 {shorten(one.sha256)}"
        texts.append(f"{name} from {Path(str(one.place)).name} ({origin})")
        texts += [f"{name}_{key} = {value}" for key, value in one.options.items()]
    return texts
