"""docs/columns.md: `make docs` writes its table, of the columns and who writes and reads them."""

import re
from pathlib import Path

from models import BASELINES, CONTROLS, DETECTORS, PROBES, find
from store.traces.columns import TRACE_COLUMNS
from train.data.requirements import roles_of

DOCUMENT = Path(__file__).parent.parent / "docs" / "columns.md"
TABLE = re.compile(r"(?<=\n\n)\| column \| shape .*?\n(?=\n)", re.DOTALL)
HEADER = """| column | shape | dtype | what it is | written by | read by |
|---|---|---|---|---|---|
| `trace_id` | () | utf8 | id of the row, unique in the store | all | - |
"""


def readers():
    """Column -> names of the detectors, probes, baselines and controls that read it."""
    found = {}
    for name in [*DETECTORS, *PROBES, *BASELINES, *CONTROLS]:
        for column in dict.fromkeys(roles_of(find(name))):
            found.setdefault(column, []).append(name)
    return found


def render():
    """Return the text of the document, with the table as it is now."""
    names = readers()
    rows = []
    for name, column in TRACE_COLUMNS.items():
        read_by = ", ".join(f"`{one}`" for one in names.get(name, [])) or "-"
        shape = column.shape.replace("*", r"\*")
        made_by = ", ".join(column.made_by)
        cells = (f"`{name}`", shape, column.dtype, column.doc, made_by, read_by)
        rows.append(f"| {' | '.join(cells)} |\n")
    return TABLE.sub(lambda _: HEADER + "".join(rows), DOCUMENT.read_text(), count=1)


if __name__ == "__main__":
    DOCUMENT.write_text(render())
    print(f"written: {DOCUMENT}")
