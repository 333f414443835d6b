"""`python -m store get`: one trace."""

import json
from pathlib import Path
from textwrap import indent

import numpy as np

from store.cli import shared_options
from store.cli.arguments import names
from store.cli.command import Command, argument, flag, option
from store.read.store import Trace, TraceStore
from store.reports import say

__all__ = ["Get"]

EXAMPLES = """\
Long arrays are shortened, except with --json. python -m store info STORE lists the columns.

examples:
  python -m store get traces.zarr q17 --columns question,answer,label
  python -m store get traces.zarr q17 --json | python -m json.tool
"""


class Get(Command):
    """Print the values of one trace."""

    epilog = EXAMPLES
    store: Path = shared_options.STORE
    trace_id: str = argument("the trace, by its id", "TRACE_ID")
    columns: list[str] | None = option(
        "columns to print, separated by commas (default: all)", "NAMES", names
    )
    json: bool = flag("print one JSON object, every value in full (may be large)")

    def run(self) -> int:
        trace = TraceStore.open(self.store)[self.trace_id]
        names = self.columns or list(trace)
        if self.json:
            values = {"trace_id": trace.id, "row": trace.row}
            values |= {name: trace[name] for name in names}
            # exact when read back; json writes NaN and infinity as Python does
            print(json.dumps(values, default=lambda value: value.tolist()))
        else:
            texts = [_value_text(trace, name) for name in names]
            say(f"trace_id: {trace.id}", f"row: {trace.row}", *texts, sep="\n")
        return 0


def _value_text(trace: Trace, name: str) -> str:
    value = trace[name]
    if isinstance(value, str):
        return f"{name}: {value}"
    if not value.ndim:
        return f"{name}: {value.item()}"
    array = value if isinstance(value, np.ndarray) else value.float().numpy()
    dtype = trace.store.schema.columns[name].dtype
    shape = " x ".join(map(str, array.shape))
    text = np.array2string(array, threshold=24, edgeitems=2, precision=4, separator=", ")
    return f"{name}: {dtype} {shape}\n{indent(text, '    ')}"
