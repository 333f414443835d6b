"""Reads the texts of all rows of a store."""

import hashlib

from store.errors import SchemaError
from store.read.store import TraceStore
from store.traces.question_split import normalize_question

__all__ = [
    "QUESTION",
    "QUESTION_ID",
    "digest_text",
    "question_ids",
    "question_texts",
    "read_texts",
]

QUESTION_ID = "question_id"
QUESTION = "question"
CONTEXT = "context"


def read_texts(store: TraceStore, name: str) -> list[str]:
    """Read a utf8 column of all rows, by row; raises SchemaError if it holds numbers."""
    values = store.column(name)
    if not isinstance(values, list):
        raise SchemaError(
            f"{store.location}: column {name!r}: expected a text in each row, found {values.dtype}"
        )
    return values


def question_ids(store: TraceStore) -> list[str]:
    """Read the ids of the questions, by row; a blank one names none: there it is the trace's own.

    Raises NotFoundError without a column of them, and SchemaError if it holds numbers.
    """
    ids = read_texts(store, QUESTION_ID)
    if all(map(str.strip, ids)):
        return ids
    return [one if one.strip() else own for one, own in zip(ids, store.ids.own(), strict=True)]


def question_texts(store: TraceStore, name: str = QUESTION) -> list[str]:
    """Read the normalised texts of what is asked, by row; "" where the store has no such texts.

    A question of a context has, after a line break, a digest of the normalised context.
    """
    questions = _normalized(store, name)
    if not any(questions):
        return questions
    contexts = _normalized(store, CONTEXT)
    digests = {context: digest_text(context) for context in set(contexts)}
    return [
        f"{question}\n{digests[context]}" if question and context else question
        for question, context in zip(questions, contexts, strict=True)
    ]


def _normalized(store: TraceStore, name: str) -> list[str]:
    column = store.schema.columns.get(name)
    if column is None or not column.is_text:
        return [""] * len(store)
    texts = read_texts(store, name)
    normal = {text: normalize_question(text) for text in set(texts)}
    return [normal[text] for text in texts]


def digest_text(text: str) -> str:
    """A short digest by which equal texts are known; "" of no text."""
    return text and hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
