"""What is said of how figures were made."""

import subprocess

from benchmarks.program import commit


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
