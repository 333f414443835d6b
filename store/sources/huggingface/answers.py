"""From questions to answers: the token ids of each prompt, and those of what comes behind it.

A model writes the answers, or they are given: then nothing is generated. An answer does not depend
on what its question is batched with, rounding apart.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.labels.grading import Case
from store.labels.rule import label_scores
from store.sources.huggingface.decoding import Decoding
from store.sources.huggingface.generation import StopRule, generate_answers
from store.sources.huggingface.prompts import Prompt, Prompts
from store.sources.huggingface.token_labels import NO_LABEL
from store.sources.questions import Question
from store.traces.trace_ids import number_trace

__all__ = ["STOP_RULE", "Answer", "answer_questions", "take_responses"]

STOP_RULE = "a stop of nothing but space ends an answer behind its first words only"


class Answer(NamedTuple):
    """An answer to a question.

    Attributes
    ----------
    ids
        Its tokens, behind those of the prompt.
    text
        As it is compared with the references.
    token_label
        int8 (T,): 1 in a hallucinated span of the answer, 0 outside, -1 without annotations.
    """

    question: Question
    trace_id: str
    prompt: Prompt
    ids: list[int]
    text: str
    token_label: NDArray[np.int8]

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer, T tokens."""
        return self.prompt.ids + self.ids

    @property
    def case(self) -> Case:
        """What it is labelled by."""
        return Case(self.question["question"], self.question["answers"], self.text)

    @property
    def is_labelled(self) -> bool:
        """Whether it comes with a label or a score, which win over every rule."""
        return "label" in self.question or "score" in self.question

    def columns(self) -> dict[str, Any]:
        """What is known without a model and without rules: texts, numbers, `tokens` int32 (T,)."""
        question = self.question
        context_start, context_len = self.prompt.context
        return {
            "question_id": question["question_id"],
            "question": question["question"],
            "answer": self.text,
            "references": json.dumps(question["answers"], ensure_ascii=False),
            "tokens": np.array(self.tokens, np.int32),
            "prompt_len": len(self.prompt.ids),
            "answer_len": len(self.ids),
            "context_start": context_start,
            "context_len": context_len,
            "token_label": self.token_label,
        }

    def given_labels(self, threshold: float) -> dict[str, float | int]:
        """The score and the label that it comes with; empty if it has neither."""
        question = self.question
        if "label" in question:
            return {"score": question.get("score", math.nan), "label": question["label"]}
        if "score" in question:
            score = question["score"]
            return {"score": score, "label": int(label_scores(score, threshold))}
        return {}


def answer_questions(
    model: PreTrainedModel,
    prompts: Prompts,
    questions: Sequence[Question],
    max_new_tokens: int,
    decoding: Decoding,
    stop: str | None,
) -> list[Answer]:
    """Ask a model a batch of questions.

    Returns
    -------
    list of Answer
        `decoding.num_samples` of each question, one question after the other.
    """
    names = [question["question_id"] for question in questions]
    encoded = [prompts.encode(question) for question in questions]
    prompt_ids = [prompt.ids for prompt in encoded]
    rule = _stop_rule(prompts.tokenizer, stop)
    generated = generate_answers(model, prompt_ids, names, max_new_tokens, decoding, rule)
    answers = []
    for i, ids in enumerate(generated):
        number, k = divmod(i, decoding.num_samples)
        trace_id = number_trace(names[number], k + 1)
        prompt = encoded[number]
        text = str(prompts.tokenizer.decode(ids, skip_special_tokens=True)).strip()
        unlabelled = np.full(len(prompt.ids) + len(ids), NO_LABEL, np.int8)
        answers.append(Answer(questions[number], trace_id, prompt, ids, text, unlabelled))
    return answers


def take_responses(prompts: Prompts, questions: Sequence[Question]) -> list[Answer]:
    """The responses that questions come with, as if the model had answered with them."""
    answers = []
    for question in questions:
        prompt, ids, token_label = prompts.force(question)
        text = question["response"]
        answers.append(Answer(question, question["trace_id"], prompt, ids, text, token_label))
    return answers


def _stop_rule(tokenizer: PreTrainedTokenizerBase, stop: str | None) -> StopRule | None:
    """Whether an answer contains the text that ends it (`STOP_RULE`); None without such a text."""
    if not stop:
        return None
    if stop.isspace():
        # some models begin with a new line, which would leave an empty answer
        return lambda answer_ids: stop in str(tokenizer.decode(answer_ids)).lstrip()
    return lambda answer_ids: stop in tokenizer.decode(answer_ids)
