"""What extraction does where an option is left out."""

from argparse import Namespace

import pytest

from store.cli.extract import settle_labels, settle_stop
from store.sources.prompt_templates import default_template

PLAIN = default_template(None, has_context=False, chat=False)


def options(**given):
    return Namespace(**{"stop": None, "labels": None, "chat_template": False} | given)


@pytest.mark.parametrize(
    "given, template, stop",
    [
        ({}, PLAIN, "\n"),
        ({}, default_template(None, has_context=True, chat=False), "\n"),
        ({}, "{question}=", None),
        ({"chat_template": True}, PLAIN, None),
        ({"stop": "none"}, PLAIN, None),
        ({"stop": ""}, PLAIN, None),
        ({"stop": r"\n\n"}, PLAIN, "\n\n"),
        ({"stop": "x"}, "{question}=", "x"),
    ],
)
def test_plain_answers_end_with_their_line(given, template, stop):
    """Unless another template or stop is given."""
    assert settle_stop(options(**given), template) == stop


@pytest.mark.parametrize(
    "given, is_given, rules",
    [
        ({}, False, ["exact"]),
        ({"chat_template": True}, False, ["contains"]),
        ({}, True, ["contains"]),
        ({"labels": ["f1", "judge"], "chat_template": True}, True, ["f1", "judge"]),
    ],
)
def test_sentences_are_searched_for_references(given, is_given, rules):
    """Of chat models, and given ones."""
    assert settle_labels(options(**given), is_given=is_given) == rules


def test_chat_models_are_asked_for_short_answers():
    asked = default_template(None, has_context=False, chat=True, briefly=True)
    assert asked.startswith("{question}\nAnswer in a few words")
