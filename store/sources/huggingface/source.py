"""Traces of any Hugging Face causal language model, by two passes over batches of questions.

1. `generate` writes the answers (`generation`: greedy, beams or samples; prompts padded on the
   left).
2. One forward pass over prompt + answer (`forward`: padded on the right) gives hidden states,
   attention maps and predictions, which are cast and reduced layer by layer while it runs.

The second pass costs a few per cent of the first and gives whole maps at once, where the caches of
the first would have to be pieced together step by step. Batching changes no value beyond float
rounding.

Conventions, which `provenance` repeats:

- **Layers** are entries 1..L of transformers' `hidden_states`: the embedding output (entry 0) is
  left out unless layer 0 is asked for; in its attention columns each token attends to itself alone,
  so that all columns have the same layers. Entry L is what transformers returns as the last one:
  for Llama and most others the state *after* the model's final norm, so its scale differs from that
  of the layers below.
- **The end-of-sequence token** is left out: the trace and `answer_len` end with the last token of
  the answer, whose states decided to end it. On the embedded example a BiLSTM over `hs_last`
  detects errors better there (test AUROC .911, mean of three splits) than at the end-of-sequence
  token (.900), and the mean log-probability of the answer does as well without that token (.945) as
  with it (.947). Only an empty answer keeps it, so that every trace has at least one token that the
  model chose.
- **A trace with a hidden state beyond float16** (65504, or infinite) is left out, whole: a column
  of infinities would silently spoil every detector, and values of two precisions in one column
  cannot be compared. It is named, and counted in the provenance; `--dtype bf16` keeps all of them.
  The rows of the others are as they would be without it.
- **Predictions**: `logprob[t]`, `entropy[t]`, `topk_*[t]` describe the distribution that predicted
  token t from the tokens before it. Nothing predicted token 0: NaN there, and -1 in `topk_id`.
  `lens_entropy[t]` belongs to the state of token t, which predicts token t + 1, and `eos_logprob`
  is of an end-of-sequence token after the last token.
"""

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from store.errors import SchemaError
from store.format.layers import choose_layers, parse_layers
from store.read.store import TraceStore
from store.reports import LeftOut
from store.sources.huggingface.batch_halving import run_in_halves
from store.sources.huggingface.columns import build_schema, choose_columns, needs_maps
from store.sources.huggingface.decoding import Decoding
from store.sources.huggingface.fingerprints import (
    config_digest,
    digest_of,
    tokenizer_digest,
    weights_checksum,
    weights_digest,
)
from store.sources.huggingface.forward import run_forward
from store.sources.huggingface.generation import StopRule, end_ids, generate_answers
from store.sources.huggingface.prompts import Prompts
from store.sources.huggingface.state_columns import HalfRangeError
from store.sources.huggingface.token_texts import TokenTexts
from store.sources.labels.answer_scores import SCORE_THRESHOLD
from store.sources.labels.rule import LABEL_RULES, label_scores
from store.sources.questions import Question
from store.sources.trace_ids import number_trace
from store.write.source import REMARKS

__all__ = ["HuggingFaceSource"]

LAYER_CONVENTION = (
    "layers 1..L of transformers' hidden_states; the embedding output (entry 0) is left out; "
    "entry L is as transformers returns it, for Llama and most others after the model's final norm"
)
EMBEDDING_CONVENTION = (
    "layers 1..L of transformers' hidden_states, and 0, the embedding output, for which each token "
    "attends to itself alone; entry L is as transformers returns it, for Llama and most others "
    "after the model's final norm"
)
PREDICTION_CONVENTION = (
    "entry t of logprob, entropy and topk_ is of the distribution that predicted token t, nothing "
    "predicted token 0 (NaN, -1); lens_entropy[t] is of the token after token t; eos_logprob is of "
    "an end-of-sequence token after the last one"
)
TRACE_CONVENTION = (
    "prompt tokens, then answer tokens; the end-of-sequence token is left out unless the answer is "
    "nothing else"
)
# traces: if none of the first ones fits its columns, the model is run in the wrong precision
TRIED = 64
PACKAGES = ("numpy", "tokenizers", "torch", "transformers")


class _Answer(NamedTuple):
    """An answer to a question, with the token ids of the prompt and its own."""

    question: Question
    trace_id: str
    prompt: list[int]
    ids: list[int]


# an answer and what the forward pass gave of it
_Computed = tuple[_Answer, dict[str, Any] | HalfRangeError]


class HuggingFaceSource:
    """Traces of a causal language model that answers questions.

    The `trace_id` of question Q is `Q`, of further answers to it `Q#2`, `Q#3`, ...

    Parameters
    ----------
    model : PreTrainedModel
        Causal model in evaluation mode; loaded with `attn_implementation="eager"` if attention
        columns are kept (no other gives attention maps).
    tokenizer : PreTrainedTokenizerBase
        The model's tokenizer; it adds the special tokens that it adds by default.
    questions : sequence of Question
        In this order; `decoding.num_samples` traces each.
    batch_size : int
        Traces that go through the model at once. All answers to a question are generated together.
    max_new_tokens : int
        Longest answer.
    decoding : Decoding
        How answers are generated; by default greedily.
    stop : str, optional
        Text that ends an answer; the token that completes it is left out like the end-of-sequence
        token. For models that never end an answer themselves.
    prompt_template : str
        Format string with `{question}`.
    chat_template : bool
        Ask in the tokenizer's chat template.
    layers : sequence of int or str, optional
        Layers to keep, from 1 to L, or from 0, the embedding; ascending, or a text as in
        `store.format.layers`, where 0 has to be named. 1 to L by default.
    columns : sequence of str, optional
        Columns to keep besides `question_id`; 'default' stands for all but `lens_entropy` and
        `attentions`, and is the default.
    top_k : int
        Candidates kept for each predicted token.
    labels : str
        The rule of the score: 'exact', 'f1' or 'none' (`labels.LABEL_RULES`).
    score_threshold : float
        Scores of at least this much count as right.
    model_name : str, optional
        Name in the provenance; by default what the model was loaded from.
    begun : TraceStore, optional
        What a stopped extraction of the same questions has committed; it records which traces were
        left out.

    Attributes
    ----------
    left_out : LeftOut
        Traces so far with a hidden state that its column cannot hold.

    Raises
    ------
    ValueError
        The model or the prompt template cannot give traces, or two questions share an id.
    SchemaError, NotFoundError
        There is no such layer, column or chat template.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        questions: Sequence[Question],
        *,
        batch_size: int = 32,
        max_new_tokens: int = 64,
        decoding: Decoding = Decoding(),  # noqa: B008 - frozen
        stop: str | None = None,
        prompt_template: str = "{question}",
        chat_template: bool = False,
        layers: Sequence[int] | str | None = None,
        columns: Sequence[str] | None = None,
        top_k: int = 10,
        labels: str = "exact",
        score_threshold: float = SCORE_THRESHOLD,
        model_name: str | None = None,
        begun: TraceStore | None = None,
    ) -> None:
        text_config = model.config.get_text_config()
        wants_maps = needs_maps(columns)
        n_layers, n_heads, hidden_size = _sizes(text_config, wants_maps)
        self.model = model
        self.tokenizer = tokenizer
        self.token_texts = TokenTexts(tokenizer)
        self.questions = questions
        self.begun = begun
        self.left_out = LeftOut()
        self.prompts = Prompts(tokenizer, model, prompt_template, chat_template, max_new_tokens)
        self.batch_size = batch_size
        self.max_new_tokens = max_new_tokens
        self.decoding = decoding
        self.stop = stop
        self.layers = _choose_layers(layers, n_layers)
        self.top_k = min(top_k, text_config.vocab_size)
        self.labels = labels
        self.score_threshold = score_threshold
        state_dtype = "bfloat16" if model.dtype == torch.bfloat16 else "float16"
        every = build_schema(len(self.layers), n_heads, hidden_size, self.top_k, state_dtype)
        self.schema = choose_columns(columns, every)
        _check_model(model, wants_maps)
        _check_ids(questions, decoding.num_samples)
        self.provenance = self._describe(model_name or model.name_or_path)

    def __len__(self) -> int:
        return len(self.questions) * self.decoding.num_samples

    @property
    def remarks(self) -> dict[str, Any]:
        """What was left out so far; a resumed extraction reads from it where to continue."""
        if not self.left_out.n:
            return {}
        return {REMARKS: {"traces": self.left_out.n, "first": list(self.left_out.messages)}}

    def rows(self, start: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield `(trace_id, row)` of the traces after the first `start` that were kept.

        Batches are cut as for `start=0`, so that the rows of a resumed build are bit for bit those
        of an uninterrupted one: rounding depends on what a trace is batched with.

        Parameters
        ----------
        start : int
            Number of rows that are written already. `begun` records how many traces were left out
            among them.

        Yields
        ------
        trace_id : str
            The question's id, with the answer's number from the second on.
        row : dict
            One value per column of `schema`.

        Raises
        ------
        IndexError
            `start` is not in 0..len(self).
        HalfRangeError
            None of the first traces fits: the model has to be run in another precision.
        """
        if not 0 <= start <= len(self):
            raise IndexError(f"start: expected 0 to {len(self)}, found {start}")
        self.left_out = self._left_out_before(start)
        n_kept = start
        for answer, computed in self._answers_from(start + self.left_out.n):
            try:
                row = self._row(answer, computed)
            except HalfRangeError as error:
                self.left_out.add(f"trace {answer.trace_id!r}: {error}")
                if not n_kept and self.left_out.n == min(TRIED, len(self)):
                    raise HalfRangeError(
                        f"none of the first {self.left_out.n} traces fits: "
                        f"{self.left_out.messages[0]}; {self.advice}"
                    ) from error
                continue
            n_kept += 1
            yield answer.trace_id, row

    def _left_out_before(self, start: int) -> LeftOut:
        """What a stopped extraction left out before its row number `start`, its last commit."""
        if not start or self.begun is None:
            return LeftOut()
        begun = self.begun if len(self.begun) == start else self.begun.refresh()
        recorded = begun.provenance.get(REMARKS, {"traces": 0, "first": []})
        return LeftOut(recorded["traces"], list(recorded["first"]))

    @property
    def advice(self) -> str:
        """What keeps the traces that are left out."""
        if self.model.dtype == torch.bfloat16:
            return "check the model's weights, or run it with --dtype fp32"
        return "run the model in bfloat16 (--dtype bf16)"

    def _answers_from(self, position: int) -> Iterator[_Computed]:
        """The answer of every trace from a position on, and the forward pass over its batch."""
        if position == len(self):
            return
        n_samples = self.decoding.num_samples
        n_questions = max(1, self.batch_size // n_samples)
        first_question = position // n_samples // n_questions * n_questions
        for first in range(first_question, len(self.questions), n_questions):
            computed = self._compute(self.questions[first : first + n_questions])
            yield from islice(computed, max(position - first * n_samples, 0), None)

    def _compute(self, questions: Sequence[Question]) -> Iterator[_Computed]:
        answers = list(run_in_halves(self._generate, questions))
        for first in range(0, len(answers), self.batch_size):
            yield from run_in_halves(self._forward, answers[first : first + self.batch_size])

    def _generate(self, questions: Sequence[Question]) -> list[_Answer]:
        names = [question["question_id"] for question in questions]
        prompts = [self.prompts.encode(question) for question in questions]
        generated = generate_answers(
            self.model,
            prompts,
            names,
            self.max_new_tokens,
            self.decoding,
            self._stop_rule(),
        )
        answers = []
        for i, ids in enumerate(generated):
            number, k = divmod(i, self.decoding.num_samples)
            trace_id = number_trace(names[number], k + 1)
            answers.append(_Answer(questions[number], trace_id, prompts[number], ids))
        return answers

    def _stop_rule(self) -> StopRule | None:
        """Whether an answer contains the text that ends it; None without such a text."""
        stop = self.stop
        if not stop:
            return None
        return lambda answer_ids: stop in self.tokenizer.decode(answer_ids)

    def _forward(self, answers: Sequence[_Answer]) -> list[_Computed]:
        traces = [answer.prompt + answer.ids for answer in answers]
        prompt_lens = [len(answer.prompt) for answer in answers]
        computed = run_forward(
            self.model, traces, prompt_lens, self.layers, self.top_k, self.schema.columns
        )
        return list(zip(answers, computed, strict=True))

    def _row(self, answer: _Answer, computed: dict[str, Any] | HalfRangeError) -> dict[str, Any]:
        if isinstance(computed, HalfRangeError):
            raise computed
        columns = self.schema.columns
        question, _, prompt, ids = answer
        trace = prompt + ids
        text = str(self.tokenizer.decode(ids, skip_special_tokens=True)).strip()
        score = LABEL_RULES[self.labels].score(text, question["answers"])
        row = {
            **question,  # two columns are called as its keys are
            "answer": text,
            "references": json.dumps(question["answers"], ensure_ascii=False),
            "score": score,
            "label": int(label_scores(score, self.score_threshold)),
            "tokens": np.array(trace, np.int32),
            "prompt_len": len(prompt),
            "answer_len": len(ids),
            **computed,
        }
        if "token_texts" in columns:
            row["token_texts"] = self.token_texts.to_json(trace)
        return {name: row[name] for name in columns}

    def _describe(self, model_name: str | None) -> dict[str, Any]:
        model = self.model
        return {
            "source": "huggingface",
            "model": model_name,
            "revision": getattr(model.config, "_commit_hash", None),
            "architecture": type(model).__name__,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": model.device.type,
            "attn_implementation": model.config._attn_implementation,
            "weights_sha256": weights_digest(model),
            "weights_crc32c": weights_checksum(model),
            "config_sha256": config_digest(model),
            "tokenizer_sha256": tokenizer_digest(self.tokenizer),
            "layers": self.layers,
            "layer_convention": EMBEDDING_CONVENTION if 0 in self.layers else LAYER_CONVENTION,
            "trace_convention": TRACE_CONVENTION,
            "prediction_convention": PREDICTION_CONVENTION,
            **self.prompts.describe(),
            "decoding": {
                **self.decoding.describe(),
                "max_new_tokens": self.max_new_tokens,
                "stop": self.stop,
                "end_ids": sorted(end_ids(model)),
            },
            "batch_size": self.batch_size,
            "label_rule": LABEL_RULES[self.labels].text,
            "score_threshold": self.score_threshold,
            "questions": len(self.questions),
            "questions_sha256": digest_of(list(self.questions)),
            "versions": {name: version(name) for name in PACKAGES},
        }


def _sizes(config: PreTrainedConfig, wants_maps: bool) -> tuple[int, int, int]:
    """Layers, heads and hidden size; raises SchemaError for a model that has none."""
    heads = getattr(config, "num_attention_heads", None)
    if heads is None and wants_maps:
        raise SchemaError(
            "columns: expected a model with attention, found one without; leave out the attn_ "
            "columns"
        )
    try:
        return config.num_hidden_layers, heads or 1, config.hidden_size
    except AttributeError as error:
        raise SchemaError(
            f"model: expected num_hidden_layers and hidden_size in its config, found: {error}"
        ) from error


def _choose_layers(layers: Sequence[int] | str | None, n_layers: int) -> list[int]:
    """The layers to keep, as the model numbers them; raises SchemaError unless they ascend."""
    every = list(range(1, n_layers + 1))
    if _asks_for_embedding(layers):
        every = [0, *every]
    if layers is None:
        chosen = every
    elif isinstance(layers, str):
        chosen = [every[i] for i in choose_layers(layers, every, "layers: the model")]
    else:
        chosen = list(layers)
    if not chosen or chosen != sorted(set(chosen).intersection(every)):
        raise SchemaError(
            f"layers: expected different ones from 1 to {n_layers}, ascending, found {chosen}"
        )
    return chosen


def _asks_for_embedding(layers: Sequence[int] | str | None) -> bool:
    """Whether 0 is named; a range without a beginning begins with layer 1."""
    if isinstance(layers, str):
        return any(0 in (wanted.first, wanted.last) for wanted in parse_layers(layers))
    return layers is not None and 0 in layers


def _check_model(model: PreTrainedModel, wants_maps: bool) -> None:
    """Raise ValueError for a model that would give no attention maps, or random values."""
    attention = model.config._attn_implementation
    if wants_maps and attention != "eager":
        raise ValueError(
            f"model: expected attn_implementation 'eager', found {attention!r}; load it with that "
            "argument"
        )
    if model.training:
        raise ValueError("model: expected evaluation mode, found training mode; call model.eval()")


def _check_ids(questions: Sequence[Question], n_samples: int) -> None:
    seen = set()
    for question in questions:
        for k in range(1, n_samples + 1):
            trace_id = number_trace(question["question_id"], k)
            if trace_id in seen:
                raise ValueError(
                    f"questions: expected different question_ids, found {trace_id!r} twice"
                )
            seen.add(trace_id)
