"""What an extraction says of its labels and answers, and what it warns of."""

import json

import numpy as np
import pytest

from store import Column, Schema, StoreWriter, TraceStore
from store.labels.report import rule_table, verdict_lines
from store.sources.huggingface.report import label_report

COLUMNS = {
    **dict.fromkeys(["answer", "references"], Column("utf8")),
    **dict.fromkeys(["label", "label_exact", "label_judge"], Column("int8")),
    "answer_len": Column("int32"),
}


@pytest.fixture
def report(tmp_path):
    """Report a store of twenty answers to which one reference belongs."""

    def run(answer, rules, *, answer_len=3, columns=COLUMNS, longest=8, n=20, provenance=None):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.zarr"
        with StoreWriter.create(path, Schema(columns), provenance or {}) as writer:
            for i in range(n):
                row = {
                    "answer": answer,
                    "references": json.dumps(["Paris"]),
                    "label": i % 2,
                    "label_exact": i % 2,
                    "label_judge": -1 if i < 4 else 1,
                    "answer_len": answer_len,
                }
                writer.append(str(i), {name: row[name] for name in columns})
        return label_report(TraceStore.open(path), rules, longest)

    return run


def test_nothing_to_warn_of(report):
    assert report("Paris.", ["exact"]) == ["  labels: 10 hallucinations, 10 right"]


def test_sentences_under_exact_match_or_f1_are_warned_of(report):
    """Where they cannot be right, however they are; not under `contains`."""
    long, longer = "It is Paris", "The capital of France is Paris"
    [_, warning] = report(long, ["exact"])
    assert warning.startswith(
        "warning: 100% of the answers are longer than each of their references, and exact "
        "counts all of those as wrong; use --labels contains, or let a model judge"
    )
    assert len(report(long, ["f1"])) == 1
    [_, warning] = report(longer, ["f1"])
    assert "and f1 counts all of those as wrong" in warning
    assert len(report(longer, ["contains"])) == len(report(longer, ["none"])) == 1


def test_answers_without_an_end_are_warned_of(report):
    """Most have as many tokens as they may; not where they were given, or there are too few."""
    [_, warning] = report("Paris", ["exact"], answer_len=8)
    assert warning.startswith("warning: 100% of the answers have 8 tokens (--max-new-tokens) and")
    assert r"--stop '\n'" in warning
    assert len(report("Paris", ["exact"], answer_len=8, longest=None)) == 1
    assert len(report("Paris", ["exact"], answer_len=8, n=8)) == 1
    few = {"label": Column("int8")}
    assert len(report("Paris", ["exact"], columns=few)) == 1
    assert report("Paris", ["exact"], columns={"answer_len": Column("int32")}) == []


def test_what_is_in_effect_is_not_advised(report):
    """Neither a text that ends answers nor a chat template, where there is one."""
    long = {"answer_len": 8}
    stopped = {"decoding": {"stop": "\n"}}
    [_, warning] = report("Paris", ["exact"], **long, provenance=stopped)
    assert "--stop" not in warning
    assert "allow more tokens, or ask a chat model with --chat-template" in warning
    chat = {"decoding": {"stop": None}, "chat_prompt": "<user>{question}"}
    [_, warning] = report("Paris", ["exact"], **long, provenance=chat)
    assert "--stop" in warning
    assert "--chat-template" not in warning
    [_, warning] = report("Paris", ["exact"], **long, provenance=chat | stopped)
    assert warning.endswith("no end: allow more tokens")


def test_several_rules_are_compared(report):
    lines = report("Paris", ["exact", "judge"])
    assert lines[1:] == [
        "  rule   hallucinations  right  unlabelled  agrees with exact",
        "  exact              10     10           0",
        "  judge              16      0           4        50.0% of 16",
    ]


def test_rules_that_label_no_row_in_common():
    one, other = np.array([1, -1]), np.array([-1, 0])
    assert rule_table({"f1": one, "judge": other})[-1].endswith("none in common")
    assert rule_table({"f1": one}) == []


def test_verdicts_are_counted():
    """And warned of where they are few."""
    assert verdict_lines({}) == []
    assert verdict_lines({"right": 5, "wrong": 8, "neither": 1}) == [
        "  judge: 8 wrong, 5 right, 1 neither"
    ]
    assert "verdict on 1 of 3 answers only" in verdict_lines({"right": 1, "neither": 2})[1]
    assert len(verdict_lines({"no references": 9})) == 1
