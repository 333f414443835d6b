"""The README and the documents quote what the committed tables hold."""

from benchmarks import readme


def test_figures_are_those_of_the_committed_tables():
    """Else: python -m benchmarks.readme."""
    found = readme.documents(readme.read_tables(), lambda told: None)
    differing = [path.name for path, text in found.items() if path.read_text() != text]
    assert differing == []
    assert found[readme.README].count("results/") > 20
