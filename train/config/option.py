"""One setting: its help, its default, and the values that it may have.

Fields of `Config` are made by `option`, and so are the options that a method has for itself. Flag,
type and check follow from them.
"""

from __future__ import annotations

import math
import re
from dataclasses import Field, field
from typing import Any

__all__ = ["OUTSIDE", "SWITCHES", "flag_of", "is_of_type", "off_flag", "option", "violated_rule"]

OUTSIDE = "outside"  # a field without a flag
STEPS = r"[1-9]\d{0,8}"
MINUTES = r"\d{1,6}(\.\d{1,6})?min"
FORMS = {  # setting -> pattern of its text, example
    "columns": (r"\w+=\w+(,\w+=\w+)*", "hs_last=MY_STATES"),
    "save_every": (f"{STEPS}|{MINUTES}|{STEPS},{MINUTES}", "500, 10min or 500,10min"),
}


def option(
    text: str,
    default: Any = None,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    low_open: bool = False,
    choices: tuple[str, ...] = (),
    free: bool = False,
    layer: bool = False,
) -> Any:
    """Describe a setting: its help, its default, and its range or choices.

    The range is [low, high], or (low, high] if `low_open`. A `free` setting changes how a run gets
    to its results, never the results. A `layer` is a layer's number in its model.
    """
    metadata = {
        "help": text,
        "range": (low, high, low_open),
        "choices": choices,
        "free": free,
        "layer": layer,
    }
    return field(default=default, metadata=metadata)


def is_of_type(value: Any, kinds: str) -> bool:
    """Whether a value of JSON, where a float may be written as an int, is "float | None", say."""
    names = kinds.replace("float", "float | int").replace("None", "NoneType")
    return type(value).__name__ in names.split(" | ")


def violated_rule(setting: Field, value: Any) -> str | None:
    """What is expected of a value and is not so; None if it may be used."""
    if value is None or setting.name == OUTSIDE:  # each method checks its own
        return None
    if not isinstance(value, str):
        return _violated_range(value, *setting.metadata["range"])
    if not value.isprintable():
        return "printable characters"
    pattern, example = FORMS.get(setting.name, (".*", ""))
    if not re.fullmatch(pattern, value, re.ASCII):
        return f"a form like {example}"
    choices = setting.metadata["choices"]
    return f"one of {', '.join(choices)}" if choices and value not in choices else None


def _violated_range(value: float, low: float, high: float, low_open: bool) -> str | None:
    """The range, if a number is not in it."""
    is_above = low < value if low_open else low <= value
    if is_above and value <= high and math.isfinite(value):
        return None
    expected = "a finite number"
    if low > -math.inf:
        expected = f"{'above' if low_open else 'at least'} {low:g}"
    if high < math.inf:
        expected += f" and at most {high:.10g}"
    return expected


# detector -> its field
SWITCHES = {"lstm_solo": "run_lstm", "gnn_det_lstm": "run_gnn_det", "gvae_lstm": "run_gvae"}


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def off_flag(detector: str) -> str:
    """The flag that leaves a detector out."""
    return flag_of(f"no_{SWITCHES[detector]}") if detector in SWITCHES else "--models"
