"""Results as tables: their ratios, and what a file says of how it was made."""

from benchmarks.tables import finish, ratios, read_table

OLDER = """# python -m benchmarks.speed
# python 3.11.7, numpy 2.4.6
# A processor, 2 cores, 24 GiB, Linux 6.18.44
contender,x
ours,2
"""


def test_ratios_are_medians_of_the_ratios_of_turns():
    """So that an hour in which all are slow moves none; speeds are those of the median turn."""
    seconds = {"anchor": [2.0, 20.0, 4.0], "ours": [1.0, 10.0, 4.0]}
    anchor, ours = ratios(seconds, 8, 8 * 10**9, "anchor")
    assert anchor["x_anchor"] == 1
    assert ours["x_anchor"] == 2
    assert (ours["median_GB_per_s"], ours["best_GB_per_s"], ours["rows_per_s"]) == (2, 8, 2)


def test_a_table_says_how_it_is_compared(tmp_path, monkeypatch):
    """Its main figures, what names a row, how long it took and where, also with commas in names."""
    monkeypatch.setattr("sys.argv", ["/benchmarks/speed.py"])
    rows = [{"size": "1 KB", "contender": "a, b", "x_a,_b": 1.5}, {"size": "1 MB", "y": 2}]
    figures, named_by = ("x_a,_b", "y"), ("size", "contender")
    finish("speed", tmp_path, rows, lambda picture: None, figures, named_by)
    found = read_table(tmp_path / "speed.csv")
    assert (found.main, found.named_by) == (["x_a,_b", "y"], ["size", "contender"])
    assert found.rows[0] == {"size": "1 KB", "contender": "a, b", "x_a,_b": "1.5", "y": ""}
    assert found.took_s is not None
    assert " cores, " in found.machine


def test_tables_of_earlier_versions_are_read(tmp_path):
    (tmp_path / "speed.csv").write_text(OLDER)
    found = read_table(tmp_path / "speed.csv")
    assert found.rows == [{"contender": "ours", "x": "2"}]
    assert (found.main, found.took_s) == ([], None)
    assert found.machine == "A processor, 2 cores, 24 GiB, Linux 6.18.44"
