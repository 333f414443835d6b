"""The columns of a trace that need no model: its texts, its tokens, its score and its label."""

import json
import math
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from store.sources.huggingface.answers import Answer
from store.sources.labels.rule import LABEL_RULES, label_scores
from store.sources.questions import Question

__all__ = ["answer_columns"]


def answer_columns(
    answer: Answer, tokenizer: PreTrainedTokenizerBase, labels: str, score_threshold: float
) -> dict[str, Any]:
    """Describe an answer.

    Parameters
    ----------
    answer : Answer
        The question, the prompt and the answer.
    tokenizer : PreTrainedTokenizerBase
        Turns the answer into text.
    labels : str
        A rule of `LABEL_RULES`.
    score_threshold : float
        Scores of at least this much count as right.

    Returns
    -------
    dict
        Texts, numbers, and `tokens` int32 (T,): prompt and answer.
    """
    question = answer.question
    text = _text(answer, tokenizer)
    score, label = _score_and_label(question, text, labels, score_threshold)
    context_start, context_len = answer.context
    return {
        "question_id": question["question_id"],
        "question": question["question"],
        "answer": text,
        "references": json.dumps(question["answers"], ensure_ascii=False),
        "score": score,
        "label": label,
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


def _score_and_label(
    question: Question, text: str, labels: str, score_threshold: float
) -> tuple[float, int]:
    """What is given with a response; what the rule says of the answer where nothing is."""
    if "label" in question:
        return question.get("score", math.nan), question["label"]
    score = question.get("score")
    if score is None:
        score = LABEL_RULES[labels].score(text, question["answers"])
    return score, int(label_scores(score, score_threshold))
