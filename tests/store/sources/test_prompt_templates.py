"""Prompt templates: fields, where they stand, and what is no template."""

import pytest

from store.sources.prompt_templates import (
    check_prompt_template,
    default_template,
    further_fields,
    render,
    template_fields,
)
from store.sources.questions.data_sets import find_form

VALUES = {"question": "{Why}?", "context": "Because.", "topic": "t"}


@pytest.mark.parametrize(
    "template",
    [
        "{question}",
        "{context}\n\n{question} {question}",
        "{{{topic}}}: {question}",
        "}}{context}{{",
    ],
)
def test_a_template_is_a_format_string(template):
    """And the place of each field is where its text stands first."""
    text, places = render(template, VALUES)
    assert text == template.format(**VALUES)
    assert set(places) == set(template_fields(template))
    for name, (start, end) in places.items():
        assert text[start:end] == VALUES[name]
        assert text.find(VALUES[name]) == start


@pytest.mark.parametrize(
    "template", ["{", "}", "{}", "{0}", "{question.x}", "{question!r}", "{a:9}"]
)
def test_what_reaches_into_a_value_is_refused(template):
    """A template names fields, nothing more."""
    with pytest.raises(ValueError, match="and no other braces"):
        check_prompt_template(template)


def test_a_template_without_a_field_is_refused():
    """It would ask the same every time."""
    with pytest.raises(ValueError, match=r"expected a format string with \{question\}, found 'Q'"):
        check_prompt_template("Q")
    check_prompt_template("Sum up: {context}")


def test_a_value_that_is_missing_is_named():
    """By the name of its field."""
    with pytest.raises(KeyError, match="place"):
        render("{place}", VALUES)
    assert further_fields("{place} {context} {question} {place}") == ["place"]


def test_default_templates():
    """With a context where there is one; a benchmark may have its own."""
    plain = default_template(None, has_context=False, chat=False)
    assert plain == "Question: {question}\nAnswer:"
    assert default_template(None, has_context=False, chat=True) == "{question}"
    with_context = default_template(None, has_context=True, chat=False)
    assert with_context == "Context: {context}\n\nQuestion: {question}\nAnswer:"
    assert default_template(None, has_context=True, chat=True) == "{context}\n\n{question}"
    ragtruth = find_form({"source_id": 1, "response": "", "labels": []})
    assert default_template(ragtruth, has_context=True, chat=False) == "{question}"
    halueval = find_form({"question": "", "right_answer": "", "hallucinated_answer": ""})
    assert default_template(halueval, has_context=True, chat=False) == with_context
