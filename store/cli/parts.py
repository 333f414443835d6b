"""The completion record of a part that an import or an extraction made."""

from store.cli.command import Command
from store.launch.completed_parts import Record, publish
from store.launch.job import arguments_digest, file_digest
from store.read.store import TraceStore
from store.reports import say

__all__ = ["publish_part"]


def publish_part(args: Command, store: TraceStore, n_left_out: int) -> None:
    """Publish the completion record of a part that was made; nothing for a whole store.

    `n_left_out` are the files and records that the import or extraction could not use.
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
