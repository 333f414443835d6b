"""Traces of any Hugging Face causal language model, by two passes over batches of questions.

1. `generate` writes the answers (`generation`: greedy, beams or samples; prompts padded on the
   left).
2. One forward pass over prompt + answer (`forward`: padded on the right) gives hidden states,
   attention maps and
   predictions.

The second pass costs a few per cent of the first and gives whole maps at once, where the caches of
the first would have to be pieced together step by step. Batching changes no value beyond float
rounding.

Conventions, which `provenance` repeats:

- **Layers** are entries 1..L of transformers' `hidden_states`: the embedding output (entry 0) is
  left out. Entry L is
  what transformers returns as the last one: for Llama and most others the state *after* the model's
  final norm, so its scale differs from that of the layers below.
- **The end-of-sequence token** is left out: the trace and `answer_len` end with the last token of
  the answer, whose
  states decided to end it. On the embedded example a BiLSTM over `hs_last` detects errors better
  there (test AUROC .911, mean of three splits) than at the end-of-sequence token (.900), and the
  mean log-probability of the answer does as well without that token (.945) as with it (.947). An
  empty answer alone keeps it, so that every trace has at least one token that the model chose.
- **A trace with a hidden state beyond float16** (65504, or infinite) is left out, whole: a column
  of infinities would
  spoil every detector without a word, and values of two precisions in one column cannot be
  compared. It is named, and counted in the provenance; `--dtype bf16` keeps all of them. The rows
  of the others are as they would be without it.
- **Predictions**: `logprob[t]`, `entropy[t]`, `topk_*[t]` describe the distribution that predicted
  token t from the
  tokens before it. Nothing predicted token 0: NaN there, and -1 in `topk_id`.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from crc32c import crc32c
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from store.errors import NotFoundError, SchemaError, closest
from store.format.layers import choose_layers
from store.format.schema import Schema
from store.read.store import TraceStore
from store.reports import LeftOut
from store.sources.answer_scores import SCORE_THRESHOLD
from store.sources.huggingface.forward import (
    ATTENTION,
    HalfRangeError,
    build_schema,
    prediction_columns,
    run_forward,
    trace_columns,
)
from store.sources.huggingface.generation import Decoding, end_ids, generate_answers
from store.sources.huggingface.prompts import Prompts
from store.sources.labels import LABEL_RULES, label_scores
from store.sources.questions import Question
from store.sources.trace_ids import number_trace
from store.write.source import REMARKS

__all__ = [
    "Decoding",
    "HuggingFaceSource",
    "Question",
    "build_schema",
    "generate_answers",
    "prediction_columns",
]

LAYER_CONVENTION = (
    "layers 1..L of transformers' hidden_states; the embedding output (entry 0) is left out; "
    "entry L is as transformers returns it, for Llama and most others after the model's final norm"
)
# traces: if none of the first ones fits its columns, the model is run in the wrong precision
TRIED = 64
TRACE_CONVENTION = "prompt tokens, then answer tokens; the end-of-sequence token is left out unless the answer is nothing else"


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
        How answers are made; by default greedily.
    stop : str, optional
        Text that ends an answer; the token that brings it is left out like the end-of-sequence
        token. For models that were never taught to end.
    prompt_template : str
        Format string with `{question}`.
    chat_template : bool
        Ask in the tokenizer's chat template.
    layers : sequence of int or str, optional
        Layers to keep, from 1 to L, ascending, or a text as `store.format.layers` has it; all by
        default.
    columns : sequence of str, optional
        Columns to keep besides `question_id`; all by default.
    top_k : int
        Candidates kept for each predicted token.
    labels : str
        Where the score comes from: 'exact', 'f1' or 'none' (`labels.LABEL_RULES`).
    score_threshold : float
        Scores from here on count as right.
    model_name : str, optional
        Name in the provenance; by default what the model was loaded from.
    begun : TraceStore, optional
        What a stopped extraction of the same questions has committed: it says which traces were
        left out.

    Attributes
    ----------
    left_out : LeftOut
        Traces so far with a hidden state that its column cannot hold.

    Raises
    ------
    ValueError
        If the model or the prompt template cannot give traces, or two questions share an id.
    SchemaError, NotFoundError
        If there is no such layer, column or chat template.
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
        n_layers, n_heads, hidden_size = _sizes(text_config, columns)
        self.model, self.tokenizer, self.questions = model, tokenizer, questions
        self.begun, self.left_out = begun, LeftOut()
        self.prompts = Prompts(tokenizer, model, prompt_template, chat_template, max_new_tokens)
        self.batch_size, self.max_new_tokens, self.decoding = batch_size, max_new_tokens, decoding
        self.stop = stop
        self.layers = _numbers_of(layers, n_layers)
        self.top_k = min(top_k, text_config.vocab_size)
        self.labels, self.score_threshold = labels, score_threshold
        _check_layers(self.layers, n_layers)
        state_dtype = "bfloat16" if model.dtype == torch.bfloat16 else "float16"
        sizes = (len(self.layers), n_heads, hidden_size, self.top_k)
        known = build_schema(*sizes, state_dtype)
        self.schema = Schema({name: known.columns[name] for name in _chosen(columns, known)})
        _check_model(model, needs_maps=bool(ATTENTION & set(self.schema.columns)))
        _check_ids(questions, decoding.num_samples)
        self.provenance = self._describe(model_name or model.name_or_path)

    def __len__(self) -> int:
        return len(self.questions) * self.decoding.num_samples

    @property
    def remarks(self) -> dict[str, Any]:
        """What was left out so far: committed with the rows, it says where a resumed extraction
        goes on."""
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
            Number of rows that are written already. `begun` says how many traces were left out
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
            If `start` is not in 0..len(self).
        HalfRangeError
            None of the first traces fits: the model has to be run in another precision.
        """
        if not 0 <= start <= len(self):
            raise IndexError(f"start: expected 0 to {len(self)}, found {start}")
        self.left_out = self._left_out_before(start)
        n_kept = start
        for trace_id, make in self._traces(start + self.left_out.n):
            try:
                row = make()
            except HalfRangeError as error:
                self._leave_out(trace_id, error, n_kept)
            else:
                n_kept += 1
                yield trace_id, row

    def _left_out_before(self, start: int) -> LeftOut:
        """What a stopped extraction left out before its row number `start`, which was its last
        commit."""
        if not start or self.begun is None:
            return LeftOut()
        begun = self.begun if len(self.begun) == start else self.begun.refresh()
        found = begun.provenance.get(REMARKS, {"traces": 0, "first": []})
        return LeftOut(found["traces"], list(found["first"]))

    def _leave_out(self, trace_id: str, error: HalfRangeError, n_kept: int) -> None:
        """Count a trace that does not fit; raises HalfRangeError if none of those tried so far
        does."""
        self.left_out.add(f"trace {trace_id!r}: {error}")
        if not n_kept and self.left_out.n == min(TRIED, len(self)):
            raise HalfRangeError(
                f"none of the first {self.left_out.n} traces fits: {self.left_out.messages[0]}; {self.advice}"
            ) from error

    @property
    def advice(self) -> str:
        """What keeps the traces that are left out."""
        if self.model.dtype == torch.bfloat16:
            return "check the model's weights, or run it with --dtype fp32"
        return "run the model in bfloat16 (--dtype bf16)"

    def _traces(self, position: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        """Id and maker of the row of every trace from a position among all of them on."""
        n_samples = self.decoding.num_samples
        n_questions = max(1, self.batch_size // n_samples)
        first_question = position // n_samples // n_questions * n_questions
        if position == len(self):
            return
        for first in range(first_question, len(self.questions), n_questions):
            batch = self._read_batch(self.questions[first : first + n_questions])
            yield from islice(batch, max(position - first * n_samples, 0), None)

    def _read_batch(
        self, questions: Sequence[Question]
    ) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        """Answer a batch of questions and read the model's states; the rows are made one by one, if
        wanted."""
        answers = [answer for _, some in run_in_halves(self._answers, questions) for answer in some]
        for first in range(0, len(answers), self.batch_size):
            for some, out in run_in_halves(self._forward, answers[first : first + self.batch_size]):
                for i, answer in enumerate(some):
                    trace_id = number_trace(answer.question["question_id"], answer.k)
                    yield trace_id, partial(self._row, out, i, answer)

    def _row(self, out: ModelOutput | None, i: int, answer: "_Answer") -> dict[str, Any]:
        """The row of trace number `i` of a batch."""
        columns = self.schema.columns
        trace, prompt_len = answer.prompt + answer.ids, len(answer.prompt)
        row = {
            **self._text_columns(answer),
            "tokens": np.array(trace, np.int32),
            "prompt_len": prompt_len,
            "answer_len": len(answer.ids),
            **trace_columns(out, i, trace, prompt_len, self.layers, self.top_k, columns),
        }
        return {name: row[name] for name in columns}

    def _answers(self, questions: Sequence[Question]) -> list["_Answer"]:
        """Generate all answers to some questions."""
        prompts = [self.prompts.encode(question) for question in questions]
        names = [question["question_id"] for question in questions]
        found = generate_answers(
            self.model,
            prompts,
            self.max_new_tokens,
            self.decoding,
            names,
            self._stops if self.stop else None,
        )
        n = self.decoding.num_samples
        return [
            _Answer(questions[i // n], i % n + 1, prompts[i // n], ids)
            for i, ids in enumerate(found)
        ]

    def _forward(self, answers: Sequence["_Answer"]) -> ModelOutput | None:
        return run_forward(
            self.model, [answer.prompt + answer.ids for answer in answers], self.schema.columns
        )

    def _stops(self, answer_ids: list[int]) -> bool:
        return self.stop in self.tokenizer.decode(answer_ids)

    def _text_columns(self, found: "_Answer") -> dict[str, Any]:
        """Make the columns that people read, and the label."""
        question = found.question
        answer = self.tokenizer.decode(found.ids, skip_special_tokens=True).strip()
        score = LABEL_RULES[self.labels].score(answer, question["answers"])
        return {
            "question_id": question["question_id"],
            "question": question["question"],
            "answer": answer,
            "references": json.dumps(question["answers"], ensure_ascii=False),
            "score": score,
            "label": int(label_scores(score, self.score_threshold)),
        }

    def _describe(self, model_name: str) -> dict[str, Any]:
        """Describe everything that decides the values, JSON-able."""
        model = self.model
        return {
            "source": "huggingface",
            "model": model_name,
            "revision": getattr(model.config, "_commit_hash", None),
            "architecture": type(model).__name__,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": model.device.type,
            "attn_implementation": model.config._attn_implementation,
            "weights_sha256": _weights_digest(model),
            "weights_crc32c": _weights_checksum(model),
            "config_sha256": _digest(_without_names(model.config.to_dict())),
            "tokenizer_sha256": _digest(_spell_tokenizer(self.tokenizer)),
            "layers": self.layers,
            "layer_convention": LAYER_CONVENTION,
            "trace_convention": TRACE_CONVENTION,
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
            "questions_sha256": _digest(list(self.questions)),
            "versions": {
                name: version(name) for name in ("numpy", "tokenizers", "torch", "transformers")
            },
        }


class _Answer(NamedTuple):
    """The k-th answer to a question, with the token ids of the prompt and its own."""

    question: Question
    k: int
    prompt: list[int]
    ids: list[int]


def run_in_halves(
    run: Callable[[Sequence[Any]], Any], items: Sequence[Any]
) -> Iterator[tuple[Sequence[Any], Any]]:
    """Run over all items at once; where the device has too little memory for that, over halves, and
    halves of them.

    Yields
    ------
    Some of the items, in their order, and what came of them.

    Raises
    ------
    torch.OutOfMemoryError
        One item is too much.
    """
    try:
        result = run(items)
    except torch.OutOfMemoryError:
        if len(items) == 1:
            raise
    else:
        yield items, result
        return
    torch.cuda.empty_cache()  # the error is gone by now, and with it what the failed run held
    middle = len(items) // 2
    yield from run_in_halves(run, items[:middle])
    yield from run_in_halves(run, items[middle:])


def _sizes(config: PreTrainedConfig, columns: Sequence[str] | None) -> tuple[int, int, int]:
    """Layers, heads and hidden size; raises SchemaError for a model that has none."""
    heads = getattr(config, "num_attention_heads", None)
    if heads is None and (columns is None or ATTENTION & set(columns)):
        raise SchemaError(
            "columns: expected a model with attention, found one without; leave out the attn_ columns"
        )
    try:
        return config.num_hidden_layers, heads or 1, config.hidden_size
    except AttributeError as error:
        raise SchemaError(
            f"model: expected num_hidden_layers and hidden_size in its config, found: {error}"
        ) from error


def _without_names(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what does not change a value."""
    return {
        key: value
        for key, value in config.items()
        if key not in ("_name_or_path", "transformers_version")
    }


def _spell_tokenizer(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Everything that decides how a tokenizer cuts a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return [tokenizer.get_vocab(), tokenizer.special_tokens_map]
    spelled = json.loads(backend.to_str())
    # set by each call
    return {key: value for key, value in spelled.items() if key not in ("padding", "truncation")}


def _digest(value: Any) -> str:
    """SHA-256 of something JSON-able."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _weights_checksum(model: PreTrainedModel) -> str:
    """CRC32C of every byte of the weights: tells a model from one that was changed anywhere."""
    checksum = 0
    for name, tensor in sorted(model.state_dict().items()):
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        checksum = crc32c(data, crc32c(name.encode(), checksum))
    return f"{checksum:08x}"


def _weights_digest(model: PreTrainedModel, n_numbers: int = 64) -> str:
    """SHA-256 over the first numbers of every parameter, as stores have recorded it from the
    beginning."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        numbers = parameter.detach().reshape(-1)[:n_numbers].cpu()
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        digest.update(numbers.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _chosen(columns: Sequence[str] | None, known: Schema) -> list[str]:
    """The columns to keep, with the one that a split cannot do without."""
    for name in columns or ():
        if name not in known.columns:
            like = closest(name, known.columns)
            raise NotFoundError(
                f"columns: expected some of {list(known.columns)}, found {name!r:.200}{like}"
            )
    return [
        name
        for name in known.columns
        if columns is None or name == "question_id" or name in columns
    ]


def _numbers_of(layers: Sequence[int] | str | None, n_layers: int) -> list[int]:
    """The layers that are meant, as the model numbers them."""
    every = list(range(1, n_layers + 1))
    if layers is None:
        return every
    if isinstance(layers, str):
        return [every[i] for i in choose_layers(layers, every, "layers: the model")]
    return list(layers)


def _check_layers(layers: Sequence[int], n_layers: int) -> None:
    """Refuse layers that the model has not, and an order that nobody would expect."""
    if not layers or list(layers) != sorted(set(layers)) or layers[0] < 1 or layers[-1] > n_layers:
        raise SchemaError(
            f"layers: expected different ones from 1 to {n_layers}, ascending, found {list(layers)}"
        )


def _check_model(model: PreTrainedModel, needs_maps: bool) -> None:
    """Refuse a model that would give no attention maps, or random ones."""
    attention = model.config._attn_implementation
    if needs_maps and attention != "eager":
        raise ValueError(
            f"model: expected attn_implementation 'eager', found {attention!r}; load it with that argument"
        )
    if model.training:
        raise ValueError("model: expected evaluation mode, found training mode; call model.eval()")


def _check_ids(questions: Sequence[Question], n_samples: int) -> None:
    """Refuse questions whose traces would share an id."""
    seen: set[str] = set()
    for question in questions:
        for k in range(1, n_samples + 1):
            trace_id = number_trace(question["question_id"], k)
            if trace_id in seen:
                raise ValueError(
                    f"questions: expected different question_ids, found {trace_id!r} twice"
                )
            seen.add(trace_id)
