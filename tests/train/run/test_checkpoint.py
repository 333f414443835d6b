"""Checkpoints: whole or not there, read without running code, refused unless of the run that
asks."""

import pytest
import torch
from small import complaint

from train.errors import CheckpointError, OutputError
from train.files import make_directory, replace_file
from train.run.checkpoint import load_checkpoint, load_weights, save_checkpoint

OWNER = {"run": "a1", "detector": "lstm_solo", "seed": 0}


def test_round_trip(tmp_path):
    """What is saved comes back, weights and facts; one flipped bit is found, wherever in the
    tensors it is."""
    path, weights = tmp_path / "a.pt", torch.arange(1000.0)
    save_checkpoint(path, OWNER, {"weights": {"w": weights}, "epoch": 4})
    loaded = load_checkpoint(path, OWNER)
    assert loaded["epoch"] == 4
    assert torch.equal(loaded["weights"]["w"], weights)
    content = path.read_bytes()
    at = content.index(weights.numpy().tobytes())
    for i in range(at, at + 4000, 371):
        damaged = bytearray(content)
        damaged[i] ^= 64
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="unreadable checkpoint"):
            load_checkpoint(path, OWNER)


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "there is no checkpoint"),
        (b"", "unreadable checkpoint"),
        (b"not a checkpoint", "unreadable checkpoint"),
        (b"PK\x03\x04" + bytes(100), "unreadable checkpoint"),
        ([1, 2], "the file is not a checkpoint"),
    ],
)
def test_a_file_that_is_missing_damaged_or_foreign_is_refused(tmp_path, content, message):
    """In one line."""
    if isinstance(content, bytes):
        (tmp_path / "a.pt").write_bytes(content)
    elif content:
        torch.save(content, tmp_path / "a.pt")
    assert message in complaint(CheckpointError, load_checkpoint, tmp_path / "a.pt", OWNER)


def test_failed_write_leaves_the_old_file(tmp_path):
    """An error or an interrupt while writing keeps what was there, and no temporary file."""
    path = tmp_path / "a.txt"
    path.write_text("old")

    def stop_halfway(failure):
        with replace_file(path) as temporary:
            temporary.write_text("ne")
            raise failure

    for failure in (ValueError, KeyboardInterrupt):
        with pytest.raises(failure):
            stop_halfway(failure)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_unwritable_places_are_said(tmp_path):
    """A directory that cannot be made, or a file that cannot be written, is one line."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="expected a directory for results, found: "):
        make_directory(tmp_path / "file" / "out")
    with (
        pytest.raises(OutputError, match="cannot be written: "),
        replace_file(tmp_path / "no" / "a") as temporary,
    ):
        temporary.write_text("")


def test_weights_of_another_module_are_refused():
    """In one line."""
    module, weights = torch.nn.Linear(2, 1), {"weight": torch.zeros(1, 3)}
    line = complaint(CheckpointError, load_weights, module, weights, "a.pt")
    assert "a.pt: the weights do not fit this detector" in line
