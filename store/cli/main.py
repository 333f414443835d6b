"""`python -m store`: make stores, and look into them from the terminal.

A user's mistake is one line on stderr and exit status 2, never a traceback.
"""

import argparse
import errno
import io
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from store.cli.arguments import as_called, program
from store.cli.parser import build_parser
from store.errors import IncompleteError, LockedError, StoreError, is_no_damage
from store.reports import NOTHING_TO_DO, discard_output, say
from store.traces.layers import attach_layers

__all__ = ["Terminated", "main"]

MODULES = {  # command -> module of this package; there it is called run_COMMAND
    "info": "inspect",
    "get": "inspect",
    "verify": "check",
    "repair": "check",
    "import": "make",
    "merge": "make",
    "subset": "make",
    "derive": "derive",
    "project": "project",
    "label": "label",
    "export": "export",
    "extract": "extract",
    "plan": "plan",
    "launch": "launch",
    "push": "remote",
    "pull": "remote",
    "view": "view",
}
# commands whose argument `store` is a store to make
MAKING = ("extract", "import", "merge", "subset")
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
    """Run one command; return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    typed = sys.argv[1:] if argv is None else list(argv)
    args = build_parser().parse_args(attach_layers(typed))
    args.typed = f"{program('store')} {shlex.join(typed)}"
    try:
        _check_finished(args)
        makes = args.command in MAKING and not getattr(args, "inspect", False)
        is_there = makes and args.store.exists()
        module = import_module(f"store.cli.{MODULES[args.command]}")
        status = getattr(module, f"run_{args.command}")(args)
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


def _failed_status(args: argparse.Namespace, error: Exception) -> int:
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


def _complain(args: argparse.Namespace, text: str, error: BaseException) -> None:
    """Print one line: what is wrong, and the error's notes on a build that it stopped."""
    line = as_called("; ".join([text, *getattr(error, "__notes__", ())]))
    say(f"{program('store')} {args.command}: {line}", file=sys.stderr)


def _check_finished(args: argparse.Namespace) -> None:
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
