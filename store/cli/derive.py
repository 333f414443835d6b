"""`python -m store derive`: columns that follow from others."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from store.cli import shared_options
from store.cli.arguments import expand, names, positive
from store.cli.command import Command, argument, flag, option
from store.cli.progress import Progress
from store.errors import SchemaError
from store.extras import needs_extra
from store.format.schema import Column
from store.read.store import TraceStore
from store.reports import count, say
from store.traces.states import DERIVED
from store.transform.samples.names import NEEDS, NLI
from store.write.space import check_space
from store.write.writer import StoreWriter

if TYPE_CHECKING:
    from store.transform.samples.agreement import Nli

__all__ = ["Derive"]

OTHER_REASONS = {  # why a trace has no score although its question has other traces
    "eigenscore": ", or a state that is not finite",
    "semantic_entropy": ", or fewer than two of them with log-probabilities",
    "selfcheck_nli": ", or no words in the answer, or in all others",
}
EXAMPLES = """\
These columns are made from hidden_states, layer by layer, in its dtype:
  hs_last     the state of the last token
  hs_prompt   the state of the last token of the prompt; needs prompt_len
  hs_mean     the mean over the answer's tokens, computed in float32; needs prompt_len

These compare the traces of one question (extract --num-samples N); a trace whose question has no
other one gets NaN. The value is of the question, on each of its traces, but for selfcheck_nli:
  eigenscore                 spread of the states hs_last at a layer
  lexical_similarity         mean ROUGE-L of the answers, pair by pair
  semantic_entropy           entropy of the answers' meanings, by their probabilities; needs logprob
  semantic_entropy_discrete  entropy of the answers' meanings, by their number
  selfcheck_nli              how much the other answers contradict the trace's sentences
The last three ask a classifier of natural language inference, --nli; it comes from this machine.

Each group of columns is added to the store in one commit, and nothing else is rewritten. A command
that was stopped has not added the group that it was at: run it again. A column that is there
already stays as it is.

examples:
  python -m store derive traces.zarr hs_last
  python -m store derive traces.zarr hs_last,hs_prompt,hs_mean
  python -m store derive samples.zarr eigenscore lexical_similarity
  python -m store derive samples.zarr eigenscore --layer 12 --replace
  python -m store derive samples.zarr semantic_entropy selfcheck_nli --nli ./deberta-mnli
"""


class Derive(Command):
    """Add columns to a store that follow from others that it has."""

    epilog = EXAMPLES
    store: Path = shared_options.STORE
    columns: list[list[str]] = argument(
        f"columns to add, separated by commas or blanks: {', '.join([*DERIVED, *NEEDS])}",
        "COLUMNS",
        names,
        nargs="+",
    )
    layer: int | None = option(
        "layer of eigenscore, as the model numbers it; -1: the last one (default: the middle of "
        "those in hs_last)",
        "N",
        int,
    )
    nli: str | None = option(
        "sequence classifier with the labels entailment, contradiction and neutral: a directory, "
        "or a model in the cache of Hugging Face; its weights in safetensors",
        "NAME_OR_PATH",
        expand,
    )
    batch_size: int = option("pairs of texts that the classifier reads at once", "N", positive, 32)
    device: str | None = shared_options.device("torch device of the classifier")
    replace: bool = flag("make scores again that the store has (default: they stay)")
    ignore_space: bool = shared_options.IGNORE_SPACE

    def run(self) -> int:
        """Add the columns that are not there; with --replace, make scores again."""
        from store.transform.derive import derive_columns, plan_columns, plan_passes
        from store.transform.samples.scores import ScoreSettings

        names = [name for some in self.columns for name in some]
        _check_options(self, names)
        store = TraceStore.open(self.store, check=True)
        settings = ScoreSettings(self.layer)
        columns = plan_columns(store, names, settings, again=self.replace)
        if not columns:
            scores = "; --replace makes scores again" if set(names) & NEEDS.keys() else ""
            say(f"{self.store}: has {', '.join(names)} already: nothing to do{scores}")
            return 0
        n_bytes = len(store) * sum(column.item_bytes for column in columns.values())
        check_space(self.store, n_bytes, ignore=self.ignore_space)
        nli = _load_nli(self, columns)
        settings = settings._replace(nli=nli)
        with StoreWriter.open(self.store) as writer:
            for together in plan_passes(list(columns)):
                with Progress.of_rows(len(store)) as progress:
                    derive_columns(writer, together, progress, settings, again=self.replace)
                added = ", ".join(together)
                say(f"{self.store}: {added} of {count(len(store), 'trace')} added", flush=True)
                _report_missing(self, together)
        if nli is not None and nli.n_cut:
            pairs = count(nli.n_pairs, "pair")
            say(f"  {nli.n_cut:,} of {pairs} of texts were too long for {self.nli}, and were cut")
        return 0


def _check_options(args: Derive, names: list[str]) -> None:
    """Raise SchemaError for an option without effect."""
    asked = ", ".join(names)
    for attribute, columns in (("layer", {"eigenscore"}), ("nli", {*NLI}), ("replace", {*NEEDS})):
        if not columns & set(names):
            fitting = ", ".join(name for name in NEEDS if name in columns)
            args.refuse(f"has no effect on {asked}: it is for {fitting}", attribute)


def _load_nli(args: Derive, columns: dict[str, Column]) -> "Nli | None":
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


def _report_missing(args: Derive, names: list[str]) -> None:
    """Print how many traces have no score, and why."""
    store = TraceStore.open(args.store, check=True)
    for name in filter(NEEDS.__contains__, names):
        n_missing = int(np.isnan(store.column_array(name)).sum())
        if n_missing:
            why = f"no other trace of the question{OTHER_REASONS.get(name, '')}"
            say(f"  {name}: {count(n_missing, 'trace')} without a value (NaN): {why}")
