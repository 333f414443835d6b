"""From questions to answers: the token ids of each prompt, and those of what comes behind it.

A model writes the answers, or they are given: then nothing is generated.

An answer does not depend on what its question is batched with, rounding apart.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.sources.huggingface.decoding import Decoding
from store.sources.huggingface.generation import StopRule, generate_answers
from store.sources.huggingface.prompts import Prompts
from store.sources.huggingface.token_labels import NO_LABEL
from store.sources.questions import Question
from store.traces.trace_ids import number_trace

__all__ = ["STOP_RULE", "Answer", "answer_questions", "take_responses"]

STOP_RULE = "a stop of nothing but space ends an answer behind its first words only"


class Answer(NamedTuple):
    """An answer to a question, with the token ids of the prompt and its own.

    Attributes
    ----------
    context
        The first token of the context, and how many there are; (-1, 0) without one.
    token_label
        int8 (T,): 1 in a hallucinated span of the answer, 0 outside, -1 without annotations.
    """

    question: Question
    trace_id: str
    prompt: list[int]
    ids: list[int]
    context: tuple[int, int]
    token_label: NDArray[np.int8]


def answer_questions(
    model: PreTrainedModel,
    prompts: Prompts,
    questions: Sequence[Question],
    max_new_tokens: int,
    decoding: Decoding,
    stop: str | None,
) -> list[Answer]:
    """Ask a model a batch of questions.

    Parameters
    ----------
    max_new_tokens : int
        Longest answer.
    stop : str, optional
        Text that ends an answer.

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
        prompt, context = encoded[number]
        unlabelled = np.full(len(prompt) + len(ids), NO_LABEL, np.int8)
        answers.append(Answer(questions[number], trace_id, prompt, ids, context, unlabelled))
    return answers


def take_responses(prompts: Prompts, questions: Sequence[Question]) -> list[Answer]:
    """The responses that questions come with, as if the model had answered with them."""
    answers = []
    for question in questions:
        (prompt, context), ids, token_label = prompts.force(question)
        trace_id = question["trace_id"]
        answers.append(Answer(question, trace_id, prompt, ids, context, token_label))
    return answers


def _stop_rule(tokenizer: PreTrainedTokenizerBase, stop: str | None) -> StopRule | None:
    """Whether an answer contains the text that ends it (`STOP_RULE`); None without such a text."""
    if not stop:
        return None
    if stop.isspace():
        # some models begin with a new line, which would leave an empty answer
        return lambda answer_ids: stop in str(tokenizer.decode(answer_ids)).lstrip()
    return lambda answer_ids: stop in tokenizer.decode(answer_ids)
