"""The columns of a trace that need no forward pass: its texts, tokens, score and labels."""

import json
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from store.sources.huggingface.answers import Answer
from store.sources.labels.grading import Case, Grade, Grader

__all__ = ["answer_case", "answer_columns"]


def answer_case(answer: Answer, tokenizer: PreTrainedTokenizerBase) -> Case:
    """What an answer is labelled by: its text, with the question and the references."""
    text = str(tokenizer.decode(answer.ids, skip_special_tokens=True)).strip()
    return Case(answer.question["question"], answer.question["answers"], text)


def answer_columns(answer: Answer, case: Case, grader: Grader, grade: Grade) -> dict[str, Any]:
    """Describe an answer.

    Parameters
    ----------
    answer : Answer
        The question, the prompt and the answer.
    case : Case
        Its text.
    grader : Grader
        What labels it.
    grade : Grade
        Its labels.

    Returns
    -------
    dict
        Texts, numbers, and `tokens` int32 (T,): prompt and answer.
    """
    question, _, prompt, ids = answer
    return {
        **question,  # two columns are called as its keys are
        "answer": case.answer,
        "references": json.dumps(question["answers"], ensure_ascii=False),
        **grader.row(grade),
        "tokens": np.array(prompt + ids, np.int32),
        "prompt_len": len(prompt),
        "answer_len": len(ids),
    }
