"""Figures that documents quote, looked up in tables."""

import pytest

from benchmarks.figures import FigureError, cell, documents, with_figures
from benchmarks.tables import Table

ROWS = [
    {"rows": "1 MB", "contender": "ours", "x_peer": "1.236", "share": "0.7931"},
    {"rows": "1 MB", "contender": "peer 3.1.6", "x_peer": "0.5", "share": ""},
    {"rows": "1 KB", "contender": "ours", "x_peer": "0.9", "share": "1234.5"},
]
TABLES = {"speed": Table(ROWS, ["rows", "contender"])}


def test_documents_quote_the_committed_tables():
    """Else: python -m benchmarks.figures."""
    found = dict(documents())
    assert [path.name for path, text in found.items() if path.read_text() != text] == []
    assert sum(text.count("results/") for text in found.values()) > 100


def test_a_row_is_named_by_some_of_its_cells():
    """The version at the end of a cell may be left out."""
    assert cell(TABLES, "speed", "1 KB", "share") == "1234.5"
    with pytest.raises(FigureError, match="found 0 such rows"):  # a figure names no row
        cell(TABLES, "speed", "0.9", "share")
    assert cell(TABLES, "speed", "peer", "x_peer") == "0.5"


@pytest.mark.parametrize(
    ("row", "column", "message"),
    [
        ("ours", "x_peer", "'ours' with 'x_peer', found 2 such rows"),
        ("theirs", "x_peer", "'theirs' with 'x_peer', found 0 such rows"),
        ("peer", "share", "with 'share'"),
        ("peer", "y", "with 'y'"),
    ],
)
def test_what_is_not_there_is_an_error(row, column, message):
    with pytest.raises(FigureError, match=message):
        cell(TABLES, "speed", row, column)


def test_figures_of_a_text_are_written_as_they_are_shown():
    """With as many decimals."""
    text = (
        'at [9.99](a/results/speed.csv "1 MB / ours: x_peer") or '
        '[0%](results/speed.csv "1 MB / ours: share"), [9](results/speed.csv "1 KB: share"), '
        '[0.0](results/speed.csv "1 MB / ours: x_peer over peer"), [2](speed.csv "no figure")\n'
        "| speed | 1 MB / ours | x_peer | 1.2 |"
    )
    assert with_figures(text, TABLES) == (
        'at [1.24](a/results/speed.csv "1 MB / ours: x_peer") or '
        '[79%](results/speed.csv "1 MB / ours: share"), [1,234](results/speed.csv "1 KB: share"), '
        '[2.5](results/speed.csv "1 MB / ours: x_peer over peer"), [2](speed.csv "no figure")\n'
        "| speed | 1 MB / ours | x_peer | 1.236 |"
    )
    with pytest.raises(FigureError, match=r"missing\.csv"):
        with_figures('[1](results/missing.csv "ours: x")', TABLES)
