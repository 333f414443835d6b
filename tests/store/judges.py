"""Tiny models that judge: one that always says the same, and one that compares texts."""

import math
import re
from types import SimpleNamespace

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = [chr(code) for code in range(32, 127)] + ["\n"]
WORDS = ["yes", "Yes", "no", "No", "Correct", "incorrect"]


def build_judge_tokenizer(chat_template=None):
    """One token a character, but for the words of verdicts."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "</s>", *CHARACTERS, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<pad>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.chat_template = chat_template
    return fast


def build_judge_model(tokenizer, says=None, longest=2048):
    """A random model; with `says` (token -> probability) it says the same whatever it reads."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=longest,
        initializer_range=0.5,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config).eval()
    if says is not None:
        _make_constant(model, tokenizer, says)
    return model


def _make_constant(model, tokenizer, says):
    """Every hidden state is 1 in each place, so that a row of the output is a logit / d each."""
    rest = (1 - sum(says.values())) / (len(tokenizer) - len(says))
    ids = tokenizer.get_vocab()
    with torch.no_grad():
        model.model.embed_tokens.weight.fill_(1.0)
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight.fill_(math.log(max(rest, 1e-9)) / 16)
        for token, p in says.items():
            model.lm_head.weight[ids[token]] = math.log(p) / 16


class ComparingModel(LlamaForCausalLM):
    """Says yes if the answer in its prompt is one of the references, no if not; shrugs at '?'."""

    tokenizer = None
    widest = 0

    def generate(self, input_ids, attention_mask, **_):
        self.widest = max(self.widest, len(input_ids))
        ids = self.tokenizer.get_vocab()
        logits = torch.zeros(len(input_ids), self.config.vocab_size)
        for row, (prompt, mask) in enumerate(zip(input_ids, attention_mask, strict=True)):
            text = self.tokenizer.decode(prompt[mask.bool()])
            if "Right answers: " not in text:
                continue
            references = re.search("Right answers: (.*)", text)[1].split("; ")
            answer = re.search("Answer to judge: (.*)", text)[1]
            word = "Yes" if answer in references else "no"
            logits[row, ids[" " if answer == "?" else word]] = 9.0
        return SimpleNamespace(logits=(logits,))


def build_comparing_model(tokenizer):
    plain = build_judge_model(tokenizer)
    model = ComparingModel(plain.config).eval()
    model.tokenizer = tokenizer
    return model
