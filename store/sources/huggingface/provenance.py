"""Where an extraction's numbers come from: the model, its files and the conventions of a trace."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

import torch
from crc32c import crc32c
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.sources.huggingface.generation import Decoding, end_ids
from store.traces.origin import FINAL_NORM, TRACE_CONVENTION

__all__ = [
    "conventions",
    "describe_decoding",
    "describe_model",
    "digest_of",
    "weights_checksum",
    "weights_digest",
]

LAYER_CONVENTION = (
    "layers 1..L of transformers' hidden_states; the embedding output (entry 0) is left out; "
    "entry L is as transformers returns it, for Llama and most others after the model's final norm"
)
EMBEDDING_CONVENTION = (
    "layers 1..L of transformers' hidden_states, and 0, the embedding output, for which each token "
    "attends to itself alone; entry L is as transformers returns it, for Llama and most others "
    "after the model's final norm"
)
WITHOUT_APPENDED = "; what the tokenizer appends to a prompt is left out"
PREDICTION_CONVENTION = (
    "entry t of logprob, entropy and topk_ is of the distribution that predicted token t, nothing "
    "predicted token 0 (NaN, -1); lens_entropy[t] is of the token after token t; eos_logprob is of "
    "an end-of-sequence token after the last one"
)
QUANTIZED_WEIGHTS = (
    "weights_sha256 and weights_crc32c are of the quantized weights and their scales"
)
N_NUMBERS = 64  # of each parameter in `weights_digest`
WITHOUT_EFFECT = ("_name_or_path", "transformers_version")
SET_BY_EACH_CALL = ("padding", "truncation")


def conventions(
    layers: Sequence[int], n_layers: int, *, appends: bool
) -> dict[str, str | bool | None]:
    """What layers, tokens and predictions mean, of a tokenizer that `appends` special tokens."""
    return {
        "layer_convention": EMBEDDING_CONVENTION if 0 in layers else LAYER_CONVENTION,
        FINAL_NORM: True if n_layers in layers else None,
        "trace_convention": TRACE_CONVENTION + WITHOUT_APPENDED * appends,
        "prediction_convention": PREDICTION_CONVENTION,
    }


def describe_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    name: str | None,
    attn_implementation: str | None,
) -> dict[str, object]:
    """What decides the numbers of a trace whose tokens are given, JSON-able."""
    described: dict[str, object] = {
        "model": name,
        "revision": getattr(model.config, "_commit_hash", None),
        "architecture": type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "attn_implementation": attn_implementation,
        "weights_sha256": weights_digest(model),
        "weights_crc32c": weights_checksum(model),
        "config_sha256": config_digest(model),
        "tokenizer_sha256": tokenizer_digest(tokenizer),
    }
    config = getattr(model.config, "quantization_config", None)
    if config is not None:  # how the weights were rounded
        settings = config if isinstance(config, dict) else config.to_dict()
        rounding = json.loads(json.dumps(settings, default=str))
        described["quantization"] = rounding | {"weights": QUANTIZED_WEIGHTS}
    return described


def describe_decoding(model: PreTrainedModel, decoding: Decoding) -> dict[str, object]:
    """What decides where an answer goes and where it ends, JSON-able."""
    return {
        **decoding.describe(),
        "max_new_tokens": decoding.max_new_tokens,
        "stop": decoding.stop,
        "end_ids": sorted(end_ids(model)),
    }


def digest_of(value: object) -> str:
    """SHA-256 of something JSON-able."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def config_digest(model: PreTrainedModel) -> str:
    """SHA-256 of what changes a value in a model's configuration."""
    config = model.config.to_dict()
    return digest_of({key: value for key, value in config.items() if key not in WITHOUT_EFFECT})


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of everything that decides how a tokenizer cuts a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return digest_of([tokenizer.get_vocab(), tokenizer.special_tokens_map])
    state = json.loads(backend.to_str())
    return digest_of({key: value for key, value in state.items() if key not in SET_BY_EACH_CALL})


def weights_checksum(model: PreTrainedModel) -> str:
    """CRC32C of every byte of the weights: differs if a model was changed anywhere.

    Of a quantized model these are the bytes that it computes with: the quantized weights and their
    scales.
    """
    checksum = 0
    for name, entry in sorted(model.state_dict().items()):
        with _present(model, name, entry) as tensor:
            data = _bytes_of(tensor)
        checksum = crc32c(data, crc32c(name.encode(), checksum))
    return f"{checksum:08x}"


def weights_digest(model: PreTrainedModel) -> str:
    """SHA-256 over the first numbers of every parameter, as stores have always recorded it."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        with _present(model, name, parameter) as tensor:
            numbers = _bytes_of(tensor.detach().reshape(-1)[:N_NUMBERS])
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        digest.update(numbers)
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


@contextmanager
def _present(model: PreTrainedModel, name: str, tensor: Tensor) -> Iterator[Tensor]:
    """A tensor of a model; fetched if accelerate has moved it out of the way for now."""
    if not tensor.is_meta:
        yield tensor
        return
    align = import_module("accelerate.utils").align_module_device  # it put the tensor there
    module_name, _, own_name = name.rpartition(".")
    module = model.get_submodule(module_name)
    with align(module):
        yield getattr(module, own_name)
