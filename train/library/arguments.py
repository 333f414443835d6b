"""Errors of the library name arguments, where those of the command line name flags."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from train.config import Config
from train.errors import TrainError

__all__ = ["naming_arguments"]

FLAG = re.compile(r"--(no-)?([a-z][a-z-]*)")
KNOWN: dict[str, str] = Config.__annotations__ | dict.fromkeys(
    ("force", "resume", "overwrite"), "bool"
)


@contextmanager
def naming_arguments() -> Iterator[None]:
    """Have errors inside say `max_traces` for `--max-traces`, `amp=False` for `--no-amp`."""
    try:
        yield
    except TrainError as error:
        error.args = (FLAG.sub(as_argument, str(error)), *error.args[1:])
        raise


def as_argument(flag: re.Match[str]) -> str:
    name = flag[2].replace("-", "_")
    if name not in KNOWN:
        return flag[0]
    return f"{name}={not flag[1]}" if KNOWN[name] == "bool" else name
