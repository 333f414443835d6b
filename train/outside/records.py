"""What a run records of the methods from outside, read back. Pure.

A record may come from anywhere: whatever is not as it is written here counts as nothing, and no
path in it is ever opened or imported.
"""

from itertools import chain
from pathlib import Path

from train.files import Json

__all__ = [
    "ORIGIN_KEYS",
    "Difference",
    "describe_outside",
    "entry_of",
    "outside_differences",
    "recorded_options",
    "recorded_place",
    "shorten",
]

N_DIGITS = 12  # of a SHA-256 that is shown
ORIGIN_KEYS = ("sha256", "package")
Difference = tuple[str, object, object]  # what, now, then


def entry_of(recorded: object, name: str) -> Json:
    """What a run recorded of a method from outside; {} where it recorded none, or no such thing."""
    return as_object(as_object(recorded).get(name))


def as_object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def recorded_options(recorded: object, name: str) -> Json:
    """The recorded values of the options of a method; not checked."""
    entry = entry_of(recorded, name)
    return dict(as_object(entry.get("options")))


def recorded_place(recorded: object, name: str) -> str | None:
    """Where a run had a method from, as it says; not to be imported."""
    place = entry_of(recorded, name).get("place")
    return place if isinstance(place, str) else None


def outside_differences(now: object, then: object) -> list[Difference]:
    """What differs between the recorded methods of two runs: what, and both values."""
    differences = []
    for name in names_in(now, then):
        differences += origin_differences(entry_of(now, name), entry_of(then, name))
        a = recorded_options(now, name)
        b = recorded_options(then, name)
        for option in names_in(a, b):
            flag = f"--{name}-{option}".replace("_", "-")
            differences.append((flag, a.get(option), b.get(option)))
    return [(what, a, b) for what, a, b in differences if a != b]


def origin_differences(now: Json, then: Json) -> list[Difference]:
    """The bytes of the file, or the version of the package; not where it lies."""
    place = now.get("place") or then.get("place")
    return [
        (f"{place}: {key}", shorten(now.get(key)), shorten(then.get(key))) for key in ORIGIN_KEYS
    ]


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
        entry = entry_of(recorded, name)
        file = Path(str(entry.get("place"))).name
        origin = entry.get("package") or f"sha256 {shorten(entry.get('sha256'))}"
        texts.append(f"{name} from {file} ({origin})")
        options = recorded_options(recorded, name)
        texts += [f"{name}_{key} = {value}" for key, value in options.items()]
    return texts
