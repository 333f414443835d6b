"""Figures that documents quote, looked up in tables."""

import pytest

from benchmarks.figures import Figure, FigureError, NotMeasuredError, cell, rounded_as, with_figures
from benchmarks.tables import Table

ROWS = [
    {"rows": "1 MB", "contender": "ours", "x_peer": "1.236", "share": "0.7931"},
    {"rows": "1 MB", "contender": "peer 3.1.6", "x_peer": "0.5", "share": ""},
    {"rows": "1 KB", "contender": "ours", "x_peer": "0.9", "share": "1234.5"},
]
TABLES = {"speed": Table(ROWS, ["x_peer"], ["rows", "contender"]), "older": Table(ROWS)}


def test_a_row_is_named_by_some_of_its_cells():
    """The version at the end of a cell may be left out."""
    assert cell(TABLES, "speed", "1 KB", "share") == "1234.5"
    assert cell(TABLES, "older", "0.9", "share") == "1234.5"
    with pytest.raises(FigureError, match="found 0 rows"):  # a figure names no row
        cell(TABLES, "speed", "0.9", "share")
    assert cell(TABLES, "speed", "peer", "x_peer") == "0.5"
    assert Figure.named("speed", "1 MB / ours: x_peer over peer").value(TABLES) == 2.472


@pytest.mark.parametrize(
    ("row", "column", "message"),
    [
        ("ours", "x_peer", "found 2 rows 'ours'"),
        ("theirs", "x_peer", "found 0 rows 'theirs'"),
        ("peer", "share", "found no figure in 'share'"),
        ("peer", "y", "found no figure in 'y'"),
    ],
)
def test_what_is_not_there_is_an_error(row, column, message):
    """But in a table of an earlier version it was only not measured yet."""
    with pytest.raises(FigureError, match=message) as caught:
        cell(TABLES, "speed", row, column)
    assert not isinstance(caught.value, NotMeasuredError)
    with pytest.raises(NotMeasuredError, match=message):
        cell(TABLES, "older", row, column)


def test_figures_of_a_text_are_written_as_they_are_shown():
    """With as many decimals; what was not measured stays, and is told."""
    text = (
        'at [9.99](a/results/speed.csv "1 MB / ours: x_peer") or '
        '[0%](results/speed.csv "1 MB / ours: share"), [9](results/speed.csv "1 KB: share"), '
        '[–](results/speed.csv "1 MB / ours: x_peer over peer"); '
        '[–](results/missing.csv "ours: x"), [2](speed.csv "no figure")\n'
        "| speed | 1 MB / ours | x_peer | 1.2 |\n"
        "| missing | ours | x_peer | 7 |"
    )
    told = []
    assert with_figures(text, TABLES, told.append) == (
        'at [1.24](a/results/speed.csv "1 MB / ours: x_peer") or '
        '[79%](results/speed.csv "1 MB / ours: share"), [1,234](results/speed.csv "1 KB: share"), '
        '[2.5](results/speed.csv "1 MB / ours: x_peer over peer"); '
        '[–](results/missing.csv "ours: x"), [2](speed.csv "no figure")\n'
        "| speed | 1 MB / ours | x_peer | 1.236 |\n"
        "| missing | ours | x_peer | 7 |"
    )
    assert [line.partition(":")[0] for line in told] == ["missing.csv", "missing.csv"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.034, "0.03"), (1.01, "1.01"), (1.1, "1.1"), (9.96, "10"), (1165.1, "1165")],
)
def test_a_figure_that_is_new_has_two_or_three_digits(value, text):
    assert rounded_as(value, "–") == text
