"""Prompt templates: texts with `{question}`, `{context}` and other fields of a record. Pure."""

from collections.abc import Mapping
from functools import lru_cache
from string import Formatter
from typing import NamedTuple

from store.sources.questions.data_sets import Form

__all__ = [
    "PLAIN_TEMPLATES",
    "Rendered",
    "check_prompt_template",
    "default_template",
    "further_fields",
    "render",
    "template_fields",
]

_PLAIN = "Question: {question}\nAnswer:"
_PLAIN_WITH_CONTEXT = "Context: {context}\n\n" + _PLAIN
_CHAT = "{question}"
_CHAT_WITH_CONTEXT = "{context}\n\n{question}"
# the answers to these end with their line: a base model goes on with questions of its own
PLAIN_TEMPLATES = (_PLAIN, _PLAIN_WITH_CONTEXT)
# chat models answer in sentences, which are harder to compare with references, unless asked
_BRIEFLY = "\nAnswer in a few words, without an explanation."


class Rendered(NamedTuple):
    """A template with its fields filled in."""

    text: str  # the whole
    # name of a field -> the characters of `text` that it fills, from start to before end, where it
    # stands first
    places: dict[str, tuple[int, int]]


def render(template: str, values: Mapping[str, str]) -> Rendered:
    """Fill in a template; raises ValueError for a malformed one, KeyError without a value."""
    text = ""
    places: dict[str, tuple[int, int]] = {}
    for literal, name in _parts(template):
        text += literal
        if name is not None:
            start = len(text)
            text += values[name]
            places.setdefault(name, (start, len(text)))
    return Rendered(text, places)


def template_fields(template: str) -> list[str]:
    """The names of a template's fields, each once; raises ValueError for a malformed one."""
    return list(dict.fromkeys(name for _, name in _parts(template) if name is not None))


def further_fields(template: str) -> list[str]:
    """The fields that only the record of a question can fill."""
    return [name for name in template_fields(template) if name not in ("question", "context")]


def check_prompt_template(template: str) -> None:
    """Raise ValueError for a template without any field, or that is no format string."""
    if not template_fields(template):
        raise ValueError(
            f"prompt_template: expected a format string with {{question}}, found {template!r}"
        )


def default_template(
    form: Form | None, *, has_context: bool, chat: bool, briefly: bool = False
) -> str:
    """The template where none is asked for.

    `form`: the benchmark that the questions are of, which may have a template of its own.
    `has_context`: whether questions come with a context. `chat`: whether the result goes into a
    chat template. `briefly`: whether a chat model is asked for a short answer, to questions of no
    benchmark with a template of its own.
    """
    own = form and (form.chat_template if chat else form.template)
    if own:
        return own
    if chat:
        asked = _CHAT_WITH_CONTEXT if has_context else _CHAT
        return asked + _BRIEFLY if briefly else asked
    return _PLAIN_WITH_CONTEXT if has_context else _PLAIN


@lru_cache
def _parts(template: str) -> list[tuple[str, str | None]]:
    """Literal texts, each with the name of the field behind it, or None."""
    try:
        parts = [
            (literal, name, bool(spec or conversion))
            for literal, name, spec, conversion in Formatter().parse(template)
        ]
    except ValueError as error:
        raise _malformed(template) from error
    for _, name, is_formatted in parts:
        if name is not None and (is_formatted or not name.isidentifier()):
            raise _malformed(template)
    return [(literal, name) for literal, name, _ in parts]


def _malformed(template: str) -> ValueError:
    return ValueError(
        "prompt_template: expected {question}, {context} or a field of the records, and no other "
        f"braces (write {{{{ for one), found {template!r}"
    )
