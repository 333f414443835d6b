"""Whether a loaded object is a detector or a probe with all that a run asks of it, and its name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from train.errors import ConfigError

if TYPE_CHECKING:
    from models import Detector, Probe

__all__ = ["check_method", "methods_of", "name_of"]

WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def check_method(value: Any, where: str) -> type[Detector] | Probe:
    """A subclass of Detector with all it needs, or a Probe; raises ConfigError for others."""
    from models import Detector, Probe

    is_detector = isinstance(value, type) and issubclass(value, Detector)
    if not is_detector and not isinstance(value, Probe):
        found = f"class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise ConfigError(
            f"{where}: expected a subclass of models.Detector or a models.Probe, found {found}"
        )
    columns = getattr(value, "columns", None)
    if not is_names(columns) or not columns:
        raise ConfigError(
            f"{where}: expected `columns`, a tuple of the columns that it reads, "
            f"found {columns!r:.80}"
        )
    if is_detector:
        check_detector(value, where)
    return value


def is_names(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(name, str) for name in value)


def check_detector(kind: type[Detector], where: str) -> None:
    from models import Detector

    if not is_names(kind.options):
        raise ConfigError(
            f"{where}: expected `options`, a tuple of names and Options, found {kind.options!r:.80}"
        )
    below = kind.__mro__[: kind.__mro__.index(Detector)]
    own = {name for one in below for name in vars(one)}
    if "forward" not in own and not {"encode", "classify"} <= own:
        raise ConfigError(f"{where}: expected the methods encode and classify, found not both")
    if "build" in own:
        return  # it knows what its constructor takes
    try:
        inspect.signature(kind).bind(1, **dict.fromkeys(kind.options))
    except TypeError as error:
        arguments = ", ".join(["hidden_size", *kind.options])
        raise ConfigError(
            f"{where}: expected a constructor that takes {arguments}, which are the hidden size "
            f"and its `options`, found: {error}"
        ) from error


def name_of(method: type[Detector] | Probe, attribute: str, where: str) -> str:
    """The attribute `name` of a method, else the name in its file: MyDetector -> my_detector."""
    name = getattr(method, "name", None)
    if name is None:
        return WORDS.sub("_", attribute).lower()
    if not isinstance(name, str):
        raise ConfigError(f"{where}: expected `name` to be a text, found {name!r:.80}")
    return name


def methods_of(module: ModuleType) -> Iterator[str]:
    """Names of the detectors and probes that a module defines."""
    from models import Detector, Probe

    for name, value in vars(module).items():
        is_detector = isinstance(value, type) and issubclass(value, Detector)
        if (is_detector and value.__module__ == module.__name__) or isinstance(value, Probe):
            yield name
