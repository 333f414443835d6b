"""`python -m store extract`: from the name of a model and a file of questions to a source of traces.

What goes wrong before the first trace (no such model, no chat template, weights that are missing) is a `StoreError` of
one line. A question whose prompt the model cannot take is left out and told; the others go on.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from store.errors import NotFoundError, SchemaError
from store.reader import TraceStore
from store.sources.forward import ATTENTION
from store.sources.prompts import PromptError, Prompts
from store.sources.questions import Question
from store.sources.reports import LeftOut, count_lines

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

    def summary(self, path: Path, store: TraceStore) -> str:
        """What the store holds, and what was left out, a line each."""
        lines = [f"{path}: {len(store):,} traces of {self.questions:,} questions"]
        if "label" in store.schema.columns and len(store):
            labels = store.read(range(len(store)), ["label"])["label"]
            meanings = ((1, "wrong (label 1)"), (0, "right (label 0)"), (-1, "without a label"))
            lines += count_lines((int((labels == value).sum()), text) for value, text in meanings)
        lines += count_lines([(self.skipped.n, "questions left out")])
        return "\n".join([*lines, *self.skipped.lines()])


def choose_device(name: str | None) -> torch.device:
    """The device of that name, or the best there is; raises SchemaError if it does not work."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise SchemaError(f"device: expected one like cpu or cuda:0, found {name!r}: {_first_line(error)}") from error
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
    unreadable = (OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError)
    unreadable += (ImportError, SafetensorError)  # whatever a damaged configuration leads to
    expected = f"model {name!r}: expected a model's directory or its name on the Hugging Face Hub"
    if name.startswith((".", "/")) and not Path(name).is_dir():
        raise NotFoundError(f"{expected}, found no such directory")
    try:
        AutoConfig.from_pretrained(name, trust_remote_code=False)
    except unreadable as error:
        raise NotFoundError(f"{expected}, found: {_first_line(error)}") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except unreadable as error:
        raise NotFoundError(f"model {name!r}: expected a tokenizer with it, found: {_first_line(error)}") from error
    attention = {"attn_implementation": "eager"} if maps else {}
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            name, dtype=DTYPES[dtype], output_loading_info=True, trust_remote_code=False, **attention
        )
    except unreadable as error:
        raise SchemaError(f"model {name!r}: expected a causal language model, found: {_first_line(error)}") from error
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


def _check_weights(name: str, missing: Iterable[str], unexpected: Iterable[str]) -> None:
    """Refuse a model whose weights are not those of its configuration: what answers would be another model."""
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
    """Refuse a model whose tokens see those behind them: what it says of a token would depend on what comes later."""
    ids = torch.tensor([[1, 2, 3, 0], [1, 2, 3, 4]], device=model.device) % model.config.get_text_config().vocab_size
    with torch.inference_mode():
        one, other = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    rounding = 16 * torch.finfo(model.dtype).eps
    if (one - other).abs().max() > rounding * one.abs().max():
        raise SchemaError(
            f"model {model.name_or_path!r}: expected a causal language model, found {type(model).__name__}, in which "
            "tokens see those behind them"
        )


def take_fitting(questions: Sequence[Question], prompts: Prompts) -> tuple[list[Question], ExtractReport]:
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
