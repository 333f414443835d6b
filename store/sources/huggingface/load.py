"""`python -m store extract`: from the name of a model and a file of questions to a source of
traces.

What goes wrong before the first trace (no such model, no chat template, weights that are missing)
is a `StoreError` of one line. A question whose prompt the model cannot take is left out and told;
the others go on.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from huggingface_hub import (
    get_hf_file_metadata,
    hf_hub_url,
    is_offline_mode,
    try_to_load_from_cache,
)
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from store.errors import NotFoundError, SchemaError
from store.read.store import TraceStore
from store.reports import LeftOut, count
from store.sources.answer_scores import normalize_answer
from store.sources.huggingface.forward import ATTENTION
from store.sources.huggingface.prompts import PromptError, Prompts
from store.sources.huggingface.source import HuggingFaceSource
from store.sources.labels import one_class_warning
from store.sources.questions import Question

__all__ = ["DTYPES", "ExtractReport", "choose_device", "load_model", "needs_maps", "take_fitting"]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "auto": "auto"}
_LAYER = re.compile(r"(^|\.)(layers|h|blocks|block)\.\d+\.(?!.*inv_freq)")


@dataclass
class ExtractReport:
    """What became of an extraction.

    Attributes
    ----------
    questions
        How many were asked.
    skipped
        Those that were left out.
    """

    questions: int = 0
    skipped: LeftOut = field(default_factory=LeftOut)

    def summary(self, path: Path, store: TraceStore, source: HuggingFaceSource) -> str:
        """What the store holds, what was left out and what looks wrong about the labels, a line
        each."""
        lines = [f"{path}: {count(len(store), 'trace')} of {count(self.questions, 'question')}"]
        if "label" in store.schema.columns and len(store):
            lines += _label_lines(store, source)
        if self.skipped.n:
            lines += [f"  {count(self.skipped.n, 'question')} left out", *self.skipped.lines()]
        if source.left_out.n:
            lines += [f"  {count(source.left_out.n, 'trace')} left out", *source.left_out.lines()]
            lines.append(f"  to have all: {source.advice}, into a new store")
        return "\n".join(lines)


def _label_lines(store: TraceStore, source: HuggingFaceSource) -> list[str]:
    """How many labels of each kind, and warnings about them."""
    labels = store.column("label")
    n_wrong, n_right, n_none = (int((labels == value).sum()) for value in (1, 0, -1))
    meanings = (
        (n_wrong, "wrong (label 1)"),
        (n_right, "right (label 0)"),
        (n_none, "without a label"),
    )
    lines = [f"  {n:,} {text}" for n, text in meanings if n]
    warnings = (one_class_warning(n_right, n_wrong, source.labels), _chat_warning(store, source))
    return [*lines, *filter(None, warnings)]


def _chat_warning(store: TraceStore, source: HuggingFaceSource) -> str | None:
    """A warning where whole sentences are compared with short references, letter for letter; None
    if they are not."""
    needed = {"answer", "references"}
    if (
        source.labels != "exact"
        or not source.prompts.chat
        or not needed <= store.schema.columns.keys()
    ):
        return None
    longer = list(_are_longer(store))
    if sum(longer) <= len(longer) / 2:
        return None
    share = sum(longer) / len(longer)
    return (
        f"warning: {share:.0%} of the answers are longer than each of their references, and exact match counts all of "
        "those as wrong; use --labels f1, or let a judge score them: python -m store export, then python -m store label"
    )


def _are_longer(store: TraceStore, n_rows: int = 4096) -> Iterator[bool]:
    """Whether the answer of each trace with references has more words than any of them."""
    for first in range(0, len(store), n_rows):
        batch = store.read(range(first, min(first + n_rows, len(store))), ["answer", "references"])
        for answer, references in zip(batch["answer"], batch["references"], strict=True):
            words = [
                len(normalize_answer(reference).split()) for reference in json.loads(references)
            ]
            if words:
                yield len(normalize_answer(answer).split()) > max(words)


def choose_device(name: str | None) -> torch.device:
    """The device of that name, or the best there is; raises SchemaError if it does not work."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise SchemaError(
            f"device: expected one like cpu or cuda:0, found {name!r}: {_first_line(error)}"
        ) from error
    return device


def needs_maps(columns: Sequence[str] | None) -> bool:
    """Whether attention maps must be computed, which takes the eager implementation."""
    return columns is None or not ATTENTION.isdisjoint(columns)


def load_model(
    name: str, dtype: str, device: torch.device, *, maps: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal model and its tokenizer.

    Parameters
    ----------
    name
        Directory, or name on the Hugging Face Hub.
    dtype
        One of `DTYPES`.
    device
        Where the model shall be.
    maps
        Whether it shall give attention maps.

    Raises
    ------
    NotFoundError
        There is no such model, or no tokenizer with it.
    SchemaError
        It is no causal model, or some of its weights are missing.
    """
    logging.set_verbosity_error()  # what matters is an error of ours
    logging.disable_progress_bar()
    unreadable = (
        OSError,
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        AttributeError,
        RuntimeError,
    )
    unreadable += (ImportError, SafetensorError)  # whatever a damaged configuration leads to
    expected = f"model {name!r}: expected a model's directory or its name on the Hugging Face Hub"
    if name.startswith((".", "/")) and not Path(name).is_dir():
        raise NotFoundError(f"{expected}, found no such directory")
    where = {"local_files_only": _must_be_local(name), "trust_remote_code": False}
    try:
        AutoConfig.from_pretrained(name, **where)
    except unreadable as error:
        raise NotFoundError(f"{expected}, found: {_first_line(error)}") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **where)
    except unreadable as error:
        raise NotFoundError(
            f"model {name!r}: expected a tokenizer with it, found: {_first_line(error)}"
        ) from error
    attention = {"attn_implementation": "eager"} if maps else {}
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            name, dtype=DTYPES[dtype], output_loading_info=True, **where, **attention
        )
    except unreadable as error:
        raise SchemaError(
            f"model {name!r}: expected a causal language model, found: {_first_line(error)}"
        ) from error
    _check_weights(name, info["missing_keys"], info["unexpected_keys"])
    try:
        model = model.eval().to(device)
    except torch.OutOfMemoryError as error:
        raise SchemaError(
            f"model {name!r}: expected memory for {model.get_memory_footprint() / 1e9:.1f} GB of weights, found too "
            f"little on {device}; choose a smaller --dtype or another --device"
        ) from error
    _check_causal(model)
    return model, tokenizer


def _must_be_local(name: str) -> bool:
    """Whether a model can only be taken from this machine: it is a directory, or the Hub cannot be
    reached.

    Without a network transformers tries every file of a model six times, half a minute each, also
    of a model that is in the cache; so one request is made first. Raises NotFoundError if the model
    is neither here nor there.
    """
    if Path(name).is_dir() or is_offline_mode():
        return True
    try:
        cached = isinstance(try_to_load_from_cache(name, "config.json"), str)
    except ValueError:  # no name that the Hub could have, which transformers says best
        return False
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"))
    except HfHubHTTPError:
        return False  # it answers, if only that there is no such model
    except Exception as error:  # of a class of the HTTP library's, which changes with the version
        if cached:
            return True
        raise NotFoundError(
            f"model {name!r}: expected a directory, or a model of the Hugging Face Hub, found no such directory, and "
            f"the Hub cannot be reached: {_first_line(error)}"
        ) from error
    return False


def _check_weights(name: str, missing: Iterable[str], unexpected: Iterable[str]) -> None:
    """Refuse a model whose weights are not those of its configuration: what answers would be
    another model."""
    absent = sorted(missing)
    if absent:  # transformers would draw them at random
        raise SchemaError(
            f"model {name!r}: expected all weights, found {len(absent)} missing, first {absent[0]!r}; "
            "check that it is a causal language model"
        )
    surplus = sorted(key for key in unexpected if _LAYER.search(key))
    if surplus:
        raise SchemaError(
            f"model {name!r}: expected the layers of its configuration, found {len(surplus)} weights of others, first "
            f"{surplus[0]!r}; check config.json"
        )


def _check_causal(model: PreTrainedModel) -> None:
    """Refuse a model whose tokens see those behind them: what it says of a token would depend on
    what comes later."""
    ids = (
        torch.tensor([[1, 2, 3, 0], [1, 2, 3, 4]], device=model.device)
        % model.config.get_text_config().vocab_size
    )
    with torch.inference_mode():
        one, other = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    rounding = 16 * torch.finfo(model.dtype).eps
    if (one - other).abs().max() > rounding * one.abs().max():
        raise SchemaError(
            f"model {model.name_or_path!r}: expected a causal language model, found {type(model).__name__}, in which "
            "tokens see those behind them"
        )


def take_fitting(
    questions: Sequence[Question], prompts: Prompts
) -> tuple[list[Question], ExtractReport]:
    """The questions whose prompts the model can take, and a report that names the others."""
    fitting, report = [], ExtractReport()
    for question in questions:
        try:
            prompts.encode(question)
        except PromptError as error:
            report.skipped.add(str(error))
        else:
            fitting.append(question)
    if questions and not fitting:
        found = f"found none of {len(questions)}: {report.skipped.messages[0]}"
        raise SchemaError(f"expected questions whose prompts the model can take, {found}")
    report.questions = len(fitting)
    return fitting, report


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
