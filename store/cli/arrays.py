"""`python -m store import` of arrays and of vLLM's files, and `--inspect`."""

import argparse
from collections.abc import Sequence

from store.cli.arguments import as_called
from store.cli.progress import Progress
from store.cli.scores import read_given_scores, understood_lines
from store.errors import SchemaError
from store.format.layers import parse_layers
from store.sources.arrays.files import FileSource, Labels
from store.sources.arrays.find import ARRAYS, Given, describe, find_given
from store.sources.arrays.imports import MapSource
from store.sources.arrays.inspect import PICKLES, inspect_lines
from store.sources.arrays.mapping import parse_map
from store.sources.legacy.fields import DAMAGE
from store.sources.vllm import VllmSource, is_vllm, read_requests
from store.write.build import build_store, open_begun
from store.write.space import SpaceCheck

__all__ = ["is_for_arrays", "run_array_import", "run_inspect"]

LOOK_AFTER = 32  # rows of an import after which the space for all of them is estimated
MAX_LAYERS = 10_000


def run_inspect(args: argparse.Namespace) -> int:
    """Print what files hold and what they could become; return 1 if some cannot be read."""
    sources = [str(args.store), *args.sources]
    lines, whole = inspect_lines(find_given(sources), int(args.max_file_gb * 1e9))
    print(as_called("\n".join(lines)))
    return int(not whole)


def is_for_arrays(args: argparse.Namespace) -> bool:
    """Return whether an import is of arrays or of vLLM's files; raises SchemaError for a misfit."""
    if args.map is not None or args.requests is not None:
        return True
    given = find_given(args.sources)
    arrays = [item for item in given if item.kind in ARRAYS]
    older = [item for item in given if item.kind in PICKLES]
    if older or not arrays:
        if not older:
            _check_older(given)
        if args.layers is not None:
            raise SchemaError("--layers: expected --map or files of vLLM; leave it out")
        return False
    if len(arrays) == len(given) and _is_vllm(arrays[0]):
        return True
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


def run_array_import(args: argparse.Namespace) -> int:
    """Import arrays or vLLM's files; return 1 if some were left out."""
    for option, value in (
        ("--keep-attention", args.keep_attention),
        ("--attn-threshold", args.attn_threshold is not None),
    ):
        if value:
            raise SchemaError(f"{option} is for older formats; leave it out")
    scores = read_given_scores(args)
    if scores is not None:
        examples = scores.examples(args.score_threshold)
        print("\n".join(understood_lines(scores, examples, args.score_threshold)), flush=True)
    source = _source(args, Labels(scores, args.score_threshold))
    report = source.report

    def share(n_rows: int) -> float:
        return report.bytes_done / max(1, report.bytes_all)

    space = SpaceCheck(args.store, share, LOOK_AFTER, ignore=args.ignore_space)
    with Progress(share) as progress:
        build_store(args.store, source, progress, command=args.typed, space=space)
    print(as_called(report.summary(args.store)))
    return int(not report.whole)


def _source(args: argparse.Namespace, labels: Labels) -> FileSource:
    given = find_given(args.sources)
    layers = _layer_numbers(args.layers)
    begun = open_begun(args.store)
    if args.map is not None:
        if args.requests is not None:
            raise SchemaError("--requests is for files of vLLM, --map for others; give one")
        return MapSource(
            given,
            parse_map(args.map),
            labels,
            layers=layers,
            columns=args.columns,
            part=args.part,
            begun=begun,
            max_bytes=int(args.max_file_gb * 1e9),
        )
    files = [item for item in given if item.kind == "safetensors"]
    if not files:
        raise SchemaError(f"expected safetensors files of vLLM, found {describe(given[0].kind)}")
    requests = read_requests(args.requests) if args.requests is not None else None
    return VllmSource(
        files,
        requests,
        labels,
        layers=layers,
        columns=args.columns,
        part=args.part,
        begun=begun,
    )


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
