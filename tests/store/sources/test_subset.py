"""The rows of a subset."""

import pytest

from store import NotFoundError, SchemaError
from store.sources.question_split import SPLITS, split_of_question
from store.sources.subset import rows_of_questions, rows_of_split


def test_every_row_is_in_the_split_of_its_question(asked):
    rows_of = {split: rows_of_split(asked, split, seed=3) for split in SPLITS}
    assert sorted(row for rows in rows_of.values() for row in rows) == list(range(40))
    for split, rows in rows_of.items():
        assert all(split_of_question(f"q{row // 2}", 3) == split for row in rows)


def test_an_unknown_split_is_refused(asked):
    with pytest.raises(SchemaError, match=r"expected one of the splits .* found 'dev'"):
        rows_of_split(asked, "dev", seed=3)


def test_rows_of_questions(asked):
    """All of each question, ascending; a question without a trace is named."""
    assert rows_of_questions(asked, ["q19", "q0"]) == [0, 1, 38, 39]
    with pytest.raises(NotFoundError, match="found none of 'q77'"):
        rows_of_questions(asked, ["q0", "q77"])
