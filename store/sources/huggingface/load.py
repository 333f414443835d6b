"""Loads a causal language model and its tokenizer, from a directory or the Hugging Face Hub.

What is wrong with a model (no such model, missing weights, not causal) is a `StoreError` of one
line.

A model is read onto the CPU and then put on one device. With a device map, or quantized, it is put
where it belongs while it is read, by accelerate, so that no more memory is needed than it takes.
"""

import logging as python_logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import (
    get_hf_file_metadata,
    hf_hub_url,
    is_offline_mode,
    try_to_load_from_cache,
)
from huggingface_hub.errors import HfHubHTTPError, StrictDataclassError
from safetensors import SafetensorError
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
    "QUANTIZE",
    "be_quiet",
    "check_packages",
    "choose_device",
    "load_classifier",
    "load_model",
    "reading",
]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "auto": "auto"}
QUANTIZE = ("8bit", "4bit")
UNREADABLE = (  # what transformers raises for a damaged model
    OSError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
    ImportError,
    SafetensorError,
    StrictDataclassError,
)
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


def check_packages(quantize: str | None, device_map: str | None) -> None:
    """Raise NotFoundError, with the command that installs it, for a package that is missing."""
    modules = ["accelerate"] if device_map or quantize else []
    if quantize:
        modules.append("bitsandbytes")
    for module in modules:
        with needs_extra("quantize" if quantize else "device-map"):
            import_module(module)


def load_model(
    name: str,
    dtype: str,
    device: torch.device,
    *,
    maps: bool,
    quantize: str | None = None,
    device_map: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal model and its tokenizer.

    Parameters
    ----------
    name
        Directory, or name on the Hugging Face Hub.
    quantize
        '8bit' (LLM.int8) or '4bit' (NF4): bitsandbytes rounds the weights of the linear layers.
    device_map
        'auto': accelerate spreads the layers over all GPUs, then the CPU's memory, instead of
        `device`.

    Raises
    ------
    NotFoundError
        There is no such model, no tokenizer with it, or a package is missing.
    SchemaError
        It is no causal model, some of its weights are missing, or it does not fit.
    """
    python_logging.getLogger("bitsandbytes").setLevel(python_logging.ERROR)  # it names each cast
    check_packages(quantize, device_map)
    be_quiet()
    expected = f"model {name!r}: expected a model's directory or its name on the Hugging Face Hub"
    if name.startswith((".", "/")) and not Path(name).is_dir():
        raise NotFoundError(f"{expected}, found no such directory")
    is_local = _must_be_local(name)
    with reading(NotFoundError, expected):
        config = AutoConfig.from_pretrained(
            name, local_files_only=is_local, trust_remote_code=False
        )
    with reading(NotFoundError, f"model {name!r}: expected a tokenizer with it"):
        tokenizer = AutoTokenizer.from_pretrained(
            name, local_files_only=is_local, trust_remote_code=False
        )
    placement = _placement(config, dtype, device, quantize, device_map)
    where = "the devices" if device_map else str(device)
    try:
        model = _load_weights(name, dtype, is_local, maps, placement).eval()
        if not placement:
            model = model.to(device)
    except torch.OutOfMemoryError as error:
        raise SchemaError(
            f"model {name!r}: out of memory: its weights do not fit on {where}; choose a smaller "
            "--dtype, --quantize 4bit, --device-map auto or another --device"
        ) from error
    if model.device.type == "meta":  # every layer would be read from the disk for every token
        raise SchemaError(
            f"model {name!r}: its weights do not fit on {where}; choose a smaller --dtype or "
            "--quantize 4bit"
        )
    _check_causal(model)
    return model, tokenizer


def load_classifier(
    name: str, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a sequence classifier and its tokenizer, in float32, from this machine alone.

    Parameters
    ----------
    name
        Directory, or name of a model in the cache of the Hugging Face Hub; with weights in
        safetensors.

    Raises
    ------
    NotFoundError
        There is no such model, or no tokenizer with it.
    SchemaError
        It is no sequence classifier, some of its weights are missing, or it does not fit.
    """
    be_quiet()
    from_here = {"local_files_only": True, "trust_remote_code": False}
    expected = (
        f"model {name!r}: expected a directory, or a model in the cache of Hugging Face, where "
        "hf download puts it"
    )
    if name.startswith((".", "/")) and not Path(name).is_dir():
        raise NotFoundError(f"{expected}, found no such directory")
    with reading(NotFoundError, expected):
        AutoConfig.from_pretrained(name, **from_here)
    with reading(NotFoundError, f"model {name!r}: expected a tokenizer with it"):
        tokenizer = AutoTokenizer.from_pretrained(name, **from_here)
    # of some architectures transformers makes one without words where there is no file of it
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise NotFoundError(f"model {name!r}: expected a tokenizer with it, found no vocabulary")
    loaded: Any  # a model and what transformers reports on its weights
    with reading(SchemaError, f"model {name!r}: expected a sequence classifier in safetensors"):
        loaded = AutoModelForSequenceClassification.from_pretrained(
            name, dtype=torch.float32, output_loading_info=True, use_safetensors=True, **from_here
        )
    model, info = loaded
    absent = sorted(info["missing_keys"])
    if absent:  # transformers would draw them at random
        raise SchemaError(
            f"model {name!r}: expected a sequence classifier with all weights, found "
            f"{len(absent)} missing, first {absent[0]!r}"
        )
    try:
        return model.eval().to(device), tokenizer
    except torch.OutOfMemoryError as error:
        raise SchemaError(
            f"model {name!r}: out of memory: its weights do not fit on {device}; choose another "
            "--device"
        ) from error


def be_quiet() -> None:
    logging.set_verbosity_error()  # what matters becomes a StoreError
    logging.disable_progress_bar()


def _placement(
    config: PreTrainedConfig,
    dtype: str,
    device: torch.device,
    quantize: str | None,
    device_map: str | None,
) -> dict[str, Any]:
    """Arguments of `from_pretrained` that put weights where they belong while they are read.

    Nothing for one device and whole weights. Quantized weights cannot move later.
    """
    placement: dict[str, Any] = {}
    if quantize is not None:
        placement["quantization_config"] = _quantization(config, dtype, quantize)
    if device_map or quantize or getattr(config, "quantization_config", None):
        placement["device_map"] = device_map or {"": device}
    return placement


def _quantization(config: PreTrainedConfig, dtype: str, quantize: str) -> BitsAndBytesConfig:
    """LLM.int8 (Dettmers et al. 2022), or NF4 (Dettmers et al. 2023) that computes in `dtype`."""
    if quantize == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    compute_dtype = config.dtype if dtype == "auto" else DTYPES[dtype]
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=compute_dtype or torch.bfloat16,
    )


def _load_weights(
    name: str, dtype: str, is_local: bool, maps: bool, placement: dict[str, Any]
) -> PreTrainedModel:
    """The model; raises SchemaError unless its weights fit its configuration."""
    loaded: Any  # a model and what transformers reports on its weights
    with reading(SchemaError, f"model {name!r}: expected a causal language model"):
        loaded = AutoModelForCausalLM.from_pretrained(
            name,
            dtype=DTYPES[dtype],
            output_loading_info=True,
            local_files_only=is_local,
            trust_remote_code=False,
            attn_implementation="eager" if maps else None,
            **placement,
        )
    model, info = loaded
    absent = sorted(info["missing_keys"])
    if absent:  # transformers would draw them at random
        raise SchemaError(
            f"model {name!r}: expected all weights, found {len(absent)} missing, first "
            f"{absent[0]!r}; check that it is a causal language model"
        )
    surplus = sorted(filter(_LAYER.search, info["unexpected_keys"]))
    if surplus:
        raise SchemaError(
            f"model {name!r}: expected the layers of its configuration, found {len(surplus)} "
            f"weights of others, first {surplus[0]!r}; check config.json"
        )
    return model


@contextmanager
def reading(error_type: type[StoreError], expected: str) -> Iterator[None]:
    """Raise a StoreError for whatever a damaged model makes transformers raise."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except UNREADABLE as error:
        raise error_type(f"{expected}, found: {_first_line(error)}") from error


def _must_be_local(name: str) -> bool:
    """Whether a model must come from this machine: a directory, or the Hub cannot be reached.

    Without a network transformers tries every file of a model six times, half a minute each, even
    of a model that is in the cache; so one request is made first. Raises NotFoundError if the model
    is in neither place.
    """
    if Path(name).is_dir() or is_offline_mode():
        return True
    try:
        cached = isinstance(try_to_load_from_cache(name, "config.json"), str)
    except ValueError:  # no name that the Hub could have: transformers has the best message
        return False
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"))
    except HfHubHTTPError:
        return False  # the Hub answers, if only that there is no such model
    except Exception as error:  # of a class of the HTTP library's, which changes with the version
        if cached:
            return True
        raise NotFoundError(
            f"model {name!r}: expected a directory, or a model of the Hugging Face Hub, found no "
            f"such directory, and the Hub cannot be reached: {_first_line(error)}"
        ) from error
    return False


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
