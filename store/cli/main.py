"""`python -m store`: make stores, and look into them from the terminal.

A user's mistake is one line on stderr and exit status 2, never a traceback.
"""

import argparse
import io
import json
import math
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from store.cli.arguments import names, path
from store.cli.make import add_commands
from store.cli.progress import Progress
from store.errors import IncompleteError, StoreError
from store.extras import version_text
from store.format.layers import attach_layers
from store.format.schema import Column
from store.read.store import TraceStore
from store.read.trace import Trace
from store.reports import count
from store.write.build import command_line, is_partial, unfinished

__all__ = ["Terminated", "main"]

MAKING = ("extract", "import", "merge", "subset")  # the commands whose first argument is a store to make

EXAMPLES = """examples:
  python -m store import traces.zarr old_traces/ --scores ground_truth_scores.csv
  python -m store extract traces.zarr --model NAME_OR_PATH --questions questions.jsonl
  python -m store info data/example.zarr
  python -m store get data/example.zarr TRACE_ID --columns question,answer,label
  python -m store get data/example.zarr TRACE_ID --json | python -m json.tool
  python -m store label traces.zarr --scores judged.csv --dry-run
  python -m store export traces.zarr --columns question,answer --to answers.csv
  python -m store verify traces.zarr
"""

VERIFY_EXAMPLES = """Every file, table, offset, id and chunk is compared with what was committed; problems that differ
in numbers only are one line. Files that an interrupted write left are counted, and are no problem: nothing of them was
committed. It may run beside readers and a writer. Exit status 0: whole; 1: problems.

examples:
  python -m store verify traces.zarr
  python -m store verify traces.zarr --verbose
  python -m store verify traces.zarr --quick
  python -m store verify traces.zarr --json | python -m json.tool
"""

REPAIR_EXAMPLES = """Clears what a crash left, and writes damaged metadata and a damaged id table again. Traces with
damaged bytes are dropped: the others are copied into a new store (which needs the space), and that takes the place of
STORE; STORE.dropped.txt lists the rows and ids of the dropped ones, and the old store stays as STORE.damaged until you
remove it.

examples:
  python -m store repair traces.zarr          # what would be done
  python -m store repair traces.zarr --yes
  python -m store repair traces.zarr --drop-columns label,score --yes     # then: python -m store label
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may be anything
    typed = sys.argv[1:] if argv is None else list(argv)
    args = _parser().parse_args(attach_layers(typed))
    args.typed = shlex.join(["python", "-m", "store", *typed])
    try:
        _check_finished(args)
        status = args.run(args)
        print(end="", flush=True)
    except StoreError as error:
        _complain(args, str(error), error)
        return 2
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered has nowhere to go
        if isinstance(error, BrokenPipeError):  # the reader of our output has left, e.g. `| head`
            return 0
        where = f"{error.filename}: " if error.filename else ""
        _complain(args, f"{where}expected to read and write, found: {error}", error)
        return 2
    except KeyboardInterrupt as error:
        _complain(args, "stopped", error)
        return 128 + (error.args[0] if isinstance(error, Terminated) else signal.SIGINT)
    return status


class Terminated(KeyboardInterrupt):
    """The process was asked to end, by the signal of that number: a job's time is up, or its node goes down."""


def _complain(args: argparse.Namespace, text: str, error: BaseException) -> None:
    """One line on stderr: what is wrong, and what the error's notes say of a build that it stopped."""
    line = "; ".join([text, *getattr(error, "__notes__", ())])
    print(f"python -m store {args.command}: {line}", file=sys.stderr)


def _check_finished(args: argparse.Namespace) -> None:
    """Raise IncompleteError where a store is to be read that a build has not finished."""
    read = [getattr(args, "source", None), *getattr(args, "sources", ())]
    if args.command not in MAKING:
        read.append(getattr(args, "store", None))
    for place in read:
        found = unfinished(place) if isinstance(place, Path) else None
        if found:
            raise IncompleteError(found)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of argparse's usage and message."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        "python -m store",
        description="Make trace stores and look into them.",
        epilog=EXAMPLES,
        formatter_class=raw,
    )
    parser.add_argument("--version", action="version", version=version_text())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    info = commands.add_parser("info", help="columns, shapes, rows, bytes on disk, codecs, provenance")
    info.add_argument("store", metavar="STORE", type=path)
    info.add_argument("--json", action="store_true", help="one JSON object")
    info.set_defaults(run=run_info)

    get = commands.add_parser("get", help="print one trace")
    get.add_argument("store", metavar="STORE", type=path)
    get.add_argument("trace_id", metavar="TRACE_ID")
    get.add_argument("--columns", type=names, help="only these, e.g. question,answer")
    get.add_argument("--json", action="store_true", help="one JSON object, every value in full (may be large)")
    get.set_defaults(run=run_get)
    _add_health(commands)
    add_commands(commands)
    return parser


def _add_health(commands: argparse._SubParsersAction) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    verify = commands.add_parser("verify", help="is it whole?", epilog=VERIFY_EXAMPLES, formatter_class=raw)
    verify.add_argument("store", metavar="STORE", type=path)
    verify.add_argument("--quick", action="store_true", help="all but the bytes of the chunks and the ids in the index")
    verify.add_argument("--verbose", action="store_true", help="a line for each problem and each file left over")
    verify.add_argument("--json", action="store_true", help="one JSON object")
    verify.set_defaults(run=run_verify)

    repair = commands.add_parser("repair", help="make it whole", epilog=REPAIR_EXAMPLES, formatter_class=raw)
    repair.add_argument("store", metavar="STORE", type=path)
    repair.add_argument(
        "--drop-columns", type=names, default=[], help="drop these in place of the traces that they are damaged in"
    )
    repair.add_argument("--yes", action="store_true", help="do it; else only tell what would be done")
    repair.set_defaults(run=run_repair)


def run_verify(args: argparse.Namespace) -> int:
    """Verify; 1 if something is wrong."""
    from store.check.verify import verify_store

    with Progress(_share, _gigabytes) as progress:
        report = verify_store(args.store, quick=args.quick, progress=lambda *done: progress(done))
    if args.json:
        print(json.dumps({"store": str(args.store)} | report.to_json(), indent=1))
        return int(bool(report.problems))
    checked = "quick: chunks were not read" if args.quick else f"{report.bytes / 1e9:.2f} GB checked"
    writer = "; a writer is at work, what it has not committed was not judged" if report.writer else ""
    print(f"{args.store}: {report.headline()} ({report.rows:,} traces, {checked}{writer})")
    for line in report.all_lines() if args.verbose else report.lines():
        print(line)
    return int(bool(report.problems))


def run_repair(args: argparse.Namespace) -> int:
    """Repair, or tell what that would do; 1 if there is something to do."""
    from store.check.repair import plan_repair, repair_store

    with Progress(_share, _gigabytes) as progress:
        plan = plan_repair(args.store, lambda *done: progress(done), args.drop_columns)
    print("\n".join([f"{args.store}: {plan.headline()}", *plan.lines(args.store)]))
    if not args.yes:
        return int(plan.has_work)
    with Progress(lambda done: done / max(1, plan.report.rows)) as progress:
        store = repair_store(args.store, plan, progress)
    print(f"{args.store}: repaired, {len(store):,} traces")
    return 0


def _share(done: tuple[int, int]) -> float:
    return done[0] / max(1, done[1])


def _gigabytes(done: tuple[int, int]) -> str:
    return f"{done[0] / 1e9:.1f} of {done[1] / 1e9:.1f} GB"


def run_info(args: argparse.Namespace) -> int:
    """Print what a store holds."""
    store = TraceStore.open(args.store)
    print(json.dumps(describe(store), indent=1) if args.json else _info_text(describe(store)))
    return 0


def describe(store: TraceStore) -> dict:
    """What `info` shows, as JSON."""
    columns = {name: _describe_column(store, name, column) for name, column in store.schema.stored.items()}
    unfinished = {"unfinished": command_line(store)} if is_partial(store.path) else {}
    return unfinished | {
        "path": str(store.path),
        "rows": len(store),
        "bytes": _bytes_under(store.path),
        "generation": store.generation,
        "uuid": store.uuid,
        "columns": columns,
        "provenance": store.provenance,
    }


def _describe_column(store: TraceStore, name: str, column: Column) -> dict:
    return {
        "dtype": column.dtype,
        "item_shape": list(column.item_shape),
        "axis": store.schema.axis_of(name),
        "axis_names": list(column.axis_names),
        "items": store.n_items(name),
        "bytes": _bytes_under(store.path / store.schema.layout(name).path),
        "codec": column.codec or "raw",
        "split": list(column.split),
    }


def _bytes_under(path: Path) -> int:
    """Bytes that the files under a directory take on disk."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def _info_text(info: dict) -> str:
    rows = [("column", "dtype", "shape of a row", "items", "on disk", "codec")]
    for name, c in info["columns"].items():
        rows.append((name, c["dtype"], _shape_text(c), f"{c['items']:,}", _size_text(c["bytes"]), c["codec"]))
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    table = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    size = f"{count(info['rows'], 'trace')}, {_size_text(info['bytes'])}, generation {info['generation']}"
    head = f"{info['path']}: {size}"
    if "unfinished" in info:
        head += f"\nunfinished; go on with: {info['unfinished']}"
    provenance = [f"{key}: {_one_line(value)}" for key, value in info["provenance"].items()]
    return "\n".join([head, "", *table, "", "provenance", *(provenance or ["(none)"])])


def _shape_text(column: dict) -> str:
    if column["dtype"] == "utf8":
        return "text"
    item = [f"{n} {name}" for n, name in zip(column["item_shape"], column["axis_names"], strict=False)]
    parts = [column["axis"], *(item or map(str, column["item_shape"]))]
    return " x ".join(filter(None, parts)) or "one number"


def _size_text(n_bytes: int) -> str:
    if n_bytes < 1000:
        return f"{n_bytes} B"
    power = min(int(math.log10(n_bytes)) // 3, 4)
    return f"{n_bytes / 1000**power:.1f} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def _one_line(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value)


def run_get(args: argparse.Namespace) -> int:
    """Print one trace."""
    trace = TraceStore.open(args.store)[args.trace_id]
    names = args.columns or list(trace)
    if args.json:
        values = {name: _json_value(trace[name]) for name in names}
        print(json.dumps({"trace_id": trace.id, "row": trace.row} | values))
    else:
        print("\n".join([f"trace_id: {trace.id}", f"row: {trace.row}", *(_value_text(trace, name) for name in names)]))
    return 0


def _json_value(value: np.ndarray | torch.Tensor | str) -> object:
    """Plain numbers, exact when read back; NaN and infinity as Python's json writes them."""
    return value if isinstance(value, str) else value.tolist()


def _value_text(trace: Trace, name: str) -> str:
    value = trace[name]
    if isinstance(value, str):
        return f"{name}: {value}"
    if not value.ndim:
        return f"{name}: {value.item()}"
    array = value.float().numpy() if isinstance(value, torch.Tensor) else value
    shape = " x ".join(map(str, array.shape))
    text = np.array2string(array, threshold=24, edgeitems=2, precision=4, separator=", ")
    return f"{name}: {trace.store.schema.columns[name].dtype} {shape}\n    " + text.replace("\n", "\n    ")
