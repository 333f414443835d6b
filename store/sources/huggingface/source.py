"""Traces of any Hugging Face causal language model, by two passes over batches of questions.

1. `generate` writes the answers (`generation`: greedy, beams or samples; prompts padded on the
   left).
2. One forward pass over prompt + answer (`forward`: padded on the right) gives hidden states,
   attention maps and predictions, which are cast and reduced layer by layer while it runs.

The second pass costs a few per cent of the first and gives whole maps at once, where the caches of
the first would have to be pieced together step by step. Only the second pass runs with the eager
attention that gives maps. Batching changes no value beyond float rounding.

`provenance` has the conventions of layers and predictions. Besides:

- **Layer L** is what transformers returns as the last one: for Llama and most others the state
  *after* the model's final norm, so its scale differs from that of the layers below.
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
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import islice
from typing import Any

import torch
from transformers import PreTrainedModel

from store.labels.grading import Grader, count_verdicts
from store.labels.rule import AS_GIVEN
from store.read.store import TraceStore
from store.reports import LeftOut
from store.sources.huggingface.batching import Halving
from store.sources.huggingface.collectors import HalfRangeError
from store.sources.huggingface.forward import run_forward
from store.sources.huggingface.generation import STOP_RULE, Decoding, generate_answers, stop_rule
from store.sources.huggingface.kept import (
    Kept,
    check_contexts,
    check_model,
    check_questions,
)
from store.sources.huggingface.load import (
    EAGER,
    attention,
    generation_attention,
    implementation_of,
)
from store.sources.huggingface.prompts import EncodedQuestion, Prompts
from store.sources.huggingface.provenance import (
    conventions,
    describe_decoding,
    describe_model,
    digest_of,
)
from store.sources.huggingface.tokenization import JOINING, TokenTexts
from store.traces.identity import BATCHING, REMARKS
from store.traces.label_keys import VERDICTS
from store.traces.trace_ids import number_trace

__all__ = ["HuggingFaceSource"]

# traces: if none of the first ones fits its columns, the model is run in the wrong precision
TRIED = 64

PACKAGES = ("numpy", "tokenizers", "torch", "transformers")  # that compute the numbers

# keys of the provenance
GENERATION_ATTENTION = "generation_attn_implementation"
STOP_RULE_KEY = "stop_rule"  # where the stop is nothing but space: of others there is one rule
EXAMPLE_RULE_KEY = "few_shot_rule"  # where a question is an example
EXAMPLE_RULE = "an example that is the question itself is left out of its prompt"
BATCH_CONVENTION = (
    "sizes of the batches of all runs that made the store; another size may change float rounding, "
    "and with it an answer where two tokens are about equally likely"
)

# an answer, and its row or why it has none
_Computed = tuple[EncodedQuestion, dict[str, Any] | HalfRangeError]


class HuggingFaceSource:
    """Traces of a causal language model that answers questions.

    The `trace_id` of question Q is `Q`, of further answers to it `Q#2`, `Q#3`, ...; that of a given
    response is what it says.

    `model` is in evaluation mode. If attention columns are kept, its attention must be the eager
    one, or one that it can change for the eager one: no other gives attention maps. `questions`
    have `decoding.num_samples` traces each; where they come with responses, those are the answers:
    nothing is generated. `batch_size` traces go through the model at once; fewer while memory does
    not suffice, and all answers to a question together. A build may go on with another size.
    `begun` is what a stopped extraction of the same questions has committed; it records which
    traces were left out.

    `left_out` are the traces so far with a hidden state that its column cannot hold.

    Raises ValueError: the model cannot give traces, or two questions share an id; SchemaError,
    NotFoundError: there is no such layer or column.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Prompts,
        questions: Sequence[EncodedQuestion],
        decoding: Decoding = Decoding(),  # noqa: B008 - frozen
        kept: Kept = Kept(),  # noqa: B008 - frozen
        grader: Grader | None = None,
        *,
        batch_size: int = 32,
        name: str | None = None,
        begun: TraceStore | None = None,
    ) -> None:
        self.model = model
        self.prompts = prompts
        self.questions = questions
        self.decoding = decoding
        self.grader = grader or Grader()
        self.batch_size = batch_size
        self.begun = begun
        check_model(model, kept.needs_maps)
        self.fields = kept.fields
        self.layers, self.top_k, self.schema = kept.choose(
            model.config.get_text_config(), model.dtype, self.grader.columns
        )
        self.is_given = check_questions([one.question for one in questions], decoding)
        check_contexts(questions, self.schema)
        self.left_out = LeftOut()
        self.verdicts: Counter[str] = Counter()
        self.forward_attention = EAGER if kept.needs_maps else implementation_of(model)
        self.generation_attention = generation_attention(model)
        self._token_texts = TokenTexts(prompts.tokenizer)
        self._n_questions = max(1, batch_size // decoding.num_samples)  # of a batch
        self._generating = Halving(self._n_questions)
        self._forwarding = Halving(batch_size)
        self._earlier_sizes: list[int] = []
        self.provenance = self._describe(name or model.name_or_path)

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

        `start` counts rows that are written already; `begun` records how many traces were left out
        among them. A row has a value for each column of `schema`.

        Raises IndexError: `start` is not in 0..len(self); HalfRangeError: none of the first traces
        fits: the model has to be run in another precision.
        """
        if not 0 <= start <= len(self):
            raise IndexError(f"start: expected 0 to {len(self)}, found {start}")
        self._restore_remarks(start)
        n_kept = start
        for answer, row in self._computed_from(start + self.left_out.n):
            if isinstance(row, HalfRangeError):
                self._leave_out(answer.trace_id, row, n_kept)
                continue
            n_kept += 1
            self.verdicts += count_verdicts([answer.grade])
            yield answer.trace_id, row

    def _restore_remarks(self, start: int) -> None:
        """Go on from the `remarks` of a stopped extraction at its row `start`, its last commit."""
        recorded: dict[str, Any] = {}
        if start and self.begun is not None:
            begun = self.begun if len(self.begun) == start else self.begun.refresh()
            recorded = begun.provenance
        left_out = recorded.get(REMARKS, {"traces": 0, "first": []})
        self.left_out = LeftOut(left_out["traces"], list(left_out["first"]))
        self._earlier_sizes = list(recorded.get(BATCHING, {"sizes": []})["sizes"])
        self.verdicts = Counter(recorded.get(VERDICTS, {}))

    def _leave_out(self, trace_id: str, error: HalfRangeError, n_kept: int) -> None:
        """Name a trace that does not fit; raise HalfRangeError if none of the first ones does."""
        self.left_out.add(f"trace {trace_id!r}: {error}")
        if not n_kept and self.left_out.n == min(TRIED, len(self)):
            raise HalfRangeError(
                f"none of the first {self.left_out.n} traces fits: "
                f"{self.left_out.messages[0]}; {self.advice}"
            ) from error

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
        n_samples, n_questions = self.decoding.num_samples, self._n_questions
        first_question = position // n_samples // n_questions * n_questions
        for first in range(first_question, len(self.questions), n_questions):
            computed = self._compute(self.questions[first : first + n_questions])
            yield from islice(computed, max(position - first * n_samples, 0), None)

    def _compute(self, questions: Sequence[EncodedQuestion]) -> Iterator[_Computed]:
        answers = questions
        if not self.is_given:
            answers = list(self._generating.run(self._generate, questions))
        yield from self._forwarding.run(self._forward, self._grade(answers))

    def _generate(self, questions: Sequence[EncodedQuestion]) -> list[EncodedQuestion]:
        """`decoding.num_samples` answers to each question, one question after the other."""
        tokenizer = self.prompts.tokenizer
        names = [one.question["question_id"] for one in questions]
        prompts = [one.prompt.tolist() for one in questions]
        rule = stop_rule(tokenizer, self.decoding.stop)
        with attention(self.model, self.generation_attention):
            generated = generate_answers(self.model, prompts, names, self.decoding, rule)
        answers = []
        for i, ids in enumerate(generated):
            number, k = divmod(i, self.decoding.num_samples)
            text = str(tokenizer.decode(ids, skip_special_tokens=True)).strip()
            answers.append(
                questions[number].answered(number_trace(names[number], k + 1), ids, text)
            )
        return answers

    def _grade(self, answers: Sequence[EncodedQuestion]) -> list[EncodedQuestion]:
        cases = [answer.case for answer in answers if self._is_graded(answer)]
        found = iter(self.grader.grade(cases))
        no_grade = self.grader.no_grade
        return [
            answer._replace(grade=next(found) if self._is_graded(answer) else no_grade)
            for answer in answers
        ]

    def _is_graded(self, answer: EncodedQuestion) -> bool:
        """Whether a rule decides a column; a judge would otherwise be asked for nothing."""
        rules = self.grader.columns.keys()
        wanted = rules if answer.is_labelled else {"score", "label", *rules}
        return not wanted.isdisjoint(self.schema.columns)

    def _forward(self, answers: Sequence[EncodedQuestion]) -> list[_Computed]:
        """The rows of answers; what the model gave for them is freed when this returns."""
        with attention(self.model, self.forward_attention):
            traces = [answer.tokens for answer in answers]
            computed = run_forward(
                self.model,
                traces,
                [len(answer.prompt) for answer in answers],
                self.layers,
                self.top_k,
                self.schema.columns,
                [answer.context for answer in answers],
            )
        return list(zip(answers, map(self._row, answers, computed), strict=True))

    def _row(
        self, answer: EncodedQuestion, computed: dict[str, Any] | HalfRangeError
    ) -> dict[str, Any] | HalfRangeError:
        """The row of an answer, or why it does not fit."""
        if isinstance(computed, HalfRangeError):
            return computed
        # labels that came with the answer win over those of rules
        labels = self.grader.row(answer.grade) | answer.given_labels(self.grader.threshold)
        row = answer.columns() | labels | computed
        if "token_texts" in self.schema.columns:
            row["token_texts"] = self._token_texts.to_json(answer.tokens)
        row |= self.fields.row(answer.question.get("fields", {}))
        return {name: row[name] for name in self.schema.columns}

    def _describe(self, name: str | None) -> dict[str, Any]:
        decoding: dict[str, Any] = {"given": JOINING}
        rules = {}
        if any(one.is_example for one in self.questions):
            rules[EXAMPLE_RULE_KEY] = EXAMPLE_RULE
        if not self.is_given:
            decoding = describe_decoding(self.model, self.decoding)
            if self.decoding.stop and self.decoding.stop.isspace():
                rules[STOP_RULE_KEY] = STOP_RULE
        labels = self.grader.describe()
        if self.is_given:
            labels["label_rule"] = f"{AS_GIVEN}, else: {labels['label_rule']}"
        n_layers = self.model.config.get_text_config().num_hidden_layers
        return {
            "source": "huggingface",
            **describe_model(self.model, self.prompts.tokenizer, name, self.forward_attention),
            GENERATION_ATTENTION: self.generation_attention,
            "layers": self.layers,
            **conventions(self.layers, n_layers, appends=self.prompts.appends),
            **self.prompts.describe(given=self.is_given),
            **rules,
            "decoding": decoding,
            **labels,
            "questions": len(self.questions),
            "questions_sha256": digest_of([one.question for one in self.questions]),
            "versions": {name: version(name) for name in PACKAGES},
        }
