"""Arguments of `python -m store plan`."""

from store.cli.arguments import Commands, path, positive
from store.cli.parsers.extract import add_extract_options

__all__ = ["EXAMPLES", "add_plan"]

EXAMPLES = """\
an extraction: give the options that python -m store extract will get. Nothing is written, and no
weights are needed: the model's configuration and its tokenizer are read, from a directory, a
config.json, or the cache of Hugging Face. Nothing is downloaded. Bytes are those of the files, to
1% where lengths are known: where answers are given, or as long as in a sample (--sample). Without
either, every answer counts as --max-new-tokens, so that all numbers are upper bounds.

  --sample N asks the model N questions, spread over FILE, and writes nothing: it tells the time of
  a question on this machine, and how long answers are.
  --workers N are so many parts (extract --part K/N) at once, each with a device of its own.

a training (--train): PATH is a store. --columns are those that are read, --batch-size the traces in
a batch of all processes together (default: 32), --workers the processes on this machine. For up to
3 seconds the store is read at random places, as fast as the disk gives it, past what is in memory.

Exit status 0: the disk of PATH has room; 1: it has not; 2: a mistake.

examples:
  python -m store plan traces.zarr --model meta-llama/Llama-2-7b-chat-hf \\
      --questions triviaqa.jsonl --chat-template --workers 8
  python -m store plan traces.zarr --model ./model/config.json --questions nq.jsonl \\
      --columns hs_last,label
  python -m store plan traces.zarr --model ./model --questions nq.jsonl --sample 8 --json
  python -m store plan traces.zarr --train --columns hidden_states,label
"""


def add_plan(commands: Commands) -> None:
    parser = commands.add_parser(
        "plan",
        help="what an extraction or a training will need: bytes, files, memory, time",
        description="Say what an extraction will need before it runs, or how to read a store in "
        "a training.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "store_path",
        metavar="PATH",
        type=path,
        help="the store to make; with --train the store to read",
    )
    parser.add_argument(
        "--train", action="store_true", help="plan a training (default: an extraction)"
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=positive,
        default=1,
        help="parts that are extracted at the same time, or processes that train "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--sample",
        metavar="N",
        type=positive,
        help="ask the model N questions and measure (default: none, and the time is not known)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_extract_options(parser, required=False)
    # which options were given has to be seen: a training has another default
    parser.set_defaults(batch_size=None)
