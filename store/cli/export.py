"""`python -m store export`: a table of a store's texts and numbers."""

from collections.abc import Sequence
from pathlib import Path

from store.cli import shared_options
from store.cli.arguments import names, path
from store.cli.command import Command, flag, option
from store.cli.progress import Progress
from store.read.store import TraceStore
from store.reports import say

__all__ = ["Export"]

EXAMPLES = """\
trace_id is always written, and question_id if the store has it. Columns of one number or one text
in each row can be exported; arrays (hidden states, attention) cannot. A missing score (NaN) is an
empty cell in CSV and null in JSON lines. references is a JSON list: as text in CSV and Parquet, as
a list in JSON lines. FILE is written whole or not at all. Parquet needs pyarrow.

To have the answers judged: export them, add a column "score" (higher is better) or "label"
(1 = hallucination) to the file, and give it to python -m store label. By its trace_id each sample
of a question is scored by itself.

examples:
  python -m store export traces.zarr --columns question,answer,references --to answers.csv
  python -m store export traces.zarr --columns answer,score --ids ids.txt --to few.jsonl
  python -m store export traces.zarr --where "label == 1" --to wrong.csv
  python -m store label traces.zarr --scores answers_judged.csv
"""


class Export(Command):
    """Write columns of a store to a table, one line for each trace."""

    epilog = EXAMPLES
    store: Path = shared_options.STORE
    columns: list[str] | None = option(
        "columns to write, separated by commas, e.g. question,answer,references (default: all "
        "that can be exported)",
        "NAMES",
        names,
    )
    to: Path = option(
        "the file to write; its ending chooses the format: .csv, .jsonl or .parquet",
        "FILE",
        path,
        required=True,
    )
    ids: Path | None = option(
        "trace ids to write, one a line, in the order wanted (default: all)", "FILE", path
    )
    where: str | None = shared_options.where("traces to write (default: all; with --ids, of those)")
    overwrite: bool = flag("replace FILE if it exists (default: refuse)")
    escape_formulas: bool = flag(
        "put ' before texts in a CSV that a spreadsheet would run as a formula, those that begin "
        "with = + - @, a tab or a carriage return (default: texts as they are)"
    )

    def run(self) -> int:
        from store.transform.export import export_table
        from store.transform.subset import read_ids, rows_of_ids, rows_where

        store = TraceStore.open(self.store, check=True)
        rows: Sequence[int] = range(len(store))
        if self.ids is not None:
            rows = rows_of_ids(store, read_ids(self.ids))
        if self.where is not None:
            rows = rows_where(store, rows, self.where)
        with Progress.of_rows(len(rows)) as progress:
            columns = export_table(
                store,
                self.to,
                self.columns,
                rows,
                overwrite=self.overwrite,
                escape_formulas=self.escape_formulas,
                progress=progress,
            )
        say(f"{self.to}: {len(rows):,} traces, columns {', '.join(columns)}")
        return 0
