"""A causal language model without its weights: what a plan is made from.

Nothing is downloaded, and no memory is needed for the parameters.
"""

from pathlib import Path

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from store.errors import NotFoundError, SchemaError
from store.sources.huggingface.load import DTYPES, be_quiet, reading

__all__ = ["load_outline", "local_folder", "weight_bytes"]

MAX_LAYERS = 10_000  # of a configuration: each one is built
# numbers a byte of what bitsandbytes makes of a linear layer: int8, and NF4 in blocks of 64 with a
# float32 each (Dettmers et al. 2022, 2023)
QUANTIZED_BYTES = {"8bit": 1.0, "4bit": 0.5 + 4 / 64}


def load_outline(
    name: str, dtype: str, *, maps: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | str]:
    """A causal model without its weights, on torch's device 'meta', and its tokenizer.

    Only files of this machine are read: nothing is downloaded.

    Parameters
    ----------
    name
        Directory, the path of a `config.json`, or the name of a model in the cache of the Hugging
        Face Hub.
    dtype
        One of `DTYPES`; 'auto' is that of the configuration, float32 where it has none.
    maps
        Whether attention maps are needed.

    Returns
    -------
    PreTrainedModel
        Its parameters have shapes and dtypes, no numbers.
    PreTrainedTokenizerBase or str
        Why there is none, where there is none.

    Raises
    ------
    NotFoundError
        There is no such configuration.
    SchemaError
        It is of no causal language model.
    """
    be_quiet()
    from_here = {"local_files_only": True, "trust_remote_code": False}
    path = Path(name)
    if name.startswith((".", "/")) and not path.exists():
        raise NotFoundError(
            f"model {name!r}: expected a model's directory or its config.json, found nothing there"
        )
    expected = (
        f"model {name!r}: expected a directory, a config.json, or a model in the cache of Hugging "
        "Face, where hf download NAME --include '*.json' puts what a plan needs"
    )
    with reading(NotFoundError, expected):
        config = AutoConfig.from_pretrained(name, **from_here)
    n_layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if not 0 <= n_layers <= MAX_LAYERS:
        raise SchemaError(f"model {name!r}: expected at most {MAX_LAYERS} layers, found {n_layers}")
    own_dtype = config.dtype or getattr(config.get_text_config(), "dtype", None)
    chosen = (own_dtype or torch.float32) if dtype == "auto" else DTYPES[dtype]
    expected = f"model {name!r}: expected the configuration of a causal language model"
    with reading(SchemaError, expected), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=chosen, attn_implementation="eager" if maps else None
        )
    folder = str(path.parent) if path.is_file() else name
    try:
        with reading(NotFoundError, "no tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(folder, **from_here)
    except NotFoundError as error:
        return model.eval(), str(error).rstrip(": ")
    # of some architectures transformers makes one without words where there is no file of it
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        return model.eval(), "no tokenizer with a vocabulary"
    return model.eval(), tokenizer


def local_folder(name: str) -> Path | None:
    """Where a model's files are: its directory, or that of the cache; None for a file alone."""
    if Path(name).exists():
        return Path(name) if Path(name).is_dir() else None
    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def weight_bytes(model: PreTrainedModel, quantize: str | None = None) -> int:
    """The bytes of all parameters, with or without numbers.

    `quantize` says how its linear layers, but for the output embedding, will be rounded.
    """
    total = float(sum(weight.nbytes for weight in model.parameters()))
    if quantize is None:
        return round(total)
    head = model.get_output_embeddings()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module is not head:
            total -= module.weight.nbytes
            total += module.weight.numel() * QUANTIZED_BYTES[quantize]
    return round(total)
