"""What is printed on the terminal: texts, and tables in columns."""

import os
from typing import NoReturn

from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from store.reports import terminal_text
from train.evaluate.results import Results
from train.report.render import Table, in_words
from train.report.tables import (
    GUARANTEE,
    build_grouped,
    build_label_noise,
    build_metrics,
    build_tokens,
    build_transfer,
)

__all__ = ["OutputConsole", "print_line", "print_results", "print_table"]


class OutputConsole(Console):
    """Standard output; a pipe closed early, e.g. by `| head`, raises BrokenPipeError.

    Where there is no terminal a line has 100 columns, as the widest table has.
    """

    def __init__(self) -> None:
        super().__init__()
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = 100

    def on_broken_pipe(self) -> NoReturn:
        """Raise, instead of ending the process with status 1 as rich does."""
        raise BrokenPipeError


def print_line(console: Console, text: str, *, wraps: bool = True) -> None:
    """Print a text as it is: no part of it is markup."""
    console.print(terminal_text(text), highlight=False, markup=False, soft_wrap=not wraps)


def print_results(results: Results, console: Console, *, has_remarks: bool = False) -> None:
    """Print test metrics, a line per detector and baseline, and the verdict, in 100 columns.

    Remarks are left out where the screen has them already.
    """
    shown = results.shown
    print_table(build_metrics(results), console, in_words("measured_on", results))
    notes = [in_words(what, results) for what in ("tuned", "columns", "imputed")]
    for note in filter(None, [*notes, in_words("explained", shown)]):
        print_line(console, note)
    if results.transfer:
        console.print()
        rivals = [results.best_among(results.baselines)] if results.baselines else []
        table = build_transfer(results, [*results.models, *rivals])
        print_table(table, console, "AUROC on values left out of training")
        print_line(console, in_words("transfer"))
    of_tokens = build_tokens(results)
    if of_tokens is not None:
        console.print()
        print_table(of_tokens, console, in_words("tokens", results))
    if results.config.get("risk") is not None:
        print_line(console, in_words("risk", results))
        print_table(build_grouped(results, GUARANTEE), console, "")
    of_noise = build_label_noise(results)
    if of_noise is not None:
        print_line(console, in_words("label_noise", results))
        print_table(of_noise, console, "")
    for remark in () if has_remarks else shown.remarks:
        print_line(console, remark, wraps=False)
    for note in filter(
        None, [in_words(what, shown) for what in ("verdict", "detectable", "on_top")]
    ):
        console.print()
        print_line(console, note)


def print_table(table: Table, console: Console, title: str) -> None:
    """Print a table without lines, with an empty row between groups of rows and at the end.

    What is too wide has headers of numbers on several lines; if it still is, words are folded,
    never numbers.
    """
    heading = Text(title) if title else None
    terminal = TerminalTable(title=heading, box=None, padding=(0, 1, 0, 0), pad_edge=False)
    columns = list(zip(table.header, *table.rows, strict=True))
    is_wide = sum(max(map(len, cells)) + 1 for cells in columns) - 1 > console.width
    for i, (header, *cells) in enumerate(columns):
        if i < table.n_left:
            terminal.add_column(Text(header), overflow="fold")
        else:
            lines = header.split() if is_wide else [header]
            header = "\n".join(lines)
            width = max(map(len, [*lines, *cells]))
            terminal.add_column(Text(header), justify="right", no_wrap=True, min_width=width)
    for i, row in enumerate(table.rows):
        if i in table.groups and i:
            terminal.add_row()
        if table.groups.get(i):
            terminal.add_row(Text(table.groups[i], style="italic"))
        styles = ["bold" if (i, j) in table.best else "" for j in range(len(row))]
        # rich would take a string for markup
        terminal.add_row(*(Text(*cell) for cell in zip(row, styles, strict=True)))
    terminal.add_row()
    console.print(terminal)
