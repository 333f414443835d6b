"""Parts of a store on the command line: the records that they publish, and what is merged."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from store.errors import NotFoundError, SchemaError
from store.launch.completed_parts import (
    Record,
    find_parts,
    numbers_text,
    publish,
    read_record,
    record_path,
)
from store.launch.job import arguments_digest, file_digest
from store.launch.task import last_lines
from store.read.store import TraceStore
from store.reports import count, say

__all__ = [
    "PresentInputs",
    "left_out_lines",
    "part_warnings",
    "parts_to_merge",
    "present_inputs",
    "publish_part",
]

_NUMBER = re.compile(r"\d[\d.,]*")


class PresentInputs(NamedTuple):
    """What an import or an extraction would read now.

    Attributes
    ----------
    digest
        As the record of a part has it.
    n
        How many files or questions; of more parts, some would have nothing to read.
    noun
        "files" or "questions".
    """

    digest: str
    n: int
    noun: str


def present_inputs(args: argparse.Namespace) -> PresentInputs:
    """Digest and count what an import or an extraction would read now.

    Raises
    ------
    StoreError
        A source names nothing, or the file of questions is none.
    """
    if args.command == "extract":
        from store.cli.questions import read_all_asked

        n_questions = len(read_all_asked(args).questions)
        return PresentInputs(file_digest(args.questions), n_questions, "questions")
    from store.cli.arrays import find_arrays
    from store.importers.files import digest_given, find_older

    if not args.sources:
        raise SchemaError("expected files to import after OUT, found none")
    given = find_arrays(args)
    if given is None:
        given = find_older(args.sources)
    return PresentInputs(digest_given(given), len(given), "files")


def publish_part(args: argparse.Namespace, store: TraceStore, n_left_out: int) -> None:
    """Publish the completion record of a part that was made; nothing for a whole store.

    Parameters
    ----------
    args
        Of the import or the extraction.
    store
        What it made.
    n_left_out
        Files and records that it could not use.
    """
    part, n_parts = args.part
    if n_parts == 1:
        return
    if args.command == "extract":
        inputs = file_digest(args.questions)
    else:  # their names, sizes and times, those of the other parts included
        inputs = str(store.provenance["files_sha256"])
    record = Record(
        command=args.command,
        arguments_sha256=arguments_digest(args),
        inputs_sha256=inputs,
        part=part,
        n_parts=n_parts,
        n_rows=len(store),
        n_left_out=n_left_out,
        uuid=store.uuid,
    )
    if not publish(args.store, record):
        say(f"  part {part}/{n_parts} was published by another attempt, whose record stands")


def parts_to_merge(args: argparse.Namespace) -> list[Path] | None:
    """Choose the stores that a merge is of, and print what is left out or missing.

    Returns
    -------
    list of Path or None
        None if parts are missing, and `--partial` does not say to go on without them.

    Raises
    ------
    StoreError
        There are no parts, or not of one command; or OUT is inside a store.
    """
    if args.parts is None:
        if args.partial:
            raise SchemaError("--partial is for --parts DIR; leave it out")
        return args.sources
    if args.sources:
        raise SchemaError("--parts: expected no STORE beside it; give one of them")
    found = find_parts(args.parts)
    say(*found.left_out, sep="\n", end="\n" if found.left_out else "", file=sys.stderr)
    if not found.parts:
        raise NotFoundError(f"{args.parts}: expected whole parts, found none")
    missing = found.missing
    if missing:
        line = f"{args.parts}: missing of {found.n_parts} parts: {numbers_text(missing)}"
        if args.store.exists() and not args.partial:
            raise SchemaError(f"{line}; and there is something at {args.store}: choose another OUT")
        say(line, file=sys.stderr)
        if not args.partial:
            return None
    return [part.path for part in found.parts]


def part_warnings(parts: Sequence[Path]) -> list[str]:
    """What the logs of parts warn of, each once whatever its numbers, with how many parts do."""
    found: dict[str, list[str]] = {}
    for part in parts:
        lines = last_lines(part.with_suffix(".log"), sys.maxsize)
        warned = {_NUMBER.sub("0", line): line for line in lines if line.startswith("warning: ")}
        for text, line in warned.items():
            found.setdefault(text, []).append(line)
    n_parts = count(len(parts), "part")
    return [f"{lines[0]} (so in {len(lines):,} of {n_parts})" for lines in found.values()]


def left_out_lines(parts: Sequence[Path]) -> list[str]:
    """How much the parts left out, and where it is named; none if they left out nothing."""
    numbers = [read_record(record_path(part)).n_left_out for part in parts]
    if not any(numbers):
        return []
    left_out = count(sum(numbers), "file or record", "files or records")
    logs = count(sum(map(bool, numbers)), "part")
    return [f"  {left_out} left out; the logs of {logs} in {parts[0].parent} say which and why"]
