"""A sequence classifier that was trained on natural language inference: what follows from what?

Its labels are found by their names in its configuration: entailment, contradiction and, if it has
it, neutral, in any order and case.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.errors import SchemaError
from store.sources.huggingface.batching import Halving
from store.sources.huggingface.provenance import describe_model
from store.transform.samples.agreement import Inference, Pair

__all__ = ["HuggingFaceNli", "find_labels"]

LABELS = ("entailment", "contradiction")
MAYBE = "neutral"
# of tokens, where neither model nor tokenizer says how long an input may be
LONGEST = 512
UNLIMITED = 10**6  # tokenizers without a limit have a number of 30 digits
RESERVED = 2  # positions that RoBERTa does not use for tokens


class HuggingFaceNli:
    """Classifies pairs of a premise and a hypothesis.

    Pairs are sorted by length, so that a batch has little padding; too long ones are cut at the
    end of the longer text.

    `n_pairs`, `n_cut`: different pairs that it was given so far, and how many of them were cut.

    Raises SchemaError: its labels are not those of inference.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_size: int = 32,
        name: str | None = None,
    ) -> None:
        # a decoder finds the last token by the padding, and has no batches without
        padding = tokenizer.pad_token_id
        self._halving = Halving(batch_size if padding is not None else 1)
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or str(model.name_or_path)
        self.n_ids: int = model.config.get_text_config().vocab_size
        if padding is not None:
            model.config.get_text_config().pad_token_id = padding
        # behind the text, where it moves no position, but for XLNet, which reads the last place
        is_last = getattr(model.config, "summary_type", None) == "last"
        self._padding_side = "left" if is_last else "right"
        labels: dict[Any, str] = model.config.id2label or {}
        self.entailment, self.contradiction = find_labels(labels, self.name)
        self.longest = _longest_input(model, tokenizer)
        self._names = _names_of_inputs(model)
        self.n_pairs = 0
        self.n_cut = 0

    def infer(self, pairs: Sequence[Pair]) -> list[Inference]:
        """Classify pairs; equal ones are asked once.

        Raises SchemaError: the tokenizer is of another model, or memory does not suffice for one
        pair.
        """
        inputs = self._encode(list(dict.fromkeys(pairs)))
        by_length = sorted(inputs, key=lambda pair: len(inputs[pair]["input_ids"]))
        try:
            found = list(self._halving.run(self._ask, [inputs[pair] for pair in by_length]))
        except torch.OutOfMemoryError as error:
            raise SchemaError(
                f"model {self.name!r}: out of memory: one pair of texts does not fit on "
                f"{self.model.device}; free memory, or choose another --device, and repeat the "
                "command"
            ) from error
        said = dict(zip(by_length, found, strict=True))
        return [said[pair] for pair in pairs]

    def describe(self) -> dict[str, object]:
        described = describe_model(self.model, self.tokenizer, self.name, None)
        del described["attn_implementation"]
        return described | {"longest_input": self.longest}

    def _encode(self, pairs: Sequence[Pair]) -> dict[Pair, dict[str, list[int]]]:
        """Arguments of the model for each pair."""
        inputs = {}
        for pair in pairs:
            # a special token in a text is text: BART counts those that end one
            encoded = self.tokenizer(*pair, split_special_tokens=True)
            if len(encoded["input_ids"]) > self.longest:
                cut = {"truncation": True, "max_length": self.longest}
                encoded = self.tokenizer(*pair, split_special_tokens=True, **cut)
                self.n_cut += 1
            inputs[pair] = {name: ids for name, ids in encoded.items() if name in self._names}
        self.n_pairs += len(inputs)
        return inputs

    def _ask(self, inputs: Sequence[dict[str, list[int]]]) -> list[Inference]:
        if len(inputs) == 1:  # its tokenizer may have no padding
            tensors = {name: torch.tensor([ids]) for name, ids in inputs[0].items()}
        else:
            side = self._padding_side
            padded = self.tokenizer.pad(list(inputs), padding_side=side, return_tensors="pt")
            tensors = dict(padded)
        largest = int(tensors["input_ids"].max())
        if largest >= self.n_ids:
            raise SchemaError(
                f"model {self.name!r}: expected a tokenizer of its {self.n_ids:,} tokens, found "
                f"token {largest:,}"
            )
        with torch.inference_mode():
            placed = {name: tensor.to(self.model.device) for name, tensor in tensors.items()}
            logits = self.model(**placed).logits.float()
        entails = logits.argmax(dim=1) == self.entailment
        # of a model that overflows NaN, which is no entailment
        entails &= logits.isfinite().all(dim=1)
        both = logits[:, [self.entailment, self.contradiction]].double().softmax(dim=1)
        columns = entails.tolist(), both[:, 1].tolist()
        return [Inference(*one) for one in zip(*columns, strict=True)]


def find_labels(labels: Mapping[int, str], name: str) -> tuple[int, int]:
    """Positions of entailment and contradiction among the labels of a classifier.

    `labels`: position -> name, `id2label` of its configuration.

    Raises SchemaError: one of them is not there, or there twice, or another label is there than
    neutral.
    """
    known = [str(labels[i]).strip().casefold() for i in sorted(labels)]
    if sorted(known) not in (sorted(LABELS), sorted([*LABELS, MAYBE])):
        found = ", ".join(repr(str(labels[i]))[:40] for i in sorted(labels)[:5])
        raise SchemaError(
            f"model {name!r}: expected a classifier with the labels {', '.join(LABELS)} and "
            f"{MAYBE} (id2label in its config.json), found {len(labels)}: {found}"
        )
    return known.index(LABELS[0]), known.index(LABELS[1])


def _names_of_inputs(model: PreTrainedModel) -> set[str]:
    """What the model takes of a tokenizer's output: RoBERTa has one type of token only."""
    names = {*inspect.signature(model.forward).parameters}
    if getattr(model.config, "type_vocab_size", 2) < 2:
        names.discard("token_type_ids")
    return names


def _longest_input(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens that fit into the model, as the tokenizer says, else its number of positions."""
    positions = getattr(model.config, "max_position_embeddings", None)
    limits = [positions - RESERVED] if positions and positions > RESERVED else []
    if tokenizer.model_max_length < UNLIMITED:
        limits = [tokenizer.model_max_length, *([positions] if positions else [])]
    return min(limits, default=LONGEST)
