"""The columns of a trace that need no model: its texts, its tokens, its score and its label."""

import json
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from store.sources.huggingface.answers import Answer
from store.sources.labels.rule import LABEL_RULES, label_scores

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
    question, _, prompt, ids = answer
    text = str(tokenizer.decode(ids, skip_special_tokens=True)).strip()
    score = LABEL_RULES[labels].score(text, question["answers"])
    return {
        **question,  # two columns are called as its keys are
        "answer": text,
        "references": json.dumps(question["answers"], ensure_ascii=False),
        "score": score,
        "label": int(label_scores(score, score_threshold)),
        "tokens": np.array(prompt + ids, np.int32),
        "prompt_len": len(prompt),
        "answer_len": len(ids),
    }
