"""Labels of tokens, against an oracle that walks over the characters of every token itself."""

import random

import numpy as np
import pytest
from building import build_prompts
from character_oracles import ORACLES
from tokenizers_of_kinds import CORPUS, KINDS

from store.sources.huggingface.tokenization import label_tokens, tokens_of

N_SPANS = 1000
WORDS = sorted({word for text in CORPUS for word in text.split()})


def draw_words(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def draw_spans(rng, response):
    """One to three spans, which may overlap and begin within a word."""
    spans = []
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(response))
        end = rng.randint(start + 1, min(len(response), start + 12))
        spans.append({"start": start, "end": end, "label": ""})
    return spans


@pytest.mark.parametrize("kind", KINDS)
def test_labels_equal_those_of_single_characters(kind):
    """Of a thousand random spans: a token is 1 if any of its characters is in one."""
    tokenizer = KINDS[kind]()
    prompts = build_prompts(tokenizer, n=100_000)
    rng = random.Random(kind)  # noqa: S311 - draws of a test
    n_straddling = n_spans = 0
    while n_spans < N_SPANS:
        response = draw_words(rng, rng.randint(1, 8))
        question = {
            "question_id": "q",
            "trace_id": "q",
            "question": draw_words(rng, 3),
            "answers": [],
            "response": response,
            "spans": draw_spans(rng, response),
        }
        n_spans += len(question["spans"])
        before = f"Question: {question['question']}\nAnswer:"
        found = prompts.encode(question)
        text = f"{before} {response}"
        marked = {
            len(text) - len(response) + i
            for span in question["spans"]
            for i in range(span["start"], span["end"])
        }
        ids = found.tokens
        assert ids == tokenizer(text)["input_ids"]
        tokens = tokenizer.convert_ids_to_tokens(ids)[1:]  # without "<s>"
        characters = list(ORACLES[kind](tokens, text))
        n_prompt = len(found.prompt)
        expected = [-1] * n_prompt + [int(bool(c & marked)) for c in characters[n_prompt - 1 :]]
        assert found.token_label.dtype == np.int8
        assert found.token_label.tolist() == expected
        n_straddling += sum(bool(c & marked and c - marked) for c in characters)
        assert all(
            max(c, default=len(before)) >= len(before) for c in characters[n_prompt - 1 : n_prompt]
        )
    assert n_straddling > (0 if kind == "unigram" else 50)


def test_spans_that_overlap_count_once():
    """Their union is what is marked."""
    offsets = [(0, 0), (0, 2), (2, 4), (4, 6), (6, 8)]
    labels = label_tokens(offsets, 2, [(3, 5), (2, 5), (4, 5)], 8)
    assert labels.tolist() == [-1, -1, 1, 1, 0]
    assert label_tokens(offsets, 2, [], 8).tolist() == [-1, -1, 0, 0, 0]
    assert label_tokens(offsets, 2, None, 8).tolist() == [-1] * 5
    assert label_tokens([], 0, [], 0).tolist() == []


def test_the_tokens_of_a_place():
    """From the first that shares a character with it to the last."""
    offsets = [(0, 0), (0, 2), (2, 4), (4, 6), (6, 8)]
    assert tokens_of(offsets, (3, 5)) == (2, 2)
    assert tokens_of(offsets, (0, 8)) == (1, 4)
    assert tokens_of(offsets, (8, 9)) == (-1, 0)
    assert tokens_of(offsets, (3, 3)) == (-1, 0)
