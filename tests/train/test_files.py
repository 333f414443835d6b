"""Paths of the command line."""

from train.files import expand


def test_a_tilde_is_the_home_directory(monkeypatch, tmp_path):
    """As in a shell: at the start alone, and of users that exist."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand("~/a.zarr") == f"{tmp_path}/a.zarr"
    assert expand("runs/~") == "runs/~"
    assert expand("~nobody-of-this-name/a") == "~nobody-of-this-name/a"
