"""What a training logs for TensorBoard, read back with TensorBoard's own reader."""

import time
from contextlib import closing

import pytest

from train.errors import OutputError
from train.evaluate.results import Epoch
from train.run.progress import TensorBoardLog


def read(directory):
    """Tag -> (step, value) of each point that TensorBoard would draw."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()["scalars"]
    return {
        tag: [(one.step, pytest.approx(one.value)) for one in events.Scalars(tag)] for tag in tags
    }


def train(log, first, last):
    """Ten steps an epoch, from step `first` to before `last`."""
    for step in range(first, last):
        log.on_step(step, loss=1 / (step + 1), lr=step / 1000)
        if step % 10 == 9:
            log.on_epoch(Epoch(step // 10, 2.0, 0.5 + step / 1000))
    log.close()


def test_steps_are_thinned_and_epochs_are_not(tmp_path):
    """Every twentieth step, every epoch; an epoch stands at its last step."""
    train(TensorBoardLog(tmp_path / "new" / "log"), 0, 50)
    found = read(tmp_path / "new" / "log")
    assert found.keys() == {"step/loss", "step/lr", "epoch", "epoch/loss", "epoch/val_auroc"}
    assert found["step/loss"] == [(0, 1), (20, 1 / 21), (40, 1 / 41)]
    assert found["step/lr"] == [(0, 0), (20, 0.02), (40, 0.04)]
    assert found["epoch"] == [(10 * i + 9, i) for i in range(5)]
    assert found["epoch/val_auroc"] == [(10 * i + 9, 0.509 + i / 100) for i in range(5)]


def test_a_resumed_training_takes_back_what_it_makes_again(tmp_path):
    """Killed at step 47, resumed at 20: the log is that of a training that was never killed."""
    train(TensorBoardLog(tmp_path / "killed"), 0, 47)
    time.sleep(1.01)  # files are read by the second in their names
    train(TensorBoardLog(tmp_path / "killed", purge_step=20), 20, 60)
    train(TensorBoardLog(tmp_path / "whole"), 0, 60)
    assert read(tmp_path / "killed") == read(tmp_path / "whole")


def test_what_cannot_be_logged(tmp_path):
    """A loss of NaN or infinity makes no point; a directory that cannot be is one line."""
    with closing(TensorBoardLog(tmp_path / "log")) as log:
        log.on_step(0, float("nan"), 0.5)
        log.on_epoch(Epoch(0, float("inf"), 0.5))
    assert read(tmp_path / "log").keys() == {"step/lr", "epoch", "epoch/val_auroc"}
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file/log: cannot be written"):
        TensorBoardLog(tmp_path / "file" / "log")
