"""The README and the documents quote what the committed tables hold."""

import pytest

from benchmarks import readme


def test_figures_are_those_of_the_committed_tables():
    """Else: python -m benchmarks.readme."""
    found = readme.documents(readme.read_tables(), lambda told: None)
    differing = [path.name for path, text in found.items() if path.read_text() != text]
    assert differing == []
    assert found[readme.README].count("| ") > 20


def test_the_readme_is_short_with_every_figure():
    """Also with those that are left out until they are measured."""
    before, _, rest = readme.README.read_text().partition(readme.BEGIN)
    n_lines = (before + readme.BEGIN + readme.END + rest.partition(readme.END)[2]).count("\n")
    assert n_lines + len(readme.HEAD) + len(readme.QUOTES) <= 150


def test_without_marks_nothing_is_written():
    with pytest.raises(readme.FigureError, match="expected <!-- figures"):
        readme.with_table("no marks\n", ["| a |"])
