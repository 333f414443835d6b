"""`python -m store import`: traces that were recorded elsewhere."""

from collections.abc import Sequence
from pathlib import Path

from store.cli import shared_options
from store.cli.arguments import as_called, expand, finite, layers, path
from store.cli.command import Command, argument, flag, option
from store.cli.progress import Progress
from store.errors import SchemaError
from store.importers.arrays.imports import MapSource
from store.importers.arrays.inspect import inspect_lines
from store.importers.arrays.mapping import parse_map
from store.importers.files import (
    ARRAYS,
    LISTED,
    PICKLES,
    Given,
    check_apart,
    describe,
    find_given,
    of_older_formats,
)
from store.importers.legacy.source import LegacySource
from store.importers.openhaldet import OpenHalDetSource, is_openhaldet
from store.importers.source import FileSource, Options
from store.importers.vllm import VllmSource, is_vllm
from store.importers.vllm_requests import read_requests
from store.labels.report import label_lines
from store.labels.rule import check_agreement
from store.reports import say
from store.traces.layers import parse_layers
from store.write.build import build_store, open_begun

__all__ = ["Import", "find_sources"]

MAX_LAYERS = 10_000
EXAMPLES = f"""\
The kind of each file is recognised from its content: raw traces (.pkl, .pkl.gz), or preprocessed
ones (.pt, for the LSTM and for graphs; files of both kinds are joined); safetensors files of
vLLM's hidden states; OpenHalDet's 02_hidden_states.h5, with the samples beside it. Other arrays
({LISTED}, JSON lines, pickles and .pt) become the columns
that --map names: a column of the field has its own shape, any other that of the array; keys of
objects in JSON lines have dots (meta_info.hidden_states, as SGLang writes it); ids are trace_id and
question_id. Numbers and texts of other keys, one a trace, come along (--fields), as those of
--requests do. --inspect shows what is in a file, and proposes a command.

Raw traces of six generations, A to F (docs/import.md), are read: states by step or per layer,
tokens of the whole sequence or of the answer alone. Ids of tokens that a file does not hold are -1.
Files without question ids are numbered: the position over all files, sorted by name. Each
generation makes a store of its own; of a folder with several, files of others are left out.

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
    store: Path = shared_options.OUT
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
    score_column: str | None = shared_options.SCORE_COLUMN
    label_column: str | None = shared_options.LABEL_COLUMN
    higher_is_better: bool = shared_options.HIGHER_IS_BETTER
    lower_is_better: bool = shared_options.LOWER_IS_BETTER
    score_threshold: float = shared_options.SCORE_THRESHOLD
    columns: list[str] | None = shared_options.columns()
    fields: list[str] | None = shared_options.FIELDS
    keep_attention: bool = flag("keep the full attention maps (large) beside their reductions")
    attn_threshold: float | None = option(
        "attention from which on the graphs were given an edge (default: read from the smallest "
        "edges in the files)",
        "A",
        finite,
    )
    part: tuple[int, int] = shared_options.parts_of("file")
    max_file_gb: float = option("refuse files that unpack to more gigabytes", "GB", finite, 16)

    def run(self) -> int:
        """Import, or inspect; return 1 if some were left out."""
        if self.inspect:
            return run_inspect(self)
        source = import_source(self)
        report = source.report

        def share(n_rows: int) -> float:
            return report.bytes_done / max(1, report.bytes_all)

        with Progress(share) as progress:
            store = build_store(self.store, source, progress, command=self.typed)
        shared_options.publish_part(self, store, report.skipped.n)
        lines = [report.summary(self.store), *source.fields.remarks(), *label_lines(store)]
        say(as_called("\n".join(lines)))
        return int(not report.whole)


def run_inspect(args: Command) -> int:
    """Print what files hold and what they could become; return 1 if some cannot be read."""
    sources = [str(args.store), *args.sources]
    lines, whole = inspect_lines(find_given(sources), int(args.max_file_gb * 1e9))
    say(as_called("\n".join(lines)))
    return int(not whole)


def find_sources(args: Command) -> tuple[list[Given], bool]:
    """Return the files of an import, and whether they are of the older formats.

    Else they are arrays, or as programs save them. Raises SchemaError where neither can be meant.
    """
    if not args.sources:
        raise SchemaError("expected files to import after OUT, found none")
    given = find_given(args.sources)
    if args.map is not None or args.requests is not None:
        return given, False
    arrays = [item for item in given if item.kind in ARRAYS]
    if not arrays or any(item.kind in PICKLES for item in given):
        if args.layers is not None:
            raise SchemaError("--layers: expected --map or files of vLLM; leave it out")
        return of_older_formats(given, args.sources), True
    if len(arrays) == len(given) and (is_vllm(arrays[0]) or all(map(is_openhaldet, arrays))):
        return given, False
    raise SchemaError(
        f"{arrays[0].path}: expected --map COLUMN=KEY for {describe(arrays[0].kind)}, found none; "
        f"python -m store import --inspect {arrays[0].path} proposes one"
    )


def import_source(args: Command) -> FileSource:
    """Open files as the options say, and the file of scores; raises what is wrong with them."""
    given, are_older = find_sources(args)
    if are_older:
        args.refuse("is for arrays, tables and --requests; leave it out", "fields")
    else:
        check_apart(args.store, args.sources)
        args.refuse("is for older formats; leave it out", "keep_attention", "attn_threshold")
        if args.map is not None and args.requests is not None:
            raise SchemaError("--requests is for files of vLLM, --map for others; give one")
    scores = shared_options.read_given_scores(args)
    if scores is not None:
        say("\n".join(shared_options.understood_lines(scores, scores.examples)), flush=True)
    settings = Options(
        scores=scores,
        score_threshold=args.score_threshold,
        layers=_layer_numbers(args.layers),
        columns=args.columns,
        fields=args.fields,
        part=args.part,
        begun=open_begun(args.store),
    )
    max_bytes = int(args.max_file_gb * 1e9)
    if are_older:
        return LegacySource(
            given,
            settings,
            keep_attention=args.keep_attention,
            attn_threshold=args.attn_threshold,
            max_bytes=max_bytes,
        )
    if args.map is not None:
        return MapSource(given, parse_map(args.map), settings, max_bytes)
    if is_openhaldet(given[0]):
        args.refuse("is for other files, these say it; leave it out", "layers", "requests")
        return OpenHalDetSource(given, settings, max_bytes)
    return _vllm_source(args, given, settings)


def _vllm_source(args: Command, given: Sequence[Given], settings: Options) -> FileSource:
    files = [item for item in given if item.kind == "safetensors"]
    if not files:
        raise SchemaError(f"expected safetensors files of vLLM, found {describe(given[0].kind)}")
    requests = read_requests(args.requests) if args.requests is not None else None
    if requests is not None and settings.scores is None:
        judged = ((name, one.get("score"), one.get("label")) for name, one in requests.items())
        check_agreement(judged, args.score_threshold)
    return VllmSource(files, requests, settings)


def _layer_numbers(text: str | None) -> list[int] | None:
    """Return the numbers that `--layers` lists, all of which must be known without the model."""
    if text is None:
        return None
    numbers: list[int] = []
    for first, last, step in parse_layers(text):
        if first is None or last is None or first < 0 or last < 0 or last - first >= MAX_LAYERS:
            raise SchemaError(
                f"--layers: expected numbers as in 8,16,24 or 8-16, found {text!r:.80}"
            )
        numbers += range(first, last + 1, step)
    if numbers != sorted(set(numbers)):
        raise SchemaError(f"--layers: expected rising numbers, as in the files, found {text!r:.80}")
    return numbers
