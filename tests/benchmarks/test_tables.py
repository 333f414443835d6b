"""Results as tables: their ratios, and what a file says of how it was made."""

import subprocess

from benchmarks.tables import commit, finish, ratios, read_table


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


def test_the_commit_is_marked_where_the_code_differs(tmp_path):
    """Results and documents are no code; without a repository nothing is known."""
    assert commit(tmp_path) == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    code, table = tmp_path / "code.py", tmp_path / "benchmarks" / "results" / "a.csv"
    for path in (code, table):
        path.write_text("1")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    found = commit(tmp_path)
    assert len(found) >= 7
    table.write_text("2")
    assert commit(tmp_path) == found
    code.write_text("2")
    assert commit(tmp_path) == f"{found}+"
