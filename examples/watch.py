"""Score each token of an answer as it comes, and end the answer at a risky one.

Run it in the checkout; examples/library.py makes the file:

    python examples/watch.py guard.safetensors "Does Ada like chess?"
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from store.sources.example import MODEL_DIR
from train import load_run

ABSTAIN_AT = 0.9


def main(file: str, question: str) -> None:
    """Generate, print tokens with their log-odds, and what is made of the answer."""
    guard = load_run(file)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    prompt = tokenizer(question, return_tensors="pt")
    inputs = {"input_ids": prompt.input_ids, "attention_mask": prompt.attention_mask}

    with guard.watch(model, tokenizer) as watch:
        watch.on_token(lambda token: print(tokenizer.decode(token.id), token.scores))
        rule = watch.stopping(at=ABSTAIN_AT)
        model.generate(**inputs, max_new_tokens=12, stopping_criteria=[rule])

    answer = tokenizer.decode(watch.tokens[0])
    print("I do not know." if rule.ended[0] else answer, watch.scores[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
