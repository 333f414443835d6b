"""`python -m store subset`."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from store.cli import shared_options
from store.cli.arguments import path, whole
from store.cli.command import Command, argument, option
from store.cli.merge import check_new_space
from store.cli.progress import Progress
from store.errors import SchemaError
from store.read.store import TraceStore
from store.reports import count, say
from store.traces.notes import notes_path, tagged
from store.traces.question_split import SPLITS
from store.transform.subset import (
    read_ids,
    rows_of_ids,
    rows_of_questions,
    rows_of_split,
    rows_where,
    subset_provenance,
)
from store.write.build import build_store
from store.write.source import CopySource
from store.write.space import bytes_of_rows

__all__ = ["Subset"]

EXAMPLES = """\
The splits are those of python -m train with the same seed and no other option of the split;
unlabelled traces come along. With --where as well, those of them that the filter means are chosen.
Stopped, the same command continues where it stopped.

examples:
  python -m store subset few.zarr traces.zarr --ids ids.txt
  python -m store subset test.zarr traces.zarr --split test --seed 0
  python -m store subset squad.zarr traces.zarr --where "dataset == 'squad' and label != -1"
  python -m store subset odd.zarr traces.zarr --tag odd
  python -m store subset asked.zarr traces.zarr --questions questions.txt
"""


class Subset(Command):
    """Make a store of some traces of another."""

    epilog = EXAMPLES
    store: Path = shared_options.OUT
    source: Path = argument("the store to choose from", "STORE", path)
    ids: Path | None = option(
        "trace ids, one a line, in the order wanted", "FILE", path, either="which"
    )
    questions: Path | None = option(
        "question ids, one a line: all their traces", "FILE", path, either="which"
    )
    split: str | None = option(
        f"the questions of a split: {', '.join(SPLITS)}", either="which", choices=SPLITS
    )
    tag: str | None = option(
        "traces that were tagged so on the page: in STORE.notes.csv", "TAG", either="which"
    )
    seed: int = option("seed of --split", "N", whole(0, 2**31 - 1), 0)
    where: str | None = shared_options.where(
        "traces to take; with one of the others, of those it names"
    )
    ignore_space: bool = shared_options.IGNORE_SPACE

    def run(self) -> int:
        store = TraceStore.open(self.source, check=True)  # a copy would hide what is damaged
        ways = (self.ids, self.questions, self.split, self.tag, self.where)
        if all(way is None for way in ways):
            raise SchemaError(
                "expected --ids, --questions, --split, --tag or --where, found none of them"
            )
        chosen: dict[str, object]
        rows: Sequence[int]
        if self.ids:
            rows = rows_of_ids(store, read_ids(self.ids))
            chosen = {"by": "ids"}
        elif self.questions:
            rows = rows_of_questions(store, read_ids(self.questions))
            chosen = {"by": "questions"}
        elif self.split:
            rows = rows_of_split(store, self.split, self.seed)
            # "side": the key's name in stores that exist
            chosen = {"by": "split", "side": self.split, "seed": self.seed}
        elif self.tag:
            notes = notes_path(self.source)
            noted = tagged(notes, self.tag)
            rows = [row for row in store.ids.find_all(noted).tolist() if row >= 0]
            if len(rows) < len(noted):  # as label --from-notes: the notes may be of more traces
                n_others = f"{len(noted) - len(rows):,} of {len(noted):,}"
                say(f"{notes}: {n_others} traces with the tag are not in the store")
            chosen = {"by": "tag", "tag": self.tag}
        else:
            rows = range(len(store))
            chosen = {"by": "filter"}
        if self.where is not None:
            rows = rows_where(store, rows, self.where)
            chosen["where"] = self.where
        rows = list(rows)
        digest = hashlib.sha256(repr(rows).encode()).hexdigest()
        chosen |= {"rows": len(rows), "rows_sha256": digest}
        source = CopySource([(store, rows)], subset_provenance(store, chosen))
        check_new_space(self, bytes_of_rows(store, rows))
        with Progress.of_rows(len(rows)) as progress:
            build_store(self.store, source, progress, command=self.typed)
        say(f"{self.store}: {len(rows):,} of {count(len(store), 'trace')}")
        return 0
