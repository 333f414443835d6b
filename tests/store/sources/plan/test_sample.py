"""The memory of a sample, scaled, against the peak of tiny models."""

import ctypes
import gc
import os

import pytest
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from store.sources.example import MODEL_DIR
from store.sources.huggingface.generation import Decoding
from store.sources.huggingface.kept import Kept
from store.sources.huggingface.prompts import Prompts
from store.sources.huggingface.source import HuggingFaceSource
from store.sources.plan.measures import Peak, choose_sample, measure_sample

FACTOR = 2  # between what is planned and what is measured, either way
N_TRACES, N_SAMPLED = 12, 4
QUESTIONS = [
    {"question_id": f"q{i}", "question": "July Lima in Oslo " * 30, "answers": []}
    for i in range(N_TRACES)
]
CASES = {
    "maps of many heads": ({"num_attention_heads": 16}, None),
    "logits of many ids": ({"vocab_size": 16_000}, ["logprob", "hs_last"]),
    "wide layers": ({"intermediate_size": 4096}, ["hidden_states"]),
}
SLOW = sorted(CASES.keys() - {"wide layers"})
SAMPLED = ["prompt_len", "answer_len", "answer"]


def free_memory():
    """What was freed would be used again, and not be seen."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no peak to reset")
@pytest.mark.parametrize(
    "case", ["wide layers", *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_the_peak_is_within_a_factor_of_two(case):
    """Of batches that are three times as large as the sample."""
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

    def measure(questions):
        prompts = Prompts(tokenizer, model, "{question}", False, 12)
        encoded = [prompts.encode(question) for question in questions]
        kept = Kept(columns=columns and columns + SAMPLED)
        decoding = Decoding(max_new_tokens=12)
        source = HuggingFaceSource(model, prompts, encoded, decoding, kept, batch_size=N_TRACES)
        free_memory()
        return measure_sample(source, N_TRACES, load_s=0.0)

    measure(QUESTIONS[:1])  # what is imported and kept once
    sample = measure(choose_sample(QUESTIONS, N_SAMPLED))
    assert sample.n_traces == N_SAMPLED
    planned = sample.host.scaled(N_TRACES / N_SAMPLED) - sample.host.loaded
    whole = measure(QUESTIONS).host
    measured = whole.highest - whole.loaded
    assert measured / FACTOR < planned < measured * FACTOR


def test_only_what_batches_take_is_scaled():
    """Not the model that is loaded; and a batch never gives memory back."""
    assert Peak(1000, 1200).scaled(4) == 1800
    assert Peak(1000, 900).scaled(4) == 1000
