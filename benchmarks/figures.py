"""Figures of committed tables, as the README and the documents quote them; opens no file.

A document names where each of its figures comes from, in one of two ways:

- a link whose title is the row and the column, `[0.93](results/write.csv "ours: x_plain_file")`;
  with ` over ROW` behind the column, the figure is the quotient of two rows. What stands in the
  brackets says how it is rounded: as many decimals as there are, and times 100 before a percent
  sign;
- a row `| table | row | column | value |` of a table of citations.

A row is named by some of its cells, with ` / ` between them; a version at the end of a cell may be
left out.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.tables import Table

__all__ = ["Figure", "FigureError", "NotMeasuredError", "with_figures"]

LINK = re.compile(r'\[([^\]\[]+)\]\(([^)\s]*\bresults/(\w+)\.csv) "([^"]+)"\)')
CITATION = re.compile(r"^\| (\w+) \| (.+?) \| (\S+) \| ([\d.]+) \|$", re.MULTILINE)
VERSION = re.compile(r" \d[\w.]*$")
UNKNOWN = "–"  # stands for a figure that was never measured

Tables: TypeAlias = Mapping[str, Table]
Tell: TypeAlias = Callable[[str], None]


class FigureError(LookupError):
    """No row or more than one, or no column, is what a document names."""


class NotMeasuredError(FigureError):
    """The table is not there, or of a version of its benchmark that measured less."""


@dataclass(frozen=True)
class Figure:
    """A cell of a table of results, or the quotient of a column's cells in two rows."""

    table: str
    row: str
    column: str
    over: str = ""

    @classmethod
    def named(cls, table: str, title: str) -> "Figure":
        """The figure that is named as in a document: `ROW: COLUMN`, or `ROW: COLUMN over ROW`."""
        row, _, column = title.rpartition(": ")
        column, _, over = column.partition(" over ")
        return cls(table, row, column, over)

    def value(self, tables: Tables) -> float:
        """Look it up; raises FigureError."""
        value = float(cell(tables, self.table, self.row, self.column))
        if self.over:
            value /= float(cell(tables, self.table, self.over, self.column))
        return value


def cell(tables: Tables, name: str, row: str, column: str) -> str:
    """The cell of the one row that has these cells; raises FigureError."""
    table = tables.get(name)
    if table is None:
        raise NotMeasuredError(f"{name}.csv: not there; run python -m benchmarks.{name} --save")
    found = rows_named(table, row)
    if len(found) == 1 and found[0].get(column):
        return found[0][column]
    missing = f"{len(found)} rows {row!r}" if len(found) != 1 else f"no figure in {column!r}"
    # tables of earlier versions do not say what their main figures are
    error = FigureError if table.main else NotMeasuredError
    raise error(f"{name}.csv: expected one row {row!r} with {column!r}, found {missing}")


def rows_named(table: Table, row: str) -> list[dict[str, str]]:
    """The rows that have all these cells, of those that name a row where the table says which."""
    wanted = set(row.split(" / "))
    names = [(cells, naming(table, cells)) for cells in table.rows]
    exact = [cells for cells, texts in names if wanted <= texts]
    if exact:
        return exact
    return [cells for cells, texts in names if wanted <= {VERSION.sub("", text) for text in texts}]


def naming(table: Table, cells: dict[str, str]) -> set[str]:
    """The cells that name a row; all of it in a table of an earlier version."""
    return {cells[key] for key in table.named_by or cells}


def rounded_as(value: float, shown: str) -> str:
    """With the decimals, and the percent sign, of what is shown; a figure that was never measured
    gets two decimals about 1 and below, one below 10, and none above."""
    if shown == UNKNOWN:
        return f"{value:.{2 if value < 1.1 else 1 if value < 9.95 else 0}f}"
    percent = "%" if shown.endswith("%") else ""
    n_decimals = len(shown.removesuffix("%").partition(".")[2])
    return f"{value * (100 if percent else 1):,.{n_decimals}f}{percent}"


def with_figures(text: str, tables: Tables, tell: Tell) -> str:
    """A document's text with all that it quotes as it is in the tables.

    What was not measured is told, and stays as it is; raises FigureError.
    """

    def linked(match: re.Match[str]) -> str:
        shown, path, table, title = match.groups()
        try:
            shown = rounded_as(Figure.named(table, title).value(tables), shown)
        except NotMeasuredError as error:
            tell(str(error))
        return f'[{shown}]({path} "{title}")'

    def cited(match: re.Match[str]) -> str:
        table, row, column, value = match.groups()
        try:
            value = cell(tables, table, row, column)
        except NotMeasuredError as error:
            tell(str(error))
        return f"| {table} | {row} | {column} | {value} |"

    return CITATION.sub(cited, LINK.sub(linked, text))
