"""Runs a file that the user has named, as a module, and says in one line where it failed."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from train.errors import ConfigError

if TYPE_CHECKING:
    from models import Detector, Probe

__all__ = ["check_method", "describe_failure", "methods_of", "name_of", "run_source"]


def run_source(path: Path, source: bytes, module_name: str) -> ModuleType:
    """Run the bytes of a file as a module; raises ConfigError with the line that failed."""
    module = ModuleType(module_name)
    module.__file__ = str(path)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        exec(compile(source, path, "exec"), vars(module))  # noqa: S102 - the user asked for it
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise ConfigError(f"--models: {describe_failure(error, path)}; mend the file") from error
    return module


def describe_failure(error: BaseException, path: Path | None = None) -> str:
    """File, line, kind and text of an error, in one line; of the last line in `path` if given."""
    place = ""
    frames = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if path is None or frame.filename == str(path)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    if frames:
        file, line = frames[-1]
        place = f"{file}, line {line}: "
    elif path is not None:
        place = f"{path}: "
    text = " ".join(str(error).split())
    return f"{place}{type(error).__name__}: {text:.300}"


WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def check_method(value: object, where: str) -> type[Detector] | Probe:
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
    method = cast("type[Detector] | Probe", value)
    if isinstance(method, type):
        check_detector(method, where)
    return method


def is_names(value: object) -> bool:
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
        signature = inspect.signature(kind)
        sizes = signature.parameters.keys() & {"n_layers"}
        signature.bind(1, **dict.fromkeys([*sizes, *kind.options]))
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
