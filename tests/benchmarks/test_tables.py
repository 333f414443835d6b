"""Results as tables: their ratios, and what a file says of how it was made."""

from benchmarks.tables import finish, ratios, read_table


def test_ratios_are_medians_of_the_ratios_of_turns():
    """So that an hour in which all are slow moves none; speeds are those of the median turn."""
    seconds = {"anchor": [2.0, 20.0, 4.0], "ours": [1.0, 10.0, 4.0]}
    anchor, ours = ratios(seconds, 8, 8 * 10**9, "anchor")
    assert anchor["x_anchor"] == 1
    assert ours["x_anchor"] == 2
    assert (ours["median_GB_per_s"], ours["best_GB_per_s"], ours["rows_per_s"]) == (2, 8, 2)


def test_a_table_is_read_as_it_was_written(tmp_path, monkeypatch):
    """With what names a row, also with commas in names."""
    monkeypatch.setattr("sys.argv", ["/benchmarks/speed.py"])
    rows = [{"size": "1 KB", "contender": "a, b", "x_a,_b": 1.5}, {"size": "1 MB", "y": 2}]
    finish("speed", tmp_path, rows, "size", "contender")
    found = read_table(tmp_path / "speed.csv")
    assert found.named_by == ["size", "contender"]
    assert found.rows[0] == {"size": "1 KB", "contender": "a, b", "x_a,_b": "1.5", "y": ""}
