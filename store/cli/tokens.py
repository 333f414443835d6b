"""`python -m store tokens`: a flat store."""

from pathlib import Path

from store.cli import shared_options
from store.cli.arguments import layers, names, path, positive, whole
from store.cli.command import Command, argument, flag, option
from store.cli.merge import check_new_space
from store.cli.progress import Progress
from store.errors import SchemaError
from store.format.contents import WORKING_DIR
from store.memory_limits import read_memory
from store.read.store import TraceStore
from store.reports import count, say
from store.traces.question_split import SPLITS
from store.transform.flatten import FlatSource
from store.transform.subset import rows_of_split, rows_where
from store.write.build import build_store, partial_path

__all__ = ["Tokens"]

EXAMPLES = """\
A row of OUT is a token: its values of the columns, row (the number of its trace in STORE) and
position (its place in the trace, from 0), under the id "<id of the trace>:<position>". Columns of
traces, as label and question_id, are repeated for each token. Rows are in the order of the traces,
or with --shuffle in that of the first epoch of a TokenLoader of this seed: read from the first to
the last, they are shuffled at the speed of the disk.

What does not fit in memory is written twice, first to files beside OUT that are removed: the disk
must have room for both. Stopped, the same command continues where it stopped.

examples:
  python -m store tokens flat.zarr traces.zarr --column hidden_states --layers 16 --shuffle
  python -m store tokens flat.zarr traces.zarr --column hidden_states,logprob,label \\
      --layers 16 --tokens answer --where "label != -1" --split train --shuffle --seed 0
"""


class Tokens(Command):
    """Make a store whose rows are the tokens of another's traces."""

    epilog = EXAMPLES
    store: Path = shared_options.OUT
    source: Path = argument("the store of traces", "STORE", path)
    column: list[str] = option(
        "columns to keep, separated by commas; one at least has a value for each token",
        "NAMES",
        names,
        required=True,
    )
    layers: str | None = option(
        "layers to keep of columns that have some, as the model numbers them, e.g. 16 or 8,16 "
        "(default: all)",
        "LAYERS",
        layers,
    )
    tokens: str = option(
        "tokens to take: all, prompt, answer, or a column of numbers, for those where it is above "
        "0",
        "WHICH",
        default="all",
    )
    where: str | None = shared_options.where("traces to take")
    split: str | None = option(
        f"take the traces of the questions of a split: {', '.join(SPLITS)}", choices=SPLITS
    )
    shuffle: bool = flag("shuffle all tokens (default: in the order of the traces)")
    seed: int = option("seed of --shuffle, and of --split", "N", whole(0, 999_999_999), 0)
    memory_mb: int | None = option(
        "memory for the tokens that are shuffled together (default: half of what is free)",
        "MB",
        positive,
    )
    ignore_space: bool = shared_options.IGNORE_SPACE

    def run(self) -> int:
        store = TraceStore.open(self.source, check=True)  # a copy would hide what is damaged
        rows: list[int] | None = None
        if self.split is not None:
            rows = rows_of_split(store, self.split, self.seed)
        if self.where is not None:
            rows = rows_where(store, range(len(store)) if rows is None else rows, self.where)
        n_traces = len(store) if rows is None else len(rows)
        memory_bytes = read_memory().available // 2
        if self.memory_mb is not None:
            memory_bytes = self.memory_mb * 1_000_000
        source = FlatSource(
            store,
            self.column,
            partial_path(self.store) / WORKING_DIR,
            memory_bytes,
            layers=self.layers,
            tokens=self.tokens,
            rows=rows,
            where=self.where,
            shuffle=self.shuffle,
            seed=self.seed,
        )
        if not len(source):
            raise SchemaError(f"{self.source}: expected tokens to take, found none")
        n_copies = 2 if source.is_scattered else 1
        check_new_space(self, n_copies * len(source) * source.token_bytes)
        with Progress(
            lambda done: done / len(source), lambda done: f"{done:,} tokens", "tokens"
        ) as progress:
            build_store(self.store, source, progress, command=self.typed)
        say(f"{self.store}: {count(len(source), 'token')} of {count(n_traces, 'trace')}")
        return 0
