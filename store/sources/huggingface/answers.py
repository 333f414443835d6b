"""From questions to answers: the token ids of each prompt, and those that the model goes on with.

An answer does not depend on what its question is batched with, rounding apart.
"""

from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.sources.huggingface.decoding import Decoding
from store.sources.huggingface.generation import StopRule, generate_answers
from store.sources.huggingface.prompts import Prompts
from store.sources.questions import Question
from store.sources.trace_ids import number_trace

__all__ = ["Answer", "answer_questions"]


class Answer(NamedTuple):
    """An answer to a question, with the token ids of the prompt and its own."""

    question: Question
    trace_id: str
    prompt: list[int]
    ids: list[int]


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
    model : PreTrainedModel
        Causal model.
    prompts : Prompts
        Make the prompt of a question.
    questions : sequence of Question
        The batch.
    max_new_tokens : int
        Longest answer.
    decoding : Decoding
        How answers are generated.
    stop : str, optional
        Text that ends an answer.

    Returns
    -------
    list of Answer
        `decoding.num_samples` of each question, one question after the other.
    """
    names = [question["question_id"] for question in questions]
    prompt_ids = [prompts.encode(question) for question in questions]
    rule = _stop_rule(prompts.tokenizer, stop)
    generated = generate_answers(model, prompt_ids, names, max_new_tokens, decoding, rule)
    answers = []
    for i, ids in enumerate(generated):
        number, k = divmod(i, decoding.num_samples)
        trace_id = number_trace(names[number], k + 1)
        answers.append(Answer(questions[number], trace_id, prompt_ids[number], ids))
    return answers


def _stop_rule(tokenizer: PreTrainedTokenizerBase, stop: str | None) -> StopRule | None:
    """Whether an answer contains the text that ends it; None without such a text."""
    if not stop:
        return None
    return lambda answer_ids: stop in tokenizer.decode(answer_ids)
