"""Detectors and probes from outside this package: a file that the user names, or installed ones.

`--models FILE.py:CLASS` runs the file, since the user asks for it on the command line. No other
text names a file to run: neither --config nor the files of a run, which record where a method came
from, but only so that a changed file is found. Installed packages offer methods by entry points of
the groups `trace_detectors` and `trace_probes`; they are imported when they are asked for by name.

What is loaded here is in the registries of `models` until the next command line is read. A record
may come from anywhere: no path in it is ever opened or imported.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from models import DETECTORS, METHODS, PROBES
from models.options import Option
from store.cli.arguments import expand
from train.errors import ConfigError

if TYPE_CHECKING:
    from models import Detector, Probe

__all__ = [
    "LOADED",
    "NOTHING",
    "Difference",
    "Outside",
    "Record",
    "Records",
    "check_method",
    "describe_changes",
    "describe_failure",
    "describe_outside",
    "forget",
    "load_chosen",
    "load_methods",
    "methods_of",
    "name_of",
    "outside_differences",
    "run_source",
]

ALL = "all"
DETECTOR_GROUP = "trace_detectors"
PROBE_GROUP = "trace_probes"
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


@dataclass(frozen=True)
class Outside:
    """A detector or probe that was loaded from outside."""

    name: str  # in the registries and results
    method: type[Detector] | Probe
    origin: Record  # without options

    @property
    def options(self) -> list[Option]:
        """The options that it has for itself."""
        options = getattr(self.method, "options", ())
        return [option for option in options if isinstance(option, Option)]


LOADED: dict[str, Outside] = {}  # by name
INSTALLED: dict[str, EntryPoint] = {}  # by name, imported or not
FILES: dict[Path, tuple[ModuleType, str]] = {}  # that were run, with their SHA-256


def load_methods(text: str, *, files: bool = True) -> str:
    """Load the methods of a --models text that are from outside, and register them.

    Those of the call before are forgotten.

    `text` has names and FILE.py:CLASS, separated by commas; `all` takes in what is installed, and
    may stand beside methods from outside. `files` says whether files may be run: only where the
    user wrote the text on the command line. Returns the text with the name of each FILE.py:CLASS in
    its place.

    Raises ConfigError for a file or package that cannot be loaded, or holds something else; and for
    a name that there is already.
    """
    forget()
    find_installed()
    names = []
    for item in text.split(","):
        if ":" not in item and not item.endswith(".py"):
            names.append(item)
            continue
        if not files:
            raise ConfigError(
                f"--config: models: {item!r:.200} is a file to run, which only the command line "
                "can ask for; give --models with it"
            )
        outside = load_file(item)
        check_new(outside.name, str(outside.origin.place))
        enter(outside)
        names.append(outside.name)
    load_chosen(INSTALLED if ALL in names else names)
    return ",".join(names)


def load_chosen(names: Iterable[str]) -> None:
    """Import the installed methods among these names; raises ConfigError where one cannot be."""
    for name in names:
        if name in INSTALLED and name not in LOADED:
            enter(load_installed(name, INSTALLED[name]))


def forget() -> None:
    """Remove what an earlier command line has registered."""
    for name in [*LOADED, *INSTALLED]:
        for registry in (DETECTORS, PROBES):
            registry.data.pop(name, None)
    for known in (LOADED, INSTALLED, FILES):
        known.clear()


def find_installed() -> None:
    """Register the names of installed methods, without importing them."""
    for group, registry in ((DETECTOR_GROUP, DETECTORS), (PROBE_GROUP, PROBES)):
        for point in entry_points(group=group):
            check_new(point.name, f"{group} of the installed package {package_of(point)}")
            registry.data[point.name] = point.value
            INSTALLED[point.name] = point


def enter(outside: Outside) -> None:
    registry: Any = DETECTORS if isinstance(outside.method, type) else PROBES
    LOADED[outside.name] = outside
    registry[outside.name] = outside.method


def check_new(name: str, place: str) -> None:
    if name in METHODS:
        raise ConfigError(
            f"{place}: there is a method called {name!r:.80} already; give yours another name: "
            "a class attribute `name`, or another name of the class"
        )


def load_file(item: str) -> Outside:
    """Run the file of FILE.py:CLASS; raises ConfigError where it holds no method of that name."""
    file, _, attribute = item.rpartition(":")
    if not file or not attribute.isidentifier():
        raise ConfigError(f"--models: expected a name or FILE.py:CLASS, found {item!r:.200}")
    where = f"--models: {file}"
    path = Path(expand(file)).resolve()
    if path not in FILES:
        FILES[path] = run_file(path, where)
    module, sha256 = FILES[path]
    if not hasattr(module, attribute):
        found = ", ".join(methods_of(module)) or "none"
        raise ConfigError(f"{where}: expected a detector or probe {attribute!r:.80}, found {found}")
    method = check_method(getattr(module, attribute), f"{where}: {attribute}")
    name = name_of(method, attribute, f"{where}: {attribute}")
    return Outside(name, method, Record(f"{path}:{attribute}", sha256))


def run_file(path: Path, where: str) -> tuple[ModuleType, str]:
    """Run a file; its module, and the SHA-256 of the bytes that were run."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}; give FILE.py:CLASS") from error
    sha256 = hashlib.sha256(source).hexdigest()
    return run_source(path, source, f"outside_{path.stem}_{shorten(sha256)}"), sha256


def load_installed(name: str, point: EntryPoint) -> Outside:
    """Import the method of an entry point; raises ConfigError where that fails."""
    package = package_of(point)
    where = f"{name}: the installed package {package}"
    try:
        value = point.load()
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{where}: cannot be imported: {describe_failure(error)}; install it again, or leave "
            f"out {name}"
        ) from error
    method = check_method(value, f"{where}: {point.value}")
    group = DETECTOR_GROUP if isinstance(method, type) else PROBE_GROUP
    if group != point.group:
        raise ConfigError(
            f"{where}: expected its entry point in group {group}, found {point.group}"
        )
    return Outside(name, method, Record(point.value, package=package))


def package_of(point: EntryPoint) -> str:
    if point.dist is None:
        return point.value
    return f"{point.dist.name} {point.dist.version}"


def describe_changes(recorded: Records, names: Sequence[str]) -> list[str]:
    """A warning for each method whose file or package is not that of the run."""
    warnings = []
    for name in names:
        if name not in LOADED or name not in recorded:
            continue
        now, then = LOADED[name].origin, recorded[name]
        for key in ORIGIN_KEYS:
            found, expected = getattr(now, key), getattr(then, key)
            if found != expected:
                warnings.append(
                    f"warning: {name}: {now.place} is not what the run was trained with: "
                    f"expected {key} {shorten(expected)!s:.80}, found {shorten(found)}"
                )
    return warnings


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
