"""Checksums that tell models, tokenizers and questions apart, for the provenance of a store."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from crc32c import crc32c
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "config_digest",
    "digest_of",
    "tokenizer_digest",
    "weights_checksum",
    "weights_digest",
]

N_NUMBERS = 64  # of each parameter in `weights_digest`
WITHOUT_EFFECT = ("_name_or_path", "transformers_version")
SET_BY_EACH_CALL = ("padding", "truncation")


def digest_of(value: Any) -> str:
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
