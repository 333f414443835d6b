"""`python -m store`: make stores, and look into them from the terminal.

A user's mistake is one line on stderr and exit status 2, never a traceback.
"""

import errno
import io
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from keyword import iskeyword
from pathlib import Path

from store.cli.arguments import Parser, Version, as_called, attach_values, program
from store.cli.command import Command
from store.errors import IncompleteError, LockedError, StoreError, is_no_damage
from store.reports import NOTHING_TO_DO, discard_output, say

__all__ = ["COMMANDS", "Terminated", "find_command", "main", "parse"]

COMMANDS = {
    "info": "columns, shapes, rows, bytes on disk, codecs, provenance",
    "get": "print one trace",
    "view": "look at traces in the browser",
    "verify": "check that a store is whole",
    "repair": "make a damaged store whole",
    "import": "make a store of pickled or preprocessed traces",
    "merge": "make one store of several",
    "subset": "make a store of some traces of another",
    "tokens": "make a store whose rows are the tokens of another, shuffled",
    "derive": "add columns that follow from others",
    "project": "add a column of two coordinates a trace, for a map of states",
    "label": "score and label the traces of a store, or undo that",
    "export": "write texts and numbers of traces to a CSV, JSON lines or Parquet file",
    "extract": "make a store of a model's answers",
    "record": "record traces of a model that vLLM serves",
    "plan": "what an extraction will need: bytes, memory, time",
    "launch": "import or extract in parts, on many processes or machines",
    "push": "copy a store into a bucket, or append to the one that is there",
    "pull": "make a store of one in a bucket",
}
INSTALLED = """\
trace-store is the same program; use it in a folder that has a store.py of its own.

"""
EXAMPLES = """\
examples:
  python -m store import traces.zarr old_traces/ --scores ground_truth_scores.csv
  python -m store extract traces.zarr --model NAME_OR_PATH --questions questions.jsonl
  python -m store plan traces.zarr --model NAME_OR_PATH --questions questions.jsonl --workers 4
  python -m store info data/example.zarr
  python -m store get data/example.zarr TRACE_ID --columns question,answer,label
  python -m store get data/example.zarr TRACE_ID --json | python -m json.tool
  python -m store view data/example.zarr
  python -m store label traces.zarr --scores judged.csv --dry-run
  python -m store export traces.zarr --columns question,answer --to answers.csv
  python -m store verify traces.zarr
"""
# commands whose argument `store` is a store to make
MAKING = ("extract", "import", "merge", "subset", "tokens")
TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
# errors of torch, huggingface_hub and the HTTP library, none of which is imported for that: the
# memory may be another process's, and the Hub not be reached for a while
PASSING = {
    "OutOfMemoryError",
    "LocalEntryNotFoundError",
    "ConnectError",
    "ConnectTimeout",
    "ReadTimeout",
}


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    typed = sys.argv[1:] if argv is None else list(argv)
    args = parse(attach_values(typed))
    args.typed = f"{program('store')} {shlex.join(typed)}"
    try:
        _check_finished(args)
        makes = args.command in MAKING and not getattr(args, "inspect", False)
        is_there = makes and args.store.exists()
        status = args.run()
        if is_there:
            say(NOTHING_TO_DO)
        sys.stdout.flush()
    except StoreError as error:
        _complain(args, str(error), error)
        return _failed_status(args, error)
    except OSError as error:
        discard_output()
        if isinstance(error, BrokenPipeError):  # the reader of our output has left, e.g. `| head`
            return 0
        where = f"{error.filename}: " if error.filename else ""
        advice = "; allow more open files (ulimit -n)" if error.errno == errno.EMFILE else ""
        _complain(args, f"{where}expected to read and write, found: {error}{advice}", error)
        return _failed_status(args, error)
    except (MemoryError, RuntimeError) as error:
        if not is_no_damage(error):
            raise
        _complain(args, f"expected more memory, found no more: {error!r:.200}; free some", error)
        return _failed_status(args, error)
    except KeyboardInterrupt as error:
        _complain(args, "stopped", error)
        return 128 + (error.args[0] if isinstance(error, Terminated) else signal.SIGINT)
    return status


def parse(typed: Sequence[str]) -> Command:
    """Read a command line; raises SystemExit, with one line printed, for a wrong one."""
    name = program("store")
    # who calls it by the installed name knows that name
    epilog = EXAMPLES if name == "trace-store" else INSTALLED + EXAMPLES
    parser = Parser(name, description="Make trace stores and look into them.", epilog=epilog)
    parser.add_argument(
        "--version",
        action=Version,
        nargs=0,
        help="print the version of the program and of the format, and exit",
    )
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    kind = Command
    chosen = next((word for word in typed if word in COMMANDS), None)
    for command, text in COMMANDS.items():
        of_command = parsers.add_parser(command, help=text)
        if command == chosen:  # the others are not imported
            kind = find_command(command)
            kind.describe(of_command)
    return kind(**vars(parser.parse_args(typed)))


def find_command(name: str) -> type[Command]:
    """Import a command of `COMMANDS`: `get` is `store.cli.get.Get`."""
    module = import_module(f"store.cli.{name}{'_' if iskeyword(name) else ''}")
    found: type[Command] = getattr(module, name.capitalize())
    return found


def _failed_status(args: Command, error: Exception) -> int:
    """2; of a part that may well succeed if it is tried again, `TRY_AGAIN`."""
    is_part = getattr(args, "part", (1, 1)) != (1, 1)
    causes = {type(cause).__name__ for cause in _causes(error)}
    is_passing = isinstance(error, OSError | LockedError | MemoryError | RuntimeError)
    may_pass = is_passing or not PASSING.isdisjoint(causes)
    return TRY_AGAIN if is_part and may_pass else 2


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What an error was raised from, and that from."""
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__


class Terminated(KeyboardInterrupt):
    """The process was asked to end by the signal of this number, e.g. as a job's time is up."""


def _complain(args: Command, text: str, error: BaseException) -> None:
    """Print one line: what is wrong, and the error's notes on a build that it stopped."""
    line = as_called("; ".join([text, *getattr(error, "__notes__", ())]))
    say(f"{program('store')} {args.command}: {line}", file=sys.stderr)


def _check_finished(args: Command) -> None:
    """Raise IncompleteError if a store to read is one that a build has not finished."""
    places = [getattr(args, "source", None), *getattr(args, "sources", ())]
    if args.command not in MAKING:
        places.append(getattr(args, "store", None))
    # the sources of an import are texts: files and patterns
    stores = [place for place in places if isinstance(place, Path)]
    if not stores:
        return
    # imports torch, which takes seconds: not where it is not needed, nor before the arguments are
    # known to be good
    from store.write.build import unfinished

    for store in stores:
        message = unfinished(store)
        if message is not None:
            raise IncompleteError(message)
