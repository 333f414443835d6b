"""Training and judging detectors on a trace store: `python -m train`, and the same in Python."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train.library.fit import FittedRun, fit_detectors
    from train.library.guard import Guard, load_run

__all__ = ["FittedRun", "Guard", "fit_detectors", "load_run"]

_WHERE = {"FittedRun": "fit", "Guard": "guard", "fit_detectors": "fit", "load_run": "guard"}


def __getattr__(name: str) -> Any:
    """Import a public name from its module; what needs none of them takes no torch."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"train.library.{_WHERE[name]}"), name)
