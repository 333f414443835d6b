"""Training and judging detectors on a trace store: `python -m train`, and the same in Python."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train.library.fit import FittedRun, fit_detectors
    from train.library.guard import Guard, load_run

__all__ = ["FittedRun", "Guard", "fit_detectors", "load_run"]

_WHERE = {"FittedRun": "fit", "Guard": "guard", "fit_detectors": "fit", "load_run": "guard"}


def _check_beside(name: str) -> None:
    """Raise ImportError if a file of the user hides a package that is installed beside this one."""
    spec = find_spec(name)
    places = [*(spec.submodule_search_locations or ()), spec.origin] if spec else []
    expected = Path(__file__).resolve().parents[1] / name
    if expected not in [Path(place).resolve() for place in places if place]:
        found = places[0] if places else "nothing"
        raise ImportError(
            f"expected the package {expected}, found {found}, which hides it: run trace-train in "
            "place of python -m train, or rename what hides it",
            name=__name__,  # `python -m` then prints one line
        )


_check_beside("store")
_check_beside("models")


def __getattr__(name: str) -> Any:
    """Import a public name from its module; what needs none of them takes no torch."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"train.library.{_WHERE[name]}"), name)
