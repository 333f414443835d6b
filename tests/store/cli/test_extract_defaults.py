"""What extraction does where an option is left out."""

import json

import pytest

from store.cli.extract import read_asked
from store.cli.main import parse

QUESTION = {"question_id": "q", "question": "?", "answers": ["a"]}
CONTEXT = QUESTION | {"context": "c"}
GIVEN = QUESTION | {"response": "a"}


@pytest.mark.parametrize(
    ("options", "record", "stop", "rules"),
    [
        ([], QUESTION, "\n", ["exact"]),
        ([], CONTEXT, "\n", ["exact"]),
        ([], GIVEN, "\n", ["contains"]),
        (["--prompt-template", "{question}="], QUESTION, None, ["exact"]),
        (["--chat-template"], QUESTION, None, ["contains"]),
        (["--stop", "none"], QUESTION, None, ["exact"]),
        (["--stop", ""], QUESTION, None, ["exact"]),
        (["--stop", r"\n\n"], QUESTION, "\n\n", ["exact"]),
        (["--stop", "x", "--prompt-template", "{question}="], QUESTION, "x", ["exact"]),
        (["--labels", "f1,exact", "--chat-template"], GIVEN, None, ["f1", "exact"]),
    ],
)
def test_plain_answers_end_with_their_line(tmp_path, options, record, stop, rules):
    """And sentences, of chat models and given ones, are searched for references; unless another
    stop, template or rule is given."""
    (tmp_path / "q.jsonl").write_text(json.dumps(record))
    typed = ["extract", "o", "--model", "m", "--questions", str(tmp_path / "q.jsonl"), *options]
    asked = read_asked(parse(typed))
    assert (asked.stop, asked.rules) == (stop, rules)


def test_chat_models_are_asked_for_short_answers(tmp_path):
    (tmp_path / "q.jsonl").write_text(json.dumps(QUESTION))
    typed = ["extract", "o", "--model", "m", "--questions", str(tmp_path / "q.jsonl")]
    asked = read_asked(parse([*typed, "--chat-template"]))
    assert asked.template.startswith("{question}\nAnswer in a few words")
