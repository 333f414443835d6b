"""Traces of any Hugging Face causal language model, by two passes over batches of questions.

1. `generate` writes the answers (greedy; prompts padded on the left, as generation needs it).
2. One forward pass over prompt + answer (padded on the right) gives hidden states, attention maps and predictions.

The second pass costs a few per cent of the first and gives whole maps at once, where the caches of the first would have
to be pieced together step by step. Batching changes no value beyond float rounding: on the right, padding comes after
every token of a trace, so a causal model never attends to it, and positions count from 0 as in a trace run alone.

Conventions, which `provenance` repeats:

- **Layers** are entries 1..L of transformers' `hidden_states`: the embedding output (entry 0) is left out. Entry L is
  what transformers returns as the last one: for Llama and most others the state *after* the model's final norm, so its
  scale differs from that of the layers below.
- **The end-of-sequence token** is left out: the trace and `answer_len` end with the last token of the answer, whose
  states decided to end it. On the embedded example a BiLSTM over `hs_last` detects errors better there (test AUROC
  .911, mean of three splits) than at the end-of-sequence token (.900), and the mean log-probability of the answer
  does as well without that token (.945) as with it (.947). An empty answer alone keeps it, so that every trace has
  at least one token that the model chose.
- **Predictions**: `logprob[t]`, `entropy[t]`, `topk_*[t]` describe the distribution that predicted token t from the
  tokens before it. Nothing predicted token 0: NaN there, and -1 in `topk_id`.
"""

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import islice
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.schema import Column, Schema
from store.sources import reductions
from store.sources.labels import SCORE_THRESHOLD, exact_match_score, label_from_score

__all__ = ["HuggingFaceSource", "Question", "build_schema", "generate_answers", "prediction_columns"]

LAYER_CONVENTION = (
    "layers 1..L of transformers' hidden_states; the embedding output (entry 0) is left out; "
    "entry L is as transformers returns it, for Llama and most others after the model's final norm"
)
TRACE_CONVENTION = (
    "prompt tokens, then answer tokens; the end-of-sequence token is left out unless the answer is nothing else"
)
LABEL_RULE = (
    "score = 1 if the answer equals a reference after SQuAD's normalisation, else 0; label = 1 iff score < threshold"
)

# Spelled out, because generate() fills what is not given from the model's own generation_config: a repetition penalty
# there (Qwen2 ships 1.1) would bend greedy decoding without a word.
GREEDY = {
    "do_sample": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
}


class Question(TypedDict):
    """One question and the answers that count as right (none: the trace stays unlabelled)."""

    question_id: str
    question: str
    answers: list[str]


def build_schema(n_layers: int, n_heads: int, hidden_size: int, top_k: int) -> Schema:
    """Build the schema of a trace.

    Parameters
    ----------
    n_layers, n_heads, hidden_size : int
        L, H and d of the model.
    top_k : int
        K, number of candidates kept for each predicted token.

    Returns
    -------
    Schema
        Columns of one trace; T tokens are the axis "tokens", T * (T + 1) / 2 pairs of tokens the axis "pairs".
    """
    states = {"item_shape": (n_layers, hidden_size), "axis_names": ("layers", "hidden")}
    per_head = {"item_shape": (n_layers, n_heads), "axis": "tokens", "axis_names": ("layers", "heads")}
    candidates = {"item_shape": (top_k,), "axis": "tokens", "axis_names": ("candidates",)}
    return Schema(
        {
            "question_id": Column("utf8"),
            "tokens": Column("int32", axis="tokens"),
            "prompt_len": Column("int32"),
            "answer_len": Column("int32"),
            "question": Column("utf8"),
            "answer": Column("utf8"),
            "references": Column("utf8"),
            "score": Column("float32"),
            "label": Column("int8"),
            "hs_last": Column("float16", **states),
            "hidden_states": Column("float16", axis="tokens", **states),
            "attn_mean": Column("float16", item_shape=(n_layers,), axis="pairs", axis_names=("layers",)),
            "attn_diag": Column("float16", **per_head),
            "attn_colsum": Column("float16", **per_head),
            "attn_pmass": Column("float16", **per_head),
            "logprob": Column("float32", axis="tokens"),
            "entropy": Column("float32", axis="tokens"),
            "topk_logprob": Column("float16", **candidates),
            "topk_id": Column("int32", **candidates),
        }
    )


class HuggingFaceSource:
    """Traces of a causal language model that answers questions; `trace_id` is the question's id.

    Parameters
    ----------
    model : PreTrainedModel
        Causal model, loaded with `attn_implementation="eager"` (no other gives attention maps) and in evaluation mode.
    tokenizer : PreTrainedTokenizerBase
        The model's tokenizer; it adds the special tokens that it adds by default.
    questions : sequence of Question
        One trace each, in this order.
    batch_size : int
        Questions that go through the model at once.
    max_new_tokens : int
        Longest answer.
    prompt_template : str
        Format string with `{question}`.
    top_k : int
        Candidates kept for each predicted token.
    score_threshold : float
        Scores from here on count as right.
    model_name : str, optional
        Name in the provenance; by default what the model was loaded from.

    Raises
    ------
    ValueError
        If the model or the prompt template cannot give traces, or two questions share an id.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        questions: Sequence[Question],
        *,
        batch_size: int = 32,
        max_new_tokens: int = 64,
        prompt_template: str = "{question}",
        top_k: int = 10,
        score_threshold: float = SCORE_THRESHOLD,
        model_name: str | None = None,
    ) -> None:
        _check_model(model)
        _check_prompt_template(prompt_template)
        _check_ids(questions)
        text_config = model.config.get_text_config()
        self.model = model
        self.tokenizer = tokenizer
        self.questions = questions
        self.batch_size = batch_size
        self.max_new_tokens = max_new_tokens
        self.prompt_template = prompt_template
        self.top_k = min(top_k, text_config.vocab_size)
        self.score_threshold = score_threshold
        self.schema = build_schema(
            text_config.num_hidden_layers, text_config.num_attention_heads, text_config.hidden_size, self.top_k
        )
        self.provenance = self._describe(model_name or model.name_or_path)

    def __len__(self) -> int:
        return len(self.questions)

    def rows(self, start: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield `(trace_id, row)` from trace number `start` on.

        Batches are cut as for `start=0`, so that the rows of a resumed build are bit for bit those of an uninterrupted
        one: rounding depends on what a trace is batched with.

        Parameters
        ----------
        start : int
            Number of traces to leave out.

        Yields
        ------
        trace_id : str
            The question's id.
        row : dict
            One value per column of `schema`.

        Raises
        ------
        IndexError
            If `start` is not in 0..len(self).
        """
        if not 0 <= start <= len(self):
            raise IndexError(f"start: expected 0 to {len(self)}, found {start}")
        for first in range(start - start % self.batch_size, len(self), self.batch_size):
            batch = self.questions[first : first + self.batch_size]
            for row in islice(self._read_batch(batch), max(start - first, 0), None):
                yield row["question_id"], row

    def _read_batch(self, questions: Sequence[Question]) -> Iterator[dict[str, Any]]:
        """Answer a batch of questions and read the model's states; the rows come one by one."""
        prompts = [self._encode(question) for question in questions]
        answers = generate_answers(self.model, prompts, self.max_new_tokens)
        traces = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        hidden, attention, logits = _forward(self.model, traces)
        for i, (question, prompt, trace) in enumerate(zip(questions, prompts, traces, strict=True)):
            n_tokens = len(trace)
            row = {
                **self._text_columns(question, trace[len(prompt) :]),
                "tokens": np.array(trace, np.int32),
                "prompt_len": len(prompt),
                "answer_len": n_tokens - len(prompt),
                **_state_columns(hidden[i, :n_tokens]),
                **_attention_columns(attention[i, :, :, :n_tokens, :n_tokens], len(prompt)),
                **prediction_columns(logits[i, :n_tokens], trace, self.top_k),
            }
            yield {name: row[name] for name in self.schema.columns}

    def _encode(self, question: Question) -> list[int]:
        """Tokenise the prompt of a question."""
        ids = self.tokenizer(self.prompt_template.format(question=question["question"]))["input_ids"]
        longest = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if longest is not None and len(ids) + self.max_new_tokens > longest:
            raise ValueError(
                f"question {question['question_id']!r}: the model takes {longest} tokens, found {len(ids)} of the "
                f"prompt and up to {self.max_new_tokens} of the answer; shorten the prompt or lower max_new_tokens"
            )
        return ids

    def _text_columns(self, question: Question, answer_ids: list[int]) -> dict[str, Any]:
        """Make the columns that people read, and the label."""
        answer = self.tokenizer.decode(answer_ids, skip_special_tokens=True).strip()
        score = exact_match_score(answer, question["answers"])
        return {
            "question_id": question["question_id"],
            "question": question["question"],
            "answer": answer,
            "references": json.dumps(question["answers"], ensure_ascii=False),
            "score": score,
            "label": label_from_score(score, self.score_threshold),
        }

    def _describe(self, model_name: str) -> dict[str, Any]:
        """Describe where the values come from, JSON-able."""
        return {
            "source": "huggingface",
            "model": model_name,
            "architecture": type(self.model).__name__,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "layer_convention": LAYER_CONVENTION,
            "trace_convention": TRACE_CONVENTION,
            "prompt_template": self.prompt_template,
            "decoding": {**GREEDY, "max_new_tokens": self.max_new_tokens},
            "batch_size": self.batch_size,
            "label_rule": LABEL_RULE,
            "score_threshold": self.score_threshold,
            "versions": {name: version(name) for name in ("numpy", "tokenizers", "torch", "transformers")},
        }


def generate_answers(model: PreTrainedModel, prompts: Sequence[list[int]], max_new_tokens: int) -> list[list[int]]:
    """Answer a batch of prompts greedily.

    Parameters
    ----------
    model : PreTrainedModel
        Causal model.
    prompts : sequence of list of int
        Token ids of each prompt.
    max_new_tokens : int
        Longest answer.

    Returns
    -------
    list of list of int
        Token ids of each answer, at least one: the end-of-sequence token is left out unless it is the first.
    """
    ends = _end_ids(model)
    filler = min(ends, default=0)  # masked before a prompt, cut off behind an answer: any id will do
    width = max(map(len, prompts))
    ids, mask = _pad(prompts, [width - len(prompt) for prompt in prompts], filler, model.device)
    with torch.inference_mode():
        written = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=max_new_tokens, pad_token_id=filler, **GREEDY
        )
    return [_cut_at_end(answer, ends) for answer in written[:, width:].tolist()]


def prediction_columns(logits: Tensor, tokens: Sequence[int], top_k: int) -> dict[str, NDArray]:
    """Describe the distributions that predicted the tokens of a trace.

    Parameters
    ----------
    logits : Tensor, (T, V)
        Row t predicts token t + 1.
    tokens : sequence of int, (T,)
        Token ids.
    top_k : int
        K, candidates to keep.

    Returns
    -------
    dict
        `logprob` and `entropy` float32 (T,), in nats; `topk_logprob` float16 (T, K), falling; `topk_id` int32 (T, K).
        Entry t is about the distribution that predicted token t; at t = 0 there is none: NaN, and -1 for the ids.
    """
    distribution = logits[:-1].float().log_softmax(dim=-1)  # (T - 1, V), row t - 1 predicts token t
    target = torch.tensor(tokens[1:], device=logits.device)
    best = distribution.topk(top_k, dim=-1)
    return {
        "logprob": _after_first(distribution.gather(1, target[:, None])[:, 0], np.nan, np.float32),
        "entropy": _after_first(torch.special.entr(distribution.exp()).sum(dim=-1), np.nan, np.float32),
        "topk_logprob": _after_first(best.values, np.nan, np.float16),
        "topk_id": _after_first(best.indices, -1, np.int32),
    }


def _after_first(values: Tensor, first: float, dtype: type) -> NDArray:
    """(T - 1, ...) -> (T, ...), with `first` for token 0, which nothing predicted."""
    out = np.full((len(values) + 1, *values.shape[1:]), first, dtype)
    out[1:] = values.cpu().numpy()
    return out


def _forward(model: PreTrainedModel, traces: Sequence[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Run whole traces: hidden states (B, T, L, d), attention maps float32 (B, L, H, T, T), logits (B, T, V)."""
    ids, mask = _pad(traces, [0] * len(traces), 0, model.device)
    positions = torch.arange(ids.shape[1], device=model.device).expand_as(ids)
    with torch.inference_mode():
        out = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
            output_hidden_states=True,
            output_attentions=True,
        )
    hidden = torch.stack(out.hidden_states[1:], dim=2)
    return hidden, torch.stack(out.attentions, dim=1).float(), out.logits


def _state_columns(hidden: Tensor) -> dict[str, NDArray]:
    """Hidden states (T, L, d) of one trace, and those of its last token."""
    states = hidden.half().cpu().numpy()
    if not np.isfinite(states).all():
        raise OverflowError(f"hidden_states: expected values that float16 holds (65504), found {hidden.abs().max():g}")
    return {"hidden_states": states, "hs_last": states[-1]}


def _attention_columns(attention: Tensor, prompt_len: int) -> dict[str, NDArray]:
    """Reduce the maps (L, H, T, T) of one trace in float32, then cast."""
    columns = {
        "attn_mean": reductions.mean_triangle(attention),
        "attn_diag": reductions.diagonal(attention),
        "attn_colsum": reductions.column_sums(attention),
        "attn_pmass": reductions.prompt_mass(attention, prompt_len),
    }
    return {name: values.half().cpu().numpy() for name, values in columns.items()}


def _pad(
    sequences: Sequence[list[int]], n_before: Sequence[int], filler: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Put sequences into one array, each after its `n_before` fillers: ids and mask, int64 (B, T)."""
    width = max(n + len(ids) for n, ids in zip(n_before, sequences, strict=True))
    ids = torch.full((len(sequences), width), filler)
    mask = torch.zeros_like(ids)
    for row, (n, sequence) in enumerate(zip(n_before, sequences, strict=True)):
        ids[row, n : n + len(sequence)] = torch.tensor(sequence)
        mask[row, n : n + len(sequence)] = 1
    return ids.to(device), mask.to(device)


def _end_ids(model: PreTrainedModel) -> set[int]:
    """Give the ids that end an answer; a model has none, one or several."""
    ends = model.generation_config.eos_token_id
    if ends is None:
        return set()
    return {ends} if isinstance(ends, int) else set(ends)


def _cut_at_end(answer: list[int], ends: set[int]) -> list[int]:
    """Keep what comes before the first end-of-sequence token (if nothing does: that token); behind it is filler."""
    n_tokens = next((n for n, token in enumerate(answer) if token in ends), len(answer))
    return answer[: max(n_tokens, 1)]


def _check_model(model: PreTrainedModel) -> None:
    """Refuse a model that would give no attention maps, or random ones."""
    attention = model.config._attn_implementation
    if attention != "eager":
        raise ValueError(
            f"model: expected attn_implementation 'eager', found {attention!r}; load it with that argument"
        )
    if model.training:
        raise ValueError("model: expected evaluation mode, found training mode; call model.eval()")


def _check_prompt_template(prompt_template: str) -> None:
    """Refuse a template that would ask every time the same."""
    if "{question}" not in prompt_template:
        raise ValueError(f"prompt_template: expected a format string with {{question}}, found {prompt_template!r}")


def _check_ids(questions: Sequence[Question]) -> None:
    """Refuse questions that share an id."""
    seen: set[str] = set()
    for question in questions:
        if question["question_id"] in seen:
            raise ValueError(f"questions: expected different question_ids, found {question['question_id']!r} twice")
        seen.add(question["question_id"])
