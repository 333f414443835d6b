"""The option `--scores` of `label` and `import`, and the options on how to read its file."""

from collections.abc import Iterable

from store.cli.command import Command
from store.labels.score_file import read_scores
from store.labels.score_table import ScoreTable

__all__ = ["COLUMN_OPTIONS", "read_given_scores", "understood_lines"]

COLUMN_OPTIONS = ("score_column", "label_column", "higher_is_better", "lower_is_better")


def read_given_scores(args: Command) -> ScoreTable | None:
    """Read the file of `--scores` as `read_scores` does; None if there is none.

    Raises SchemaError for options on how to read a file that is not given.
    """
    if args.scores is not None:
        return read_scores(
            args.scores,
            score_column=args.score_column,
            label_column=args.label_column,
            lower_is_better=args.lower_is_better or (False if args.higher_is_better else None),
        )
    args.refuse("says how a file of scores is read: give it with --scores", *COLUMN_OPTIONS)
    return None


def understood_lines(table: ScoreTable, examples: Iterable[str], threshold: float) -> list[str]:
    """How a file of scores was read, with some of its values; one line each."""
    return [
        f"{table.source}: {table.understood(threshold)}",
        *(f"  {example}" for example in examples),
    ]
