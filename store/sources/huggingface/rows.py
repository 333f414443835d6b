"""The columns of a trace that need no forward pass: its texts, tokens, score and labels."""

import json
import math
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from store.labels.grading import Case, Grade, Grader
from store.labels.rule import label_scores
from store.sources.huggingface.answers import Answer

__all__ = ["answer_case", "answer_columns", "is_labelled"]


def answer_case(answer: Answer, tokenizer: PreTrainedTokenizerBase) -> Case:
    """What an answer is labelled by: its text, with the question and the references."""
    question = answer.question
    return Case(question["question"], question["answers"], _text(answer, tokenizer))


def is_labelled(answer: Answer) -> bool:
    """Whether an answer comes with a label or a score, which win over every rule."""
    return "label" in answer.question or "score" in answer.question


def answer_columns(answer: Answer, case: Case, grader: Grader, grade: Grade) -> dict[str, Any]:
    """Describe an answer; `score` and `label` are those that it comes with, if it does.

    Returns
    -------
    dict
        Texts, numbers, and `tokens` int32 (T,): prompt and answer.
    """
    question = answer.question
    context_start, context_len = answer.context
    return {
        "question_id": question["question_id"],
        "question": question["question"],
        "answer": case.answer,
        "references": json.dumps(question["answers"], ensure_ascii=False),
        **grader.row(grade),
        **_given_columns(answer, grader.threshold),
        "tokens": np.array(answer.prompt + answer.ids, np.int32),
        "prompt_len": len(answer.prompt),
        "answer_len": len(answer.ids),
        "context_start": context_start,
        "context_len": context_len,
        "token_label": answer.token_label,
    }


def _text(answer: Answer, tokenizer: PreTrainedTokenizerBase) -> str:
    if "response" in answer.question:
        return answer.question["response"]
    return str(tokenizer.decode(answer.ids, skip_special_tokens=True)).strip()


def _given_columns(answer: Answer, threshold: float) -> dict[str, float | int]:
    """The score and the label that an answer comes with; empty if it has neither."""
    question = answer.question
    if "label" in question:
        return {"score": question.get("score", math.nan), "label": question["label"]}
    if "score" in question:
        score = question["score"]
        return {"score": score, "label": int(label_scores(score, threshold))}
    return {}
