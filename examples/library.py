"""Fit detectors in Python, keep them in one file, and score what a language model says.

Run it in the checkout, where `make train` has built the example store:

    python examples/library.py data/example.zarr guard.safetensors
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from store import TraceStore
from store.sources.example import MODEL_DIR
from train import fit_detectors, load_run


def main(path: str, file: str) -> None:
    """Fit, export, load and watch."""
    layers = ("1-2", "3-4")
    runs = [fit_detectors(path, "saplma", baselines=False, seeds=1, layers=one) for one in layers]
    best = max(runs, key=lambda run: run.results["saplma"].val.auroc)
    print(f"AUROC on test: {best.results['saplma'].test.auroc:.2f}")
    best.export(file)

    guard = load_run(file)  # needs neither the run nor the store
    traces = TraceStore.open(path)[:3]
    for trace, score in zip(traces, guard.score(traces)["saplma"], strict=True):
        print(f"{score:.2f} {trace['question']} {trace['answer']}")

    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    asked = ["Does Ada like chess?", "Who likes tea: Ada?"]
    prompts = tokenizer(asked, padding=True, return_tensors="pt")
    inputs = {"input_ids": prompts.input_ids, "attention_mask": prompts.attention_mask}
    with guard.watch(model, tokenizer) as watch:
        model.generate(**inputs, max_new_tokens=12)
    for tokens, scores in zip(watch.tokens, watch.scores, strict=True):
        is_risky = scores["saplma"] >= guard.thresholds["saplma"]
        print(f"{scores['saplma']:.2f} {tokenizer.decode(tokens)}{' (risky)' * is_risky}")


if __name__ == "__main__":
    main(*sys.argv[1:])
