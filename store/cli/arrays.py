"""`python -m store import`: the source of the rows, by the files and the options; `--inspect`."""

from collections.abc import Sequence

from store.cli.arguments import as_called
from store.cli.command import Command
from store.cli.scores import read_given_scores, understood_lines
from store.errors import SchemaError
from store.importers.arrays.imports import MapSource
from store.importers.arrays.inspect import inspect_lines
from store.importers.arrays.mapping import parse_map
from store.importers.damage import DAMAGE
from store.importers.files import (
    ARRAYS,
    PICKLES,
    Given,
    check_apart,
    describe,
    find_given,
    find_older,
)
from store.importers.legacy import ImportSource
from store.importers.openhaldet import OpenHalDetSource, is_openhaldet
from store.importers.source import FileSource, Options
from store.importers.vllm import VllmSource, is_vllm
from store.importers.vllm_requests import read_requests
from store.labels.rule import check_agreement
from store.reports import say
from store.traces.layers import parse_layers
from store.write.build import open_begun

__all__ = ["find_arrays", "import_source", "run_inspect"]

MAX_LAYERS = 10_000


def run_inspect(args: Command) -> int:
    """Print what files hold and what they could become; return 1 if some cannot be read."""
    sources = [str(args.store), *args.sources]
    lines, whole = inspect_lines(find_given(sources), int(args.max_file_gb * 1e9))
    say(as_called("\n".join(lines)))
    return int(not whole)


def find_arrays(args: Command) -> list[Given] | None:
    """Return the files of an import of arrays, or as programs save them; None for older ones.

    Raises SchemaError where neither can be meant.
    """
    given = find_given(args.sources)
    if args.map is not None or args.requests is not None:
        return given
    arrays = [item for item in given if item.kind in ARRAYS]
    older = [item for item in given if item.kind in PICKLES]
    if older or not arrays:
        if not older:
            _check_older(given)
        if args.layers is not None:
            raise SchemaError("--layers: expected --map or files of vLLM; leave it out")
        return None
    if len(arrays) == len(given) and (_is_vllm(arrays[0]) or all(map(is_openhaldet, arrays))):
        return given
    raise SchemaError(
        f"{arrays[0].path}: expected --map COLUMN=KEY for {describe(arrays[0].kind)}, found none; "
        f"python -m store import --inspect {arrays[0].path} proposes one"
    )


def _is_vllm(item: Given) -> bool:
    try:
        return is_vllm(item)
    except DAMAGE:  # it is reported as the file is read
        return item.kind == "safetensors"


def _check_older(given: Sequence[Given]) -> None:
    """Raise SchemaError for a text file and others that hold no older traces."""
    for item in given:
        if item.kind == "text":
            advice = "see python -m store label for scores, python -m store extract for questions"
        elif item.kind == "JSON lines":
            advice = f"python -m store import --inspect {item.path} proposes a --map"
        else:
            continue
        raise SchemaError(f"{item.path}: expected traces, found {describe(item.kind)}; {advice}")


def import_source(args: Command) -> FileSource:
    """Open files as the options say, and the file of scores; raises what is wrong with them."""
    given = find_arrays(args)
    if given is not None:
        check_apart(args.store, args.sources)
        _check_array_options(args)
    older = find_older(args.sources) if given is None else []
    scores = read_given_scores(args)
    if scores is not None:
        examples = scores.examples(args.score_threshold)
        say("\n".join(understood_lines(scores, examples, args.score_threshold)), flush=True)
    options = Options(
        scores=scores,
        score_threshold=args.score_threshold,
        layers=_layer_numbers(args.layers),
        columns=args.columns,
        fields=args.fields,
        part=args.part,
        begun=open_begun(args.store),
    )
    max_bytes = int(args.max_file_gb * 1e9)
    if given is None:
        args.refuse("is for arrays, tables and --requests; leave it out", "fields")
        return ImportSource(
            older,
            options,
            keep_attention=args.keep_attention,
            attn_threshold=args.attn_threshold,
            max_bytes=max_bytes,
        )
    if args.map is not None:
        return MapSource(given, parse_map(args.map), options, max_bytes)
    if is_openhaldet(given[0]):
        args.refuse("is for other files, these say it; leave it out", "layers", "requests")
        return OpenHalDetSource(given, options, max_bytes)
    return _vllm_source(args, given, options)


def _check_array_options(args: Command) -> None:
    """Raise SchemaError for options that mean nothing for arrays."""
    args.refuse("is for older formats; leave it out", "keep_attention", "attn_threshold")
    if args.map is not None and args.requests is not None:
        raise SchemaError("--requests is for files of vLLM, --map for others; give one")


def _vllm_source(args: Command, given: Sequence[Given], options: Options) -> FileSource:
    files = [item for item in given if item.kind == "safetensors"]
    if not files:
        raise SchemaError(f"expected safetensors files of vLLM, found {describe(given[0].kind)}")
    requests = read_requests(args.requests) if args.requests is not None else None
    if requests is not None and options.scores is None:
        judged = ((name, one.get("score"), one.get("label")) for name, one in requests.items())
        check_agreement(judged, args.score_threshold)
    return VllmSource(files, requests, options)


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
