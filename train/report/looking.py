"""The commands of a report that open traces in the page of `python -m store view`. Pure."""

import shlex
from pathlib import Path

from train.report.numbers import clean_text

__all__ = ["view_command"]

MAX_ID = 200  # characters


def view_command(store: str, run: Path, trace_id: str) -> str | None:
    """The shell command that opens a trace beside the scores of a run.

    It is quoted for a POSIX shell; the trace id is not trusted. None where a path or the id has
    characters that nobody sees: a command that is pasted must be the one that was read.
    """
    paths = [store, str(run.resolve())]
    if any(clean_text(text, 8 * MAX_ID) != text for text in paths):
        return None
    if clean_text(trace_id, MAX_ID) != trace_id:
        return None
    # joined by =, an id that begins with - is no option
    words = ["--run", paths[1], f"--trace={trace_id}"]
    return shlex.join(["python", "-m", "store", "view", paths[0], *words])
