"""Traces of any Hugging Face causal language model, by two passes over batches of questions.

1. `generate` writes the answers (`generation`: greedy, beams or samples; prompts padded on the
   left).
2. One forward pass over prompt + answer (`forward`: padded on the right) gives hidden states,
   attention maps and predictions, which are cast and reduced layer by layer while it runs.

The second pass costs a few per cent of the first and gives whole maps at once, where the caches of
the first would have to be pieced together step by step. Only the second pass runs with the eager
attention that gives maps (`attention`). Batching changes no value beyond float rounding.

Conventions, which `provenance` repeats:

- **Layers** are entries 1..L of transformers' `hidden_states`: the embedding output (entry 0) is
  left out unless layer 0 is asked for; in its attention columns each token attends to itself alone,
  so that all columns have the same layers. Entry L is what transformers returns as the last one:
  for Llama and most others the state *after* the model's final norm, so its scale differs from that
  of the layers below.
- **The end-of-sequence token** is left out: the trace and `answer_len` end with the last token of
  the answer, whose states decided to end it. On a small model's sums a BiLSTM over `hs_last`
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
  `lens_entropy[t]` belongs to the state of token t, which predicts token t + 1, as do the other
  columns of the lens, and `eos_logprob` is of an end-of-sequence token after the last token.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.labels.answer_scores import SCORE_THRESHOLD
from store.labels.grading import Grade, Grader, Judge, count_verdicts
from store.read.store import TraceStore
from store.reports import LeftOut
from store.sources.huggingface.answers import STOP_RULE, Answer, answer_questions, take_responses
from store.sources.huggingface.attention import (
    EAGER,
    attention,
    generation_attention,
    implementation_of,
)
from store.sources.huggingface.batch_halving import Halving
from store.sources.huggingface.checks import (
    check_given,
    check_ids,
    check_model,
    choose_kept,
)
from store.sources.huggingface.columns import needs_maps
from store.sources.huggingface.decoding import Decoding
from store.sources.huggingface.forward import run_forward
from store.sources.huggingface.prompts import Prompts
from store.sources.huggingface.provenance import (
    conventions,
    describe_decoding,
    describe_labels,
    describe_model,
    digest_of,
    package_versions,
)
from store.sources.huggingface.state_columns import HalfRangeError
from store.sources.huggingface.teacher_forcing import JOINING
from store.sources.huggingface.token_texts import TokenTexts
from store.sources.questions import Question
from store.traces.identity import BATCHING, REMARKS
from store.traces.label_keys import VERDICTS

__all__ = ["HuggingFaceSource"]

# traces: if none of the first ones fits its columns, the model is run in the wrong precision
TRIED = 64

# keys of the provenance
GENERATION_ATTENTION = "generation_attn_implementation"
STOP_RULE_KEY = "stop_rule"  # where the stop is nothing but space: of others there is one rule
EXAMPLE_RULE_KEY = "few_shot_rule"  # where a question is an example
EXAMPLE_RULE = "an example that is the question itself is left out of its prompt"
BATCH_CONVENTION = (
    "sizes of the batches of all runs that made the store; another size may change float rounding, "
    "and with it an answer where two tokens are about equally likely"
)

_Graded = tuple[Answer, Grade]
# an answer, and its row or why it has none
_Computed = tuple[_Graded, dict[str, Any] | HalfRangeError]


class HuggingFaceSource:
    """Traces of a causal language model that answers questions.

    The `trace_id` of question Q is `Q`, of further answers to it `Q#2`, `Q#3`, ...; that of a given
    response is what it says.

    Parameters
    ----------
    model : PreTrainedModel
        Causal model in evaluation mode. If attention columns are kept, its attention must be the
        eager one, or one that it can change for the eager one: no other gives attention maps.
    tokenizer : PreTrainedTokenizerBase
        The model's tokenizer; it adds the special tokens that it adds by default.
    questions : sequence of Question
        In this order; `decoding.num_samples` traces each. Where they come with responses, those
        are the answers: nothing is generated.
    batch_size : int
        Traces that go through the model at once; fewer while memory does not suffice. All answers
        to a question are generated together. A build may go on with another size.
    max_new_tokens : int
        Longest answer.
    stop : str, optional
        Text that ends an answer; the token that completes it is left out like the end-of-sequence
        token. For models that never end an answer themselves.
    prompt_template : str
        Format string with `{question}`.
    prompts : Prompts, optional
        Makes the prompts, instead of `prompt_template` and `chat_template`.
    layers : sequence of int or str, optional
        Layers to keep, from 1 to L, or from 0, the embedding; ascending, or a text as in
        `store.traces.layers`, where 0 has to be named. 1 to L by default.
    columns : sequence of str, optional
        Columns to keep besides `question_id`; 'default' stands for all but `NOT_BY_DEFAULT` of
        `store.sources.huggingface.columns`, and is the default.
    top_k : int
        Candidates kept for each predicted token.
    labels : str or sequence of str
        Rules of `labels.RULES`: 'exact', 'contains', 'f1', 'judge' or 'none'. The first gives
        `score` and `label`; several also give a column `label_RULE` each.
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
    n_examples : int
        Questions that are examples as well, and not before themselves.
    first_tokens : set of int
        What the prompts so far began with.
    seconds : dict
        Time that `rows` has spent so far: on the "generation" of answers, if any, and on
        the "second pass" with the columns that come from it.

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
        wants_maps = needs_maps(columns)
        self.model = model
        self.tokenizer = tokenizer
        self.token_texts = TokenTexts(tokenizer)
        self.questions = questions
        self.begun = begun
        self.left_out = LeftOut()
        self.prompts = prompts or Prompts(
            tokenizer, model, prompt_template, chat_template, max_new_tokens
        )
        self.n_examples = sum(map(self.prompts.is_example, questions))
        self.first_tokens: set[int] = set()
        self.batch_size = batch_size
        self.max_new_tokens = max_new_tokens
        self.decoding = decoding
        self.stop = stop
        self.grader = Grader(labels, score_threshold, judge)
        self.verdicts: Counter[str] = Counter()
        self.layers, self.top_k, self.schema = choose_kept(
            model.config.get_text_config(),
            model.dtype,
            layers=layers,
            columns=columns,
            top_k=top_k,
            label_columns=self.grader.columns,
        )
        check_model(model, wants_maps)
        self.is_given = check_given(questions, decoding)
        check_ids(questions, decoding.num_samples)
        self.forward_attention = EAGER if wants_maps else implementation_of(model)
        self.generation_attention = generation_attention(model)
        passes = ["second pass"] if self.is_given else ["generation", "second pass"]
        if judge:
            passes.insert(-1, "judging")
        self.seconds = dict.fromkeys(passes, 0.0)
        self._generating = Halving()
        self._forwarding = Halving()
        self._earlier_sizes: list[int] = []
        self.provenance = self._describe(model_name or model.name_or_path)

    def __len__(self) -> int:
        return len(self.questions) * self.decoding.num_samples

    @property
    def remarks(self) -> dict[str, Any]:
        """The sizes of batches so far, what was left out, and what a judge said.

        A resumed extraction reads them.
        """
        generated = [n * self.decoding.num_samples for n in self._generating.sizes]
        smaller = [*generated, *self._forwarding.sizes]
        sizes = dict.fromkeys([*self._earlier_sizes, self.batch_size, *smaller])
        remarks: dict[str, Any] = {BATCHING: {"sizes": list(sizes), "convention": BATCH_CONVENTION}}
        if self.left_out.n:
            first = list(self.left_out.messages)
            remarks[REMARKS] = {"traces": self.left_out.n, "first": first}
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
        self._restore_remarks(self._recorded_before(start))
        n_kept = start
        for (answer, grade), row in self._computed_from(start + self.left_out.n):
            if isinstance(row, HalfRangeError):
                self._leave_out(answer, row, n_kept)
                continue
            n_kept += 1
            self.verdicts += count_verdicts([grade])
            yield answer.trace_id, row

    def _restore_remarks(self, recorded: dict[str, Any]) -> None:
        """Go on from the `remarks` of a stopped extraction."""
        left_out = recorded.get(REMARKS, {"traces": 0, "first": []})
        self.left_out = LeftOut(left_out["traces"], list(left_out["first"]))
        self._earlier_sizes = list(recorded.get(BATCHING, {"sizes": []})["sizes"])
        self.verdicts = Counter(recorded.get(VERDICTS, {}))

    def _leave_out(self, answer: Answer, error: HalfRangeError, n_kept: int) -> None:
        """Name a trace that does not fit; raise HalfRangeError if none of the first ones does."""
        self.left_out.add(f"trace {answer.trace_id!r}: {error}")
        if not n_kept and self.left_out.n == min(TRIED, len(self)):
            raise HalfRangeError(
                f"none of the first {self.left_out.n} traces fits: "
                f"{self.left_out.messages[0]}; {self.advice}"
            ) from error

    def _recorded_before(self, start: int) -> dict[str, Any]:
        """The provenance of a stopped extraction at its row number `start`, its last commit."""
        if not start or self.begun is None:
            return {}
        begun = self.begun if len(self.begun) == start else self.begun.refresh()
        return begun.provenance

    @property
    def advice(self) -> str:
        """What keeps the traces that are left out."""
        if self.model.dtype == torch.bfloat16:
            return "check the model's weights, or run it with --dtype fp32"
        return "run the model in bfloat16 (--dtype bf16)"

    def _computed_from(self, position: int) -> Iterator[_Computed]:
        """The answer of every trace from a position on, and its row."""
        if position == len(self):
            return
        n_samples = self.decoding.num_samples
        n_questions = max(1, self.batch_size // n_samples)
        first_question = position // n_samples // n_questions * n_questions
        for first in range(first_question, len(self.questions), n_questions):
            computed = self._compute(self.questions[first : first + n_questions])
            yield from islice(computed, max(position - first * n_samples, 0), None)

    def _compute(self, questions: Sequence[Question]) -> Iterator[_Computed]:
        answers = list(self._generating.run(self._generate, questions))
        self.first_tokens |= {answer.prompt.ids[0] for answer in answers}
        graded = self._grade(answers)
        for first in range(0, len(graded), self.batch_size):
            batch = graded[first : first + self.batch_size]
            yield from self._forwarding.run(self._forward, batch)

    def _generate(self, questions: Sequence[Question]) -> list[Answer]:
        if self.is_given:
            return take_responses(self.prompts, questions)
        with self._timed("generation"), attention(self.model, self.generation_attention):
            return answer_questions(
                self.model,
                self.prompts,
                questions,
                self.max_new_tokens,
                self.decoding,
                self.stop,
            )

    def _grade(self, answers: Sequence[Answer]) -> list[_Graded]:
        asked = [answer for answer in answers if self._is_graded(answer)]
        with self._timed("judging") if self.grader.judge else nullcontext():
            found = iter(self.grader.grade([answer.case for answer in asked]))
        no_grade = self.grader.no_grade
        return [
            (answer, next(found) if self._is_graded(answer) else no_grade) for answer in answers
        ]

    def _is_graded(self, answer: Answer) -> bool:
        """Whether a rule decides a column; a judge would otherwise be asked for nothing."""
        rules = self.grader.columns.keys()
        wanted = rules if answer.is_labelled else {"score", "label", *rules}
        return not wanted.isdisjoint(self.schema.columns)

    def _forward(self, graded: Sequence[_Graded]) -> list[_Computed]:
        """The rows of answers; what the model gave for them is freed when this returns."""
        with self._timed("second pass"), attention(self.model, self.forward_attention):
            traces = [answer.tokens for answer, _ in graded]
            prompt_lens = [len(answer.prompt.ids) for answer, _ in graded]
            computed = run_forward(
                self.model, traces, prompt_lens, self.layers, self.top_k, self.schema.columns
            )
        rows = map(self._row, graded, computed)
        return list(zip(graded, rows, strict=True))

    @contextmanager
    def _timed(self, pass_name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[pass_name] += time.perf_counter() - began

    def _row(
        self, graded: _Graded, computed: dict[str, Any] | HalfRangeError
    ) -> dict[str, Any] | HalfRangeError:
        """The row of an answer, or why it does not fit."""
        if isinstance(computed, HalfRangeError):
            return computed
        answer, grade = graded
        columns = self.schema.columns
        # labels that came with the answer win over those of rules
        labels = self.grader.row(grade) | answer.given_labels(self.grader.threshold)
        row = answer.columns() | labels | computed
        if "token_texts" in columns:
            row["token_texts"] = self.token_texts.to_json(answer.tokens)
        return {name: row[name] for name in columns}

    def _describe(self, model_name: str | None) -> dict[str, Any]:
        decoding: dict[str, Any] = {"given": JOINING}
        if not self.is_given:
            decoding = describe_decoding(self.model, self.decoding, self.max_new_tokens, self.stop)
        is_space = self.stop is not None and self.stop.isspace() and not self.is_given
        return {
            "source": "huggingface",
            **describe_model(self.model, self.tokenizer, model_name, self.forward_attention),
            GENERATION_ATTENTION: self.generation_attention,
            "layers": self.layers,
            **conventions(
                self.layers,
                self.model.config.get_text_config().num_hidden_layers,
                appends=self.prompts.appends,
            ),
            **self.prompts.describe(),
            **({EXAMPLE_RULE_KEY: EXAMPLE_RULE} if self.n_examples else {}),
            "decoding": decoding,
            **({STOP_RULE_KEY: STOP_RULE} if is_space else {}),
            **describe_labels(self.grader, is_given=self.is_given),
            "questions": len(self.questions),
            "questions_sha256": digest_of(list(self.questions)),
            "versions": package_versions(),
        }
