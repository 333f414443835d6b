"""Reads the texts of all rows of a store."""

from store.errors import SchemaError
from store.read.store import TraceStore
from store.traces.question_split import normalize_question

__all__ = ["QUESTION", "QUESTION_ID", "question_texts", "read_texts"]

QUESTION_ID = "question_id"
QUESTION = "question"


def read_texts(store: TraceStore, name: str) -> list[str]:
    """Read a utf8 column of all rows, by row; raises SchemaError if it holds numbers."""
    values = store.column(name)
    if not isinstance(values, list):
        raise SchemaError(
            f"{store.path}: column {name!r}: expected a text in each row, found {values.dtype}"
        )
    return values


def question_texts(store: TraceStore, name: str = QUESTION) -> list[str]:
    """Read the normalised texts of the questions, by row; "" where the store has no such texts."""
    column = store.schema.columns.get(name)
    if column is None or not column.is_text:
        return [""] * len(store)
    return [normalize_question(text) for text in read_texts(store, name)]
