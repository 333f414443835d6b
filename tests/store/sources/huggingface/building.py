"""Random models, their prompts, and sources from the settings that tests change."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from store.labels.grading import Grader
from store.sources.huggingface.generation import Decoding
from store.sources.huggingface.kept import Kept
from store.sources.huggingface.prompts import Prompts
from store.sources.huggingface.source import HuggingFaceSource

TEXTS = ["1+1", "1234*99", "7-8", "12+345", "5", "98-7", "31415-9265", "2*2*2"]
QUESTIONS = [
    {"question_id": f"q{i}", "question": text, "answers": [str(i), f"{i}{i}"] if i % 4 else []}
    for i, text in enumerate(TEXTS)
]
LLAMA_LIKE = {"num_key_value_heads": 1, "intermediate_size": 32}
ARCHITECTURES = {
    "llama": LLAMA_LIKE,
    "gpt2": {},
    "qwen2": LLAMA_LIKE,
    "qwen3": LLAMA_LIKE | {"head_dim": 8},
    "gemma": LLAMA_LIKE | {"head_dim": 8},
    "gemma2": LLAMA_LIKE | {"head_dim": 8, "sliding_window": 4, "final_logit_softcapping": 3.0},
    "mistral": LLAMA_LIKE | {"sliding_window": 4},
    "gpt_neox": {"intermediate_size": 32},
    "phi": {"intermediate_size": 32},
    "opt": {"ffn_dim": 32, "word_embed_proj_dim": 16},
    "bloom": {"n_head": 2, "n_layer": 3},
    "falcon": {"num_kv_heads": 1},
    "gptj": {"rotary_dim": 4},
}


def kinds_of_models(*kinds):
    """Each kind is a change of the code; two tell what a change of ours breaks."""
    return [
        kind if kind in ("llama", "gpt2") else pytest.param(kind, marks=pytest.mark.slow)
        for kind in kinds
    ]


def build_model(kind, tokenizer=None, **changes):
    """A random model, sharp enough that no rounding decides between two tokens."""
    torch.manual_seed(1)
    general = {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.5,
        "attn_implementation": "eager",
    }
    if tokenizer is not None:
        general["vocab_size"] = len(tokenizer)
        for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
            general[name] = getattr(tokenizer, name)
    config = CONFIG_MAPPING[kind](**general | ARCHITECTURES.get(kind, {}) | changes)
    return AutoModelForCausalLM.from_config(config).eval()


def build_prompts(tokenizer, template="Question: {question}\nAnswer:", *, chat=False, **settings):
    """Prompts for a model of 1,000 positions, or `n`."""
    n = settings.pop("n", 1000)
    config = GPT2Config(vocab_size=max(len(tokenizer), 1000), n_positions=n)
    return Prompts(tokenizer, SimpleNamespace(config=config), template, chat, 8, **settings)


def assert_same(found, expected):
    """Two rows, bit for bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def make_source(
    model,
    tokenizer,
    questions,
    *,
    template="{question}",
    chat=False,
    decoding=None,
    labels="exact",
    judge=None,
    source=HuggingFaceSource,
    **settings,
):
    """Settings of `Decoding` and `Kept` go there, the others to the source."""

    def taken(*names):
        return {name: settings.pop(name) for name in names if name in settings}

    answers = taken("max_new_tokens", "stop")
    kept = Kept(**taken("layers", "columns", "top_k", "has_context"))
    decoding = replace(decoding or Decoding(), **answers)
    prompts = Prompts(tokenizer, model, template, chat, decoding.max_new_tokens)
    encoded = [prompts.encode(question) for question in questions]
    grader = Grader(labels, judge=judge)
    return source(model, prompts, encoded, decoding, kept, grader, **settings)


def build_source(model, tokenizer, questions=QUESTIONS, **settings):
    """A source with short answers."""
    settings = {"batch_size": 8, "max_new_tokens": 5, "top_k": 4, **settings}
    return make_source(model, tokenizer, questions, **settings)
