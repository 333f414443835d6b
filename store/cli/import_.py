"""`python -m store import`: traces that were recorded elsewhere."""

from pathlib import Path

from store.cli import options
from store.cli.arguments import as_called, expand, finite, layers, path
from store.cli.arrays import import_source, run_inspect
from store.cli.command import Command, argument, flag, option
from store.cli.parts import publish_part
from store.cli.progress import Progress
from store.errors import SchemaError
from store.labels.report import label_lines
from store.reports import say
from store.write.build import build_store
from store.write.space import SpaceCheck

__all__ = ["Import"]

LOOK_AFTER = 32  # rows of an import after which the space for all of them is estimated
EXAMPLES = """\
The kind of each file is recognised from its content: raw traces (.pkl, .pkl.gz), or preprocessed
ones (.pt, for the LSTM and for graphs; files of both kinds are joined); safetensors files of
vLLM's hidden states; OpenHalDet's 02_hidden_states.h5, with the samples beside it. Other arrays
(.npz, .npy, .safetensors, Arrow, Parquet, HDF5, JSON lines, pickles and .pt) become the columns
that --map names: a column of the field has its own shape, any other that of the array; keys of
objects in JSON lines have dots (meta_info.hidden_states, as SGLang writes it); ids are trace_id and
question_id. Numbers and texts of other keys, one a trace, come along (--fields), as those of
--requests do. --inspect shows what is in a file, and proposes a command.

Raw traces of six generations, A to F (docs/import.md), are read: states by step or per layer,
tokens of the whole sequence or of the answer alone. Ids of tokens that a file does not hold are -1.
Files without question ids are numbered: the position over all files, sorted by name. Each
generation makes a store of its own; of a folder with several, the commands for the others are
printed.

Stopped, the same command continues where it stopped. Exit status 0: all read; 1: some files or
records were left out; 75: a part (--part) failed that may succeed if it is tried again, e.g. on a
full disk.

examples:
  python -m store import traces.zarr traces/ --scores ground_truth_scores.csv
  python -m store import graphs.zarr preprocessed_data/gnn preprocessed_data/lstm_solo
  python -m store import part1.zarr 'traces/*.pkl.gz' --part 1/4
  python -m store import vllm.zarr states/ --requests requests.jsonl --layers 8,16,24
  python -m store import arrays.zarr features.npz --map hs_last=layers,label=y
  python -m store import --inspect features.npz
"""


class Import(Command):
    """Make a store of pickled or preprocessed traces."""

    epilog = EXAMPLES
    store: Path = options.OUT
    sources: list[str] = argument("files, folders or patterns", "SOURCE", expand, nargs="*")
    inspect: bool = flag(
        "show what files hold and the command that imports them; write nothing, no OUT"
    )
    map: str | None = option(
        "COLUMN=KEY,COLUMN=KEY: columns of the store and the arrays they are from; "
        "COLUMN:AXIS=KEY for a ragged one that the field does not know; COLUMN=KEY[AXIS,AXIS] "
        "names the axes of an array, e.g. [records,layers,hidden]",
        "MAP",
    )
    requests: Path | None = option(
        "responses of vLLM's server, one JSON object a line, or requests: id (the name of its "
        "file), question, answer, label or score, prompt_len; all but id may be left out",
        "FILE",
        path,
    )
    layers: str | None = option(
        "numbers of the layers in arrays or files of vLLM, e.g. 8,16,24 (default: counted from 1)",
        "LAYERS",
        layers,
    )
    scores: Path | None = option(
        "scores or labels by question_id or trace_id, which alone decide the labels; see "
        "python -m store label --help (default: the labels in the traces)",
        "FILE",
        path,
    )
    score_column: str | None = options.SCORE_COLUMN
    label_column: str | None = options.LABEL_COLUMN
    higher_is_better: bool = options.HIGHER_IS_BETTER
    lower_is_better: bool = options.LOWER_IS_BETTER
    score_threshold: float = options.SCORE_THRESHOLD
    columns: list[str] | None = options.columns()
    fields: list[str] | None = options.FIELDS
    keep_attention: bool = flag("keep the full attention maps (large) beside their reductions")
    attn_threshold: float | None = option(
        "attention from which on the graphs were given an edge (default: read from the smallest "
        "edges in the files)",
        "A",
        finite,
    )
    part: tuple[int, int] = options.parts_of("file")
    max_file_gb: float = option("refuse files that unpack to more gigabytes", "GB", finite, 16)
    ignore_space: bool = options.IGNORE_SPACE

    def run(self) -> int:
        """Import, or inspect; return 1 if some were left out."""
        if self.inspect:
            return run_inspect(self)
        if not self.sources:
            raise SchemaError("expected files to import after OUT, found none")
        source = import_source(self)
        report = source.report

        def share(n_rows: int) -> float:
            return report.bytes_done / max(1, report.bytes_all)

        space = SpaceCheck(self.store, share, LOOK_AFTER, ignore=self.ignore_space)
        with Progress(share) as progress:
            store = build_store(self.store, source, progress, command=self.typed, space=space)
        publish_part(self, store, report.n_left_out)
        lines = [report.summary(self.store), *source.fields.remarks(), *label_lines(store)]
        say(as_called("\n".join(lines)))
        return int(not report.whole)
