"""The formula of the memory, against the peak of tiny models."""

import ctypes
import gc
import os
from pathlib import Path

import pytest
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from store.sources.example import MODEL_DIR
from store.sources.huggingface.outline import model_shape
from store.sources.huggingface.source import HuggingFaceSource
from store.sources.plan.memory import BatchShape, plan_memory, trace_bytes

FACTOR = 2  # between what is planned and what is measured, either way
N_TRACES = 12
N_NEW = 12
QUESTIONS = [
    {"question_id": f"q{i}", "question": "July Lima in Oslo " * 30, "answers": []}
    for i in range(N_TRACES)
]
CASES = {
    "maps of many heads": ({"num_attention_heads": 16}, None),
    "logits of many ids": ({"vocab_size": 16_000}, ["logprob", "hs_last"]),
    "wide layers": ({"intermediate_size": 4096}, ["hidden_states"]),
}


def resident(field):
    """Bytes of this process, by the kernel's name."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def peak_of(run):
    """The most memory that this process had while it ran, over what it had before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed would be used again, and not be seen
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no peak to reset")
@pytest.mark.parametrize("case", CASES)
def test_the_peak_is_within_a_factor_of_two(case):
    """Of tiny models whose batches take far more than they."""
    sizes, columns = CASES[case]
    general = {
        "vocab_size": 284,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 1024,
    }
    model = LlamaForCausalLM(LlamaConfig(**(general | sizes))).eval()
    model.set_attn_implementation("eager" if columns is None else "sdpa")
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR, model_max_length=1024)

    def build(questions, n_new):
        return HuggingFaceSource(
            model, tokenizer, questions, batch_size=N_TRACES, max_new_tokens=n_new, columns=columns
        )

    list(build(QUESTIONS[:1], 1).rows())  # what is imported and kept once
    source = build(QUESTIONS, N_NEW)
    n_prompt = len(source.prompts.encode(QUESTIONS[0]).ids)
    batch = BatchShape(N_TRACES, 1, n_prompt + N_NEW, n_prompt, is_generated=True)
    column_bytes = trace_bytes(source.schema, n_prompt, N_NEW)
    need = plan_memory(model_shape(model), batch, list(source.schema.columns), column_bytes)
    measured = peak_of(lambda: list(source.rows()))
    planned = need.device - need.weights + need.columns
    assert measured / FACTOR < planned < measured * FACTOR


def test_what_is_not_kept_needs_no_memory():
    """Neither logits nor maps, nor the answers that are given."""
    shape = model_shape(LlamaForCausalLM(LlamaConfig(**SMALL)))
    batch = BatchShape(4, 1, 100, 90, is_generated=False)
    few = plan_memory(shape, batch, ["hs_last"], 10)
    assert few.generation == 0
    assert few.second_pass < plan_memory(shape, batch, ["hs_last", "logprob"], 10).second_pass
    assert few.second_pass < plan_memory(shape, batch, ["hs_last", "attn_mean"], 10).second_pass
    assert few.columns == 3 * 4 * 10


SMALL = {
    "vocab_size": 30,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
