"""Traces of any Hugging Face causal language model, by two passes over batches of questions.

1. `generate` writes the answers (`generation`: greedy, beams or samples; prompts padded on the
   left).
2. One forward pass over prompt + answer (`forward`: padded on the right) gives hidden states,
   attention maps and predictions.

The second pass costs a few per cent of the first and gives whole maps at once, where the caches of
the first would have to be pieced together step by step. Batching changes no value beyond float
rounding.

Conventions, which `provenance` repeats:

- **Layers** are entries 1..L of transformers' `hidden_states`: the embedding output (entry 0) is
  left out. Entry L is what transformers returns as the last one: for Llama and most others the
  state *after* the model's final norm, so its scale differs from that of the layers below.
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
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.read.store import TraceStore
from store.reports import LeftOut
from store.sources.huggingface.answers import Answer, answer_questions
from store.sources.huggingface.batch_halving import run_in_halves
from store.sources.huggingface.checks import (
    check_ids,
    check_model,
    columns_to_keep,
    layers_to_keep,
    model_sizes,
    with_label_columns,
)
from store.sources.huggingface.columns import (
    ForwardOutput,
    HalfRangeError,
    build_schema,
    needs_maps,
    trace_columns,
)
from store.sources.huggingface.decoding import Decoding
from store.sources.huggingface.fingerprints import digest_of
from store.sources.huggingface.forward import run_forward
from store.sources.huggingface.prompts import Prompts
from store.sources.huggingface.provenance import (
    CONVENTIONS,
    describe_decoding,
    describe_model,
    package_versions,
)
from store.sources.huggingface.rows import answer_case, answer_columns
from store.sources.labels.answer_scores import SCORE_THRESHOLD
from store.sources.labels.grading import Case, Grade, Grader, Judge, count_verdicts
from store.sources.questions import Question
from store.write.source import REMARKS, VERDICTS

__all__ = ["HuggingFaceSource"]

# traces: if none of the first ones fits its columns, the model is run in the wrong precision
TRIED = 64

# an answer and its labels, the forward pass over its batch, and its number in the batch
_Graded = tuple[Answer, Case, Grade]
_Computed = tuple[_Graded, ForwardOutput | None, int]


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
    prompts : Prompts, optional
        Makes the prompts, instead of `prompt_template` and `chat_template`.
    layers : sequence of int or str, optional
        Layers to keep, from 1 to L, ascending, or a text as in `store.format.layers`; all by
        default.
    columns : sequence of str, optional
        Columns to keep besides `question_id`; all by default.
    top_k : int
        Candidates kept for each predicted token.
    labels : str or sequence of str
        Rules of `labels.RULES`: 'exact', 'contains', 'f1', 'judge' or 'none'. The first gives
        `score` and `label`; several also give a column `label_RULE` each.
    score_threshold : float
        Scores of at least this much count as right.
    judge : Judge, optional
        Of the rule 'judge'.
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
        prompts: Prompts | None = None,
        layers: Sequence[int] | str | None = None,
        columns: Sequence[str] | None = None,
        top_k: int = 10,
        labels: str | Sequence[str] = "exact",
        score_threshold: float = SCORE_THRESHOLD,
        judge: Judge | None = None,
        model_name: str | None = None,
        begun: TraceStore | None = None,
    ) -> None:
        text_config = model.config.get_text_config()
        wants_maps = needs_maps(columns)
        n_layers, n_heads, hidden_size = model_sizes(text_config, wants_maps)
        self.model = model
        self.tokenizer = tokenizer
        self.questions = questions
        self.begun = begun
        self.left_out = LeftOut()
        self.prompts = prompts or Prompts(
            tokenizer, model, prompt_template, chat_template, max_new_tokens
        )
        self.batch_size = batch_size
        self.max_new_tokens = max_new_tokens
        self.decoding = decoding
        self.stop = stop
        self.layers = layers_to_keep(layers, n_layers)
        self.top_k = min(top_k, text_config.vocab_size)
        self.grader = Grader(labels, score_threshold, judge)
        self.verdicts: Counter[str] = Counter()
        state_dtype = "bfloat16" if model.dtype == torch.bfloat16 else "float16"
        every = build_schema(len(self.layers), n_heads, hidden_size, self.top_k, state_dtype)
        self.schema = columns_to_keep(columns, with_label_columns(every, self.grader.columns))
        check_model(model, wants_maps)
        check_ids(questions, decoding.num_samples)
        self.provenance = self._describe(model_name or model.name_or_path)

    def __len__(self) -> int:
        return len(self.questions) * self.decoding.num_samples

    @property
    def remarks(self) -> dict[str, Any]:
        """What was left out so far, and what a judge said of the traces so far.

        A resumed extraction reads from it where to continue.
        """
        remarks: dict[str, Any] = {}
        if self.left_out.n:
            left_out = {"traces": self.left_out.n, "first": list(self.left_out.messages)}
            remarks[REMARKS] = left_out
        if self.verdicts:
            remarks[VERDICTS] = dict(sorted(self.verdicts.items()))
        return remarks

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
        self.left_out, self.verdicts = self._remarks_before(start)
        n_kept = start
        for graded, out, i in self._answers_from(start + self.left_out.n):
            answer, _, grade = graded
            try:
                row = self._row(graded, out, i)
            except HalfRangeError as error:
                self.left_out.add(f"trace {answer.trace_id!r}: {error}")
                if not n_kept and self.left_out.n == min(TRIED, len(self)):
                    raise HalfRangeError(
                        f"none of the first {self.left_out.n} traces fits: "
                        f"{self.left_out.messages[0]}; {self.advice}"
                    ) from error
                continue
            n_kept += 1
            self.verdicts += count_verdicts([grade])
            yield answer.trace_id, row

    def _remarks_before(self, start: int) -> tuple[LeftOut, Counter[str]]:
        """The remarks of a stopped extraction at its row number `start`, its last commit."""
        if not start or self.begun is None:
            return LeftOut(), Counter()
        begun = self.begun if len(self.begun) == start else self.begun.refresh()
        recorded = begun.provenance.get(REMARKS, {"traces": 0, "first": []})
        left_out = LeftOut(recorded["traces"], list(recorded["first"]))
        return left_out, Counter(begun.provenance.get(VERDICTS, {}))

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
        graded = self._grade(answers)
        for first in range(0, len(graded), self.batch_size):
            yield from run_in_halves(self._forward, graded[first : first + self.batch_size])

    def _generate(self, questions: Sequence[Question]) -> list[Answer]:
        return answer_questions(
            self.model,
            self.prompts,
            questions,
            self.max_new_tokens,
            self.decoding,
            self.stop,
        )

    def _grade(self, answers: Sequence[Answer]) -> list[_Graded]:
        cases = [answer_case(answer, self.tokenizer) for answer in answers]
        grades = [self.grader.no_grade] * len(cases)
        if self._keeps_labels:  # otherwise a judge would be asked for nothing
            grades = self.grader.grade(cases)
        return list(zip(answers, cases, grades, strict=True))

    @property
    def _keeps_labels(self) -> bool:
        wanted = {"score", "label", *self.grader.columns}
        return not wanted.isdisjoint(self.schema.columns)

    def _forward(self, graded: Sequence[_Graded]) -> list[_Computed]:
        traces = [answer.prompt + answer.ids for answer, _, _ in graded]
        out = run_forward(self.model, traces, self.schema.columns)
        return [(one, out, i) for i, one in enumerate(graded)]

    def _row(self, graded: _Graded, out: ForwardOutput | None, i: int) -> dict[str, Any]:
        answer, case, grade = graded
        columns = self.schema.columns
        trace = answer.prompt + answer.ids
        n_prompt = len(answer.prompt)
        row = {
            **answer_columns(answer, case, self.grader, grade),
            **trace_columns(out, i, trace, n_prompt, self.layers, self.top_k, columns),
        }
        return {name: row[name] for name in columns}

    def _describe(self, model_name: str | None) -> dict[str, Any]:
        return {
            "source": "huggingface",
            **describe_model(self.model, self.tokenizer, model_name),
            "layers": self.layers,
            **CONVENTIONS,
            **self.prompts.describe(),
            "decoding": describe_decoding(
                self.model, self.decoding, self.max_new_tokens, self.stop
            ),
            "batch_size": self.batch_size,
            **self.grader.describe(),
            "questions": len(self.questions),
            "questions_sha256": digest_of(list(self.questions)),
            "versions": package_versions(),
        }
