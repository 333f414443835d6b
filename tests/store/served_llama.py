"""A Llama whose weights are the same everywhere, for an engine and for tests."""

import math
import random

import torch
from sources.huggingface.character_tokenizer import build_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

N_LAYERS = 4
HIDDEN = 64  # one head of the smallest size that vLLM has


def build_llama():
    """The model and its tokenizer, which has one token per character."""
    tokenizer = build_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=64,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config).eval()
    for name, weight in model.named_parameters():
        weight.data = _numbers(name, weight.shape)
    return model, tokenizer


def _numbers(name, shape):
    """Uniform numbers from Python's generator, whose stream is promised; float32 of a shape."""
    draw = random.Random(name).random  # noqa: S311 - weights
    drawn = torch.tensor([draw() - 0.5 for _ in range(math.prod(shape))]).reshape(shape)
    return 1 + drawn if len(shape) == 1 else drawn * 3 / math.sqrt(shape[-1])
