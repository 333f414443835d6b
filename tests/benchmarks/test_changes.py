"""What changed between two tables of a benchmark."""

from benchmarks.changes import changes
from benchmarks.tables import Table


def table(*rows, main=("x",)):
    """A table of rows `(size, contender, x)`."""
    keys = ("size", "contender", "x")
    named = [dict(zip(keys, row, strict=True)) for row in rows]
    return Table(named, list(main), ["size", "contender"])


def test_figures_that_moved_are_told_and_others_are_not():
    """By more than the share given, in either direction; a table of an earlier version does not
    say which its main figures are."""
    before = table(
        ("1 KB", "ours", "0.50"), ("1 MB", "ours", "2.0"), ("2 MB", "ours", "1.0"), main=()
    )
    now = table(("1 KB", "ours", "0.52"), ("1 MB", "ours", "1.8"), ("2 MB", "ours", "1.2"))
    said = [
        (row["row"], row["before"], row["now"], row["change"]) for row in changes("a", before, now)
    ]
    assert said == [("1 MB, ours", "2.0", "1.8", "-10.0%"), ("2 MB, ours", "1.0", "1.2", "+20.0%")]


def test_rows_that_are_new_or_gone_are_told():
    """And figures that were zero, of which nothing is a share."""
    before = table(("1 KB", "ours", "1"), ("1 MB", "ours", "0.0"), ("2 MB", "ours", ""))
    now = table(("1 MB", "ours", "3"), ("2 MB", "ours", ""), ("1 KB", "theirs", "2"))
    said = {row["row"]: row["change"] for row in changes("a", before, now)}
    assert said == {"1 KB, ours": "gone", "1 MB, ours": "from 0", "1 KB, theirs": "new"}
