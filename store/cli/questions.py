"""Which questions an extraction asks, in all its parts together; no model library is imported."""

import argparse
from itertools import islice
from typing import NamedTuple

from store.errors import SchemaError
from store.labels.rule import check_agreement
from store.sources.prompt_templates import check_prompt_template, further_fields
from store.sources.questions import (
    Question,
    QuestionFile,
    read_question_file,
    without_responses,
)

__all__ = ["AllAsked", "read_all_asked"]


class AllAsked(NamedTuple):
    """The questions of a file, and what was said about them.

    Attributes
    ----------
    file
        All that is in the file.
    found
        Its questions, without the answers that are there where new ones are asked for.
    questions
        Those of `found` that `--limit` leaves.
    template
        The prompt template that was given, if one was.
    fields
        Which further fields of the records it names.
    """

    file: QuestionFile
    found: list[Question]
    questions: list[Question]
    template: str | None
    fields: list[str]


def read_all_asked(args: argparse.Namespace) -> AllAsked:
    """Read what all parts ask; raises SchemaError for a malformed template."""
    template = args.prompt_template and args.prompt_template.replace(r"\n", "\n")
    try:
        if template is not None:
            check_prompt_template(template)
        fields = list(further_fields(template or ""))
    except ValueError as error:
        raise SchemaError(str(error)) from error
    file = read_question_file(args.questions, fields)
    found = without_responses(file.questions) if args.generate else file.questions
    given = ((one.get("trace_id", ""), one.get("score"), one.get("label")) for one in found)
    check_agreement(given, args.score_threshold)
    return AllAsked(file, found, _first_questions(found, args.limit), template, fields)


def _first_questions(found: list[Question], limit: int | None) -> list[Question]:
    """The records of the first questions: one may have several answers."""
    names = dict.fromkeys(one["question_id"] for one in found)
    first = set(islice(names, limit))
    return [one for one in found if one["question_id"] in first]
