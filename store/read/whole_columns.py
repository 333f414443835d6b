"""Reads the texts of all rows of a store."""

from store.errors import SchemaError
from store.read.store import TraceStore

__all__ = ["QUESTION_ID", "read_texts"]

QUESTION_ID = "question_id"


def read_texts(store: TraceStore, name: str) -> list[str]:
    """Read a utf8 column of all rows, by row; raises SchemaError if it holds numbers."""
    values = store.column(name)
    if not isinstance(values, list):
        raise SchemaError(
            f"{store.path}: column {name!r}: expected a text in each row, found {values.dtype}"
        )
    return values
