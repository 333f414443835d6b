"""The command `python -m train predict`: scores of new traces by a finished run's detectors."""

import argparse
import sys
from collections.abc import Sequence

from store.cli.arguments import path, program
from store.reports import count, say
from train.config import Parser, add_scoring_options, reading_of
from train.errors import ConfigError, store_errors
from train.files import check_output

__all__ = ["build_parser", "main"]

EXAMPLES = """examples:
  python -m train predict --run runs/traces --store new.zarr > scores.csv
  python -m train predict --run runs/traces --store new.zarr --models lstm_solo,lapeigvals
  python -m train predict --run runs/traces --store squad.zarr nq.zarr --output scores.csv
  python -m train predict --run runs/traces --store new.zarr --to-store
      as columns score_lstm_solo, ... of new.zarr
  python -m train predict --run runs/traces --store new.zarr --tokens --to-store
      and the scores of each token as score_token_lstm_solo, ..., to colour texts with

A score is a probability of hallucination, the mean over the run's seeds; of a run with --splits it
is that of the first split (DIR/split-SEED is the run of another one). The column `split` says in
which split of the run the question of a trace is, by its id or text; it is empty for a new one.
Scores of `train` and `val` say nothing about new questions; they are counted. A score of a token
(--tokens) is larger where a hallucination is likelier; its scale is the method's own, such as
log-odds. Without --to-store each line is then a JSON object.
"""


def build_parser() -> argparse.ArgumentParser:
    text = "Score the traces of a store with the detectors of a finished run."
    parser = Parser("predict", description=text, epilog=EXAMPLES)
    add = parser.add_argument
    add("--run", type=path, required=True, metavar="DIR", help="output directory of the run")
    text = "store of the traces, or several, which are read as one; labels are not needed"
    add("--store", type=path, nargs="+", required=True, metavar="STORE", help=text)
    where = parser.add_mutually_exclusive_group()
    text = "write to FILE (default: to the terminal)"
    where.add_argument("--output", type=path, metavar="FILE", help=text)
    text = "write a column score_NAME for each name, or replace it"
    where.add_argument("--to-store", action="store_true", help=text)
    text = (
        "score each token as well, by the methods that can: with --to-store as columns "
        "score_token_NAME, else as JSON lines instead of CSV"
    )
    add("--tokens", action="store_true", help=text)
    add_scoring_options(parser, "its detectors and probes", "score")
    return parser


def main(argv: Sequence[str]) -> None:
    """Read the run, score the store and write; mistakes of the user are TrainErrors."""
    options = build_parser().parse_args(argv)
    check_output(options.output)
    if options.to_store and len(options.store) > 1:
        raise ConfigError("--to-store: expected one --store with it, found several")
    from train.commands.predictions import (
        names_with_tokens,
        open_output,
        score_tokens,
        write_csv,
        write_json_lines,
        write_to_store,
    )
    from train.data.questions import read_questions
    from train.library.guard import load_run
    from train.run.results import is_trained, read_asked

    guard = load_run(options.run, options.models, **reading_of(options)._asdict())
    asked_by_run = read_asked(options.run)
    names = guard.names
    with store_errors():
        scorer = guard.read(options.store, force=options.force)
        data = scorer.data
        of_tokens = names_with_tokens(names, data) if options.tokens else []
        asked = read_questions(data.store, guard.config)
        splits = asked_by_run.find_splits(asked)
        scores = scorer.scores(names)
        tokens = score_tokens(scorer, of_tokens)
        if options.to_store:
            say(write_to_store(data.store, scores, tokens))
        else:
            with open_output(options.output) as file:
                if options.tokens:
                    write_json_lines(file, data.store, scores, tokens, splits)
                else:
                    write_csv(file, data.store, scores, splits)
    if options.output is not None:
        say(f"{options.output}: scores of {count(len(data.store), 'trace')}: {', '.join(names)}")
    without = [name for name in names if options.tokens and name not in of_tokens]
    if without:
        say(f"no scores of tokens: {', '.join(without)}", file=sys.stderr)
    known = is_trained(splits)
    remarks = [*scorer.remarks, *asked.remarks(), *asked_by_run.remarks_on_texts(asked)]
    for text in remarks:
        say(f"{program('train')} predict: {text}", file=sys.stderr)
    n_trained = int(known.sum())
    if n_trained:
        say(
            f"{count(n_trained, 'trace is', 'traces are')} of questions that the run was trained "
            "or tuned on (train and val in the column split): their scores say nothing "
            "about new ones",
            file=sys.stderr,
        )
