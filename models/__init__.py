"""The detectors, the probes and the baselines: tensors in, one score per trace out.

Nothing here reads a file, splits data or trains. `registry.py` lists all of them by name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from models.registry import (
    BASELINES,
    CONTROLS,
    DETECTORS,
    METHODS,
    PROBES,
    REFERENCES,
    find,
)

if TYPE_CHECKING:
    from models.detector import Detector, Outputs
    from models.options import Option
    from models.probe import FittedProbe, Probe

__all__ = [
    "BASELINES",
    "CONTROLS",
    "DETECTORS",
    "METHODS",
    "PROBES",
    "REFERENCES",
    "Detector",
    "FittedProbe",
    "Option",
    "Outputs",
    "Probe",
    "find",
]

_MODULES = {
    "Detector": "models.detector",
    "Option": "models.options",
    "Outputs": "models.detector",
    "FittedProbe": "models.probe",
    "Probe": "models.probe",
}


def __getattr__(name: str) -> Any:
    """Import a class of `_MODULES` on first access."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
