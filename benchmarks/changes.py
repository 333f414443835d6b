"""What changed between two tables of one benchmark, as rows to print; reads and writes no file."""

from benchmarks.tables import Table

__all__ = ["NOTABLE", "changes"]

NOTABLE = 0.05  # relative change of a figure from which it is told

Rows = dict[tuple[str, ...], dict[str, str]]  # what names a row -> its cells


def changes(name: str, before: Table, now: Table, notable: float = NOTABLE) -> list[dict]:
    """Compare the main figures of each row in two tables of the benchmark `name`.

    What the later one says are its main figures and names of rows, is taken for both. There is a
    row for each figure that changed by more than `notable` of the earlier one, that is new, or that
    is gone: `benchmark`, `row`, `figure`, `before`, `now`, `change`.
    """
    old = named(before, now.named_by)
    new = named(now, now.named_by)
    found = []
    for key in dict.fromkeys([*old, *new]):
        was = old.get(key, {})
        is_now = new.get(key, {})
        row = {"benchmark": name, "row": ", ".join(filter(None, key))}
        for figure in now.main:
            cells = {"before": was.get(figure, ""), "now": is_now.get(figure, "")}
            change = describe(cells["before"], cells["now"], notable)
            if change:
                found.append({**row, "figure": figure, **cells, "change": change})
    return found


def named(table: Table, named_by: list[str]) -> Rows:
    """The rows, by the cells that name them."""
    return {tuple(row.get(key, "") for key in named_by): row for row in table.rows}


def describe(before: str, now: str, notable: float) -> str:
    """How far a figure is from the one before, in percent, or why there is no such number; empty
    where it is not notable."""
    if before == now:
        return ""
    if not before or not now:
        return "gone" if before else "new"
    if float(before) == 0:
        return "from 0"
    change = float(now) / float(before) - 1
    return f"{change:+.1%}" if abs(change) > notable else ""
