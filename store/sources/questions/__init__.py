"""Questions, and answers to them that exist already, from files of many forms."""

from store.sources.questions.files import QuestionFile, read_question_file, read_questions
from store.sources.questions.question import (
    Question,
    Span,
    generators_of,
    keep_generator,
    without_responses,
)

__all__ = [
    "Question",
    "QuestionFile",
    "Span",
    "generators_of",
    "keep_generator",
    "read_question_file",
    "read_questions",
    "without_responses",
]
