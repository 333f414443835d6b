"""Where an extraction's numbers come from: the model, its files and the conventions of a trace."""

import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.labels.grading import Grader
from store.labels.rule import AS_GIVEN
from store.sources.huggingface.decoding import Decoding
from store.sources.huggingface.fingerprints import (
    config_digest,
    tokenizer_digest,
    weights_checksum,
    weights_digest,
)
from store.sources.huggingface.generation import end_ids
from store.traces.origin import FINAL_NORM, TRACE_CONVENTION

__all__ = [
    "conventions",
    "describe_decoding",
    "describe_labels",
    "describe_model",
    "package_versions",
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
PACKAGES = ("numpy", "tokenizers", "torch", "transformers")


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
) -> dict[str, Any]:
    """What decides the numbers of a trace whose tokens are given, JSON-able."""
    return {
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
        **_describe_quantization(model),
    }


def _describe_quantization(model: PreTrainedModel) -> dict[str, Any]:
    """How the weights were rounded; nothing if they were not."""
    config = getattr(model.config, "quantization_config", None)
    if config is None:
        return {}
    settings = config if isinstance(config, dict) else config.to_dict()
    described = json.loads(json.dumps(settings, default=str))
    return {"quantization": described | {"weights": QUANTIZED_WEIGHTS}}


def describe_decoding(
    model: PreTrainedModel, decoding: Decoding, max_new_tokens: int, stop: str | None
) -> dict[str, Any]:
    """What decides where an answer goes and where it ends, JSON-able."""
    return {
        **decoding.describe(),
        "max_new_tokens": max_new_tokens,
        "stop": stop,
        "end_ids": sorted(end_ids(model)),
    }


def describe_labels(grader: Grader, *, is_given: bool) -> dict[str, Any]:
    """How labels come about, JSON-able."""
    described = grader.describe()
    if is_given:
        described["label_rule"] = f"{AS_GIVEN}, else: {described['label_rule']}"
    return described


def package_versions() -> dict[str, str]:
    """The versions of the packages that compute the numbers."""
    return {name: version(name) for name in PACKAGES}
