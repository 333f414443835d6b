"""The option `--scores` of `label` and `import`, and the options on how to read its file."""

import argparse
from collections.abc import Iterable

from store.errors import SchemaError
from store.labels.score_file import read_scores
from store.labels.score_table import ScoreTable

__all__ = ["column_options", "read_given_scores", "understood_lines"]


def read_given_scores(args: argparse.Namespace) -> ScoreTable | None:
    """Read the file of `--scores` as `read_scores` does; None if there is none.

    Raises SchemaError for options on how to read a file that is not given.
    """
    if args.scores is not None:
        return read_scores(
            args.scores,
            score_column=args.score_column,
            label_column=args.label_column,
            lower_is_better=args.lower_is_better,
        )
    given = column_options(args)
    if given:
        raise SchemaError(f"{given[0]} says how a file of scores is read: give it with --scores")
    return None


def column_options(args: argparse.Namespace) -> list[str]:
    """The options on how a file of scores is read that were given."""
    direction = "--lower-is-better" if args.lower_is_better else "--higher-is-better"
    values = {
        "--score-column": args.score_column,
        "--label-column": args.label_column,
        direction: args.lower_is_better,
    }
    return [option for option, value in values.items() if value is not None]


def understood_lines(table: ScoreTable, examples: Iterable[str], threshold: float) -> list[str]:
    """How a file of scores was read, with some of its values; one line each."""
    return [
        f"{table.source}: {table.understood(threshold)}",
        *(f"  {example}" for example in examples),
    ]
