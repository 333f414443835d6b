"""Write the figures of the README and the documents, from the committed tables.

A document names where each of its figures comes from, in one of two ways:

- a link whose title is the row and the column, `[0.93](results/write.csv "ours: x_plain_file")`;
  with ` over ROW` behind the column, the figure is the quotient of two rows. What stands in the
  brackets says how it is rounded: as many decimals as there are, and times 100 before a percent
  sign;
- a row `| table | row | column | value |` of a table of citations.

A row is named by some of its cells, with ` / ` between them; a version at the end of a cell may be
left out. A test says when a figure and its table differ.

    python -m benchmarks.figures
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.harness import RESULTS
from benchmarks.tables import Table, read_table

__all__ = ["CITATION", "FigureError", "cell", "documents", "read_tables", "with_figures"]

ROOT = Path(__file__).parent.parent
LINK = re.compile(r'\[([^\]\[]+)\]\(([^)\s]*\bresults/(\w+)\.csv) "([^"]+)"\)')
CITATION = re.compile(r"^\| (\w+) \| (.+?) \| (\S+) \| ([\d.]+) \|$", re.MULTILINE)
VERSION = re.compile(r" \d[\w.]*$")

Tables = Mapping[str, Table]


class FigureError(LookupError):
    """No table, no row or more than one, or no column, is what a document names."""


def documents() -> Iterator[tuple[Path, str]]:
    """The README and the documents, and their texts as they should be; raises FigureError."""
    tables = read_tables()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        yield path, with_figures(path.read_text(), tables)


def read_tables() -> Tables:
    """The committed tables."""
    return {path.stem: read_table(path) for path in RESULTS.glob("*.csv")}


def with_figures(text: str, tables: Tables) -> str:
    """A document's text with all that it quotes as it is in the tables; raises FigureError."""

    def linked(match: re.Match[str]) -> str:
        shown, path, table, title = match.groups()
        row, _, column = title.rpartition(": ")
        column, _, over = column.partition(" over ")
        value = float(cell(tables, table, row, column))
        if over:
            value /= float(cell(tables, table, over, column))
        return f'[{rounded_as(value, shown)}]({path} "{title}")'

    def cited(match: re.Match[str]) -> str:
        table, row, column, _ = match.groups()
        return f"| {table} | {row} | {column} | {cell(tables, table, row, column)} |"

    return CITATION.sub(cited, LINK.sub(linked, text))


def cell(tables: Tables, name: str, row: str, column: str) -> str:
    """The cell of the one row that has these cells; raises FigureError."""
    found = rows_named(tables[name], row) if name in tables else []
    if len(found) != 1 or not found[0].get(column):
        raise FigureError(
            f"{name}.csv: expected one row {row!r} with {column!r}, found {len(found)} such rows"
        )
    return found[0][column]


def rows_named(table: Table, row: str) -> list[dict[str, str]]:
    """The rows that these cells name, without versions where none is named exactly."""
    wanted = set(row.split(" / "))
    names = [(cells, {cells[key] for key in table.named_by}) for cells in table.rows]
    exact = [cells for cells, texts in names if wanted <= texts]
    if exact:
        return exact
    return [cells for cells, texts in names if wanted <= {VERSION.sub("", text) for text in texts}]


def rounded_as(value: float, shown: str) -> str:
    """With the decimals, and the percent sign, of what is shown."""
    percent = "%" if shown.endswith("%") else ""
    n_decimals = len(shown.removesuffix("%").partition(".")[2])
    return f"{value * (100 if percent else 1):,.{n_decimals}f}{percent}"


if __name__ == "__main__":
    for path, text in documents():
        path.write_text(text)
