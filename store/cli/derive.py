"""`python -m store derive`: columns that follow from others."""

import argparse

import torch

from store.cli.progress import Progress
from store.errors import SchemaError
from store.extras import needs_extra
from store.format.schema import Column
from store.read.store import TraceStore
from store.reports import count, say
from store.transform.derive import derive_columns, plan_columns, plan_passes
from store.transform.samples.meaning import Nli
from store.transform.samples.names import NEEDS, NLI
from store.transform.samples.requirements import ScoreSettings
from store.write.space import check_space
from store.write.writer import StoreWriter

__all__ = ["run_derive"]

OTHER_REASONS = {  # why a trace has no score although its question has other traces
    "eigenscore": ["or a state that is not finite"],
    "lexical_similarity": [],
    "semantic_entropy": ["or fewer than two of them with log-probabilities"],
    "semantic_entropy_discrete": [],
    "selfcheck_nli": ["or no words in the answer, or in all others"],
}


def run_derive(args: argparse.Namespace) -> int:
    """Add the columns that are not there; with --replace, make scores again."""
    names = [name for some in args.columns for name in some]
    _check_options(args, names)
    store = TraceStore.open(args.store)
    settings = ScoreSettings(args.layer)
    columns = plan_columns(store, names, settings, again=args.replace)
    if not columns:
        scores = "; --replace makes scores again" if set(names) & NEEDS.keys() else ""
        say(f"{args.store}: has {', '.join(names)} already: nothing to do{scores}")
        return 0
    n_bytes = len(store) * sum(column.item_bytes for column in columns.values())
    check_space(args.store, n_bytes, ignore=args.ignore_space)
    nli = _load_nli(args, columns)
    settings = settings._replace(nli=nli)
    with StoreWriter.open(args.store) as writer:
        for together in plan_passes(list(columns)):
            with Progress(lambda done: done / max(1, len(store))) as progress:
                derive_columns(writer, together, progress, settings, again=args.replace)
            added = ", ".join(together)
            say(f"{args.store}: {added} of {count(len(store), 'trace')} added", flush=True)
            _report_missing(args, together)
    if nli is not None and nli.n_cut:
        pairs = count(nli.n_pairs, "pair")
        say(f"  {nli.n_cut:,} of {pairs} of texts were too long for {args.nli}, and were cut")
    return 0


def _check_options(args: argparse.Namespace, names: list[str]) -> None:
    """Raise SchemaError for an option without effect."""
    effects = (
        ("--layer", args.layer is not None, {"eigenscore"}),
        ("--nli", args.nli is not None, {*NLI}),
        ("--replace", args.replace, {*NEEDS}),
    )
    for option, is_given, columns in effects:
        if is_given and not columns & set(names):
            raise SchemaError(
                f"{option} has no effect on {', '.join(names)}: it is for "
                f"{', '.join(name for name in NEEDS if name in columns)}"
            )


def _load_nli(args: argparse.Namespace, columns: dict[str, Column]) -> Nli | None:
    """Load the classifier of --nli; None where no column asks one."""
    asking = [name for name in columns if name in NLI]
    if not asking:
        return None
    if args.nli is None:
        raise SchemaError(
            f"{', '.join(asking)}: expected a classifier of natural language inference that "
            "compares the answers, found none; name one with --nli"
        )
    with needs_extra("extract"):
        from store.sources.huggingface import load
        from store.sources.huggingface.nli import HuggingFaceNli
    model, tokenizer = load.load_classifier(args.nli, load.choose_device(args.device))
    return HuggingFaceNli(model, tokenizer, batch_size=args.batch_size, name=args.nli)


def _report_missing(args: argparse.Namespace, names: list[str]) -> None:
    """Print how many traces have no score, and why."""
    store = TraceStore.open(args.store)
    for name in names:
        if name not in NEEDS:
            continue
        n_missing = int(torch.as_tensor(store.column(name)).isnan().sum())
        if n_missing:
            why = ", ".join(["no other trace of the question", *OTHER_REASONS[name]])
            say(f"  {name}: {count(n_missing, 'trace')} without a value (NaN): {why}")
