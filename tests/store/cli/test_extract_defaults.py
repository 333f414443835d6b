"""What extraction does where an option is left out, also where an earlier version began."""

from argparse import Namespace

import pytest

from store.cli.extract_defaults import asks_briefly, settle_labels, settle_stop
from store.sources.labels.rule import LABEL_RULES
from store.sources.prompt_templates import default_template

EXACT = LABEL_RULES["exact"].text
PLAIN = default_template(None, has_context=False, chat=False)


def options(**given):
    return Namespace(**{"stop": None, "labels": None, "chat_template": False} | given)


@pytest.mark.parametrize(
    "given, template, begun, stop",
    [
        ({}, PLAIN, {}, "\n"),
        ({}, default_template(None, has_context=True, chat=False), {}, "\n"),
        ({}, "{question}=", {}, None),
        ({"chat_template": True}, PLAIN, {}, None),
        ({"stop": "none"}, PLAIN, {}, None),
        ({"stop": ""}, PLAIN, {}, None),
        ({"stop": r"\n\n"}, PLAIN, {}, "\n\n"),
        ({}, PLAIN, {"decoding": {"stop": None}}, None),
        ({}, PLAIN, {"decoding": {"stop": "\n"}}, "\n"),
        ({"stop": "x"}, PLAIN, {"decoding": {"stop": None}}, "x"),
    ],
)
def test_plain_answers_end_with_their_line(given, template, begun, stop):
    """Unless another template or stop is given, or a build goes on that has none."""
    assert settle_stop(options(**given), template, begun) == stop


@pytest.mark.parametrize(
    "given, begun, is_given, rules",
    [
        ({}, {}, False, ["exact"]),
        ({"chat_template": True}, {}, False, ["contains"]),
        ({}, {}, True, ["contains"]),
        ({"labels": ["f1", "judge"], "chat_template": True}, {}, True, ["f1", "judge"]),
        ({"chat_template": True}, {"label_rule": EXACT}, False, ["exact"]),
        ({}, {"label_rule": f"as given with the responses, else: {EXACT}"}, True, ["exact"]),
    ],
)
def test_sentences_are_searched_for_references(given, begun, is_given, rules):
    """Of chat models, and given ones; a build that began with exact match goes on with it."""
    assert settle_labels(options(**given), begun, EXACT, is_given=is_given) == rules


def test_chat_models_are_asked_for_short_answers():
    """Unless a build goes on whose questions were asked as they are."""
    assert asks_briefly({})
    assert not asks_briefly({"prompt_template": "{question}"})
    asked = default_template(None, has_context=False, chat=True, briefly=True)
    assert asked.startswith("{question}\nAnswer in a few words")
    assert asks_briefly({"prompt_template": asked})
