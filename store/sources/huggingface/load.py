"""Loads a causal language model and its tokenizer, from a directory or the Hugging Face Hub.

What is wrong with a model (no such model, missing weights, not causal) is a `StoreError` of one
line. A model is read onto the CPU and then put on one device. With a device map, or quantized, it
is put where it belongs while it is read, by accelerate, so that no more memory is needed than it
takes.

Answers are generated with torch's scaled dot product attention, which never holds a map. Only the
eager implementation gives maps, to the second pass alone. A model that cannot change its
implementation while it is loaded, or whose parts have configurations of their own, keeps the one
that it has.
"""

import logging as python_logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from store.errors import NotFoundError, SchemaError, StoreError
from store.extras import needs_extra

__all__ = [
    "DTYPES",
    "EAGER",
    "attention",
    "can_give_maps",
    "choose_device",
    "generation_attention",
    "implementation_of",
    "load_classifier",
    "load_model",
]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "auto": "auto"}
EAGER = "eager"
FAST = "sdpa"
_LAYER = re.compile(r"(^|\.)(layers|h|blocks|block)\.\d+\.(?!.*inv_freq)")


def choose_device(name: str | None) -> torch.device:
    """The device of that name, or the best one; raises SchemaError if it does not work."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise SchemaError(
            f"device: expected one like cpu or cuda:0, found {name!r}: {_first_line(error)}"
        ) from error
    return device


def load_model(
    name: str,
    dtype: str,
    device: torch.device,
    *,
    maps: bool,
    quantize: str | None = None,
    device_map: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal model and its tokenizer, from a directory or the Hugging Face Hub.

    `quantize`: '8bit' (LLM.int8) or '4bit' (NF4): bitsandbytes rounds the weights of the linear
    layers. `device_map`: 'auto': accelerate spreads the layers over all GPUs, then the CPU's
    memory, instead of `device`.

    Raises NotFoundError: there is no such model, no tokenizer with it, or a package is missing;
    SchemaError: it is no causal model, some of its weights are missing, or it does not fit.
    """
    python_logging.getLogger("bitsandbytes").setLevel(python_logging.ERROR)  # it names each cast
    modules = ["accelerate"] if device_map or quantize else []
    if quantize:
        modules.append("bitsandbytes")
    for module in modules:
        with needs_extra("quantize" if quantize else "device-map"):
            import_module(module)
    expected = "a model's directory or its name on the Hugging Face Hub"
    is_local = Path(name).is_dir()
    config = _read_config(name, expected, is_local)
    tokenizer = _read_tokenizer(name, is_local)
    placement = _placement(config, dtype, device, quantize, device_map)
    advice = "choose a smaller --dtype or --quantize 4bit"
    place = "the devices" if device_map else str(device)
    with _fitting(name, place, "a smaller --dtype, --quantize 4bit, --device-map auto or another"):
        model, info = _read_weights(
            AutoModelForCausalLM,
            "a causal language model",
            name,
            dtype=DTYPES[dtype],
            local_files_only=is_local,
            attn_implementation=EAGER if maps else None,
            **placement,
        )
        if not placement:
            model = model.to(device)
    surplus = sorted(filter(_LAYER.search, info["unexpected_keys"]))
    if surplus:
        raise SchemaError(
            f"model {name!r}: expected the layers of its configuration, found {len(surplus)} "
            f"weights of others, first {surplus[0]!r}; check config.json"
        )
    if model.device.type == "meta":  # every layer would be read from the disk for every token
        raise SchemaError(f"model {name!r}: its weights do not fit on {place}; {advice}")
    _check_causal(model)
    return model, tokenizer


def load_classifier(
    name: str, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a sequence classifier and its tokenizer, in float32, from this machine alone.

    From a directory, or the cache of the Hugging Face Hub; its weights are in safetensors. Raises
    as `load_model` does.
    """
    expected = "a directory, or a model in the cache of Hugging Face, where hf download puts it"
    _read_config(name, expected, is_local=True)
    tokenizer = _read_tokenizer(name, is_local=True)
    with _fitting(name, str(device), "another"):
        model, _ = _read_weights(
            AutoModelForSequenceClassification,
            "a sequence classifier in safetensors",
            name,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
        )
        return model.to(device), tokenizer


def implementation_of(model: PreTrainedModel) -> str | None:
    """The implementation of attention that a model has now; None for some without attention."""
    return model.config._attn_implementation


def can_give_maps(model: PreTrainedModel) -> bool:
    """Whether a model has the implementation that gives maps, or can change to it."""
    return implementation_of(model) == EAGER or _can_change(model)


def generation_attention(model: PreTrainedModel) -> str | None:
    """The implementation to generate answers with: the fast one instead of the eager one."""
    # a model whose attention needs more (a cap on logits, sinks) does not support the fast one
    if implementation_of(model) == EAGER and model._supports_sdpa and _can_change(model):
        return FAST
    return implementation_of(model)


@contextmanager
def attention(model: PreTrainedModel, implementation: str | None) -> Iterator[None]:
    """Run a model with an implementation for a while; then it has its own again."""
    own = implementation_of(model)
    if own is None or implementation is None or implementation == own:
        yield
        return
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(own)


def _can_change(model: PreTrainedModel) -> bool:
    return not model.config.sub_configs and model._can_set_attn_implementation()


def _read_config(name: str, expected: str, is_local: bool) -> PreTrainedConfig:
    if name.startswith((".", "/")) and not Path(name).is_dir():  # it can only be a path
        raise NotFoundError(f"model {name!r}: expected {expected}, found no such directory")
    logging.set_verbosity_error()  # what matters becomes a StoreError
    logging.disable_progress_bar()
    with reading(NotFoundError, f"model {name!r}: expected {expected}"):
        return AutoConfig.from_pretrained(name, local_files_only=is_local, trust_remote_code=False)


def _read_tokenizer(name: str, is_local: bool) -> PreTrainedTokenizerBase:
    expected = f"model {name!r}: expected a tokenizer with it"
    tokenizer: PreTrainedTokenizerBase
    with reading(NotFoundError, expected):
        tokenizer = AutoTokenizer.from_pretrained(
            name, local_files_only=is_local, trust_remote_code=False
        )
    # of some architectures transformers makes one without words where there is no file of it
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise NotFoundError(f"{expected}, found no vocabulary")
    return tokenizer


def _read_weights(auto: Any, kind: str, name: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A model, and what transformers reports on its weights, none of which may be missing."""
    with reading(SchemaError, f"model {name!r}: expected {kind}"):
        model, info = auto.from_pretrained(
            name, output_loading_info=True, trust_remote_code=False, **options
        )
    absent = sorted(info["missing_keys"])
    if absent:  # transformers would draw them at random
        raise SchemaError(
            f"model {name!r}: expected all weights, found {len(absent)} missing, first "
            f"{absent[0]!r}; check that it is {kind}"
        )
    return model.eval(), info


@contextmanager
def _fitting(name: str, place: str, advice: str) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise SchemaError(
            f"model {name!r}: out of memory: its weights do not fit on {place}; choose {advice} "
            "--device"
        ) from error


def _placement(
    config: PreTrainedConfig,
    dtype: str,
    device: torch.device,
    quantize: str | None,
    device_map: str | None,
) -> dict[str, Any]:
    """Arguments of `from_pretrained` that put weights where they belong while they are read.

    Nothing for one device and whole weights. Quantized weights cannot move later: LLM.int8
    (Dettmers et al. 2022), or NF4 (Dettmers et al. 2023) that computes in `dtype`.
    """
    placement: dict[str, Any] = {}
    if quantize == "8bit":
        placement["quantization_config"] = BitsAndBytesConfig(load_in_8bit=True)
    elif quantize == "4bit":
        compute_dtype = config.dtype if dtype == "auto" else DTYPES[dtype]
        placement["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=compute_dtype or torch.bfloat16,
        )
    if device_map or quantize or getattr(config, "quantization_config", None):
        placement["device_map"] = device_map or {"": device}
    return placement


@contextmanager
def reading(error_type: type[StoreError], expected: str) -> Iterator[None]:
    """Raise a StoreError for whatever a damaged model makes transformers raise."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # they raise what they like
        raise error_type(f"{expected}, found: {_first_line(error)}") from error


def _check_causal(model: PreTrainedModel) -> None:
    """Raise SchemaError if tokens attend to later ones: their columns would depend on those."""
    n_ids = model.config.get_text_config().vocab_size
    ids = torch.tensor([[1, 2, 3, 0], [1, 2, 3, 4]], device=model.device) % n_ids
    with torch.inference_mode():
        one, other = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    rounding = 16 * torch.finfo(model.dtype).eps
    if (one - other).abs().max() > rounding * one.abs().max():
        raise SchemaError(
            f"model {model.name_or_path!r}: expected a causal language model, "
            f"found {type(model).__name__}, in which tokens attend to later ones"
        )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
