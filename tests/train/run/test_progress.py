"""How far training is, in a log: a line a minute."""

import io

from rich.console import Console

from train.evaluate.results import Epoch
from train.run.progress import TrainingProgress


def run_steps(n_steps, seconds_a_step, is_terminal=False, rows_done=0):
    """What is written while a training makes steps of 10 rows, of two epochs of 1,000."""
    now = [100.0]
    out = io.StringIO()
    progress = TrainingProgress(clock=lambda: now[0])
    progress.live.console = Console(file=out, force_terminal=is_terminal, width=200)
    with progress:
        bar = progress.begin("lstm_solo", 1000, 2, rows_done)
        bar.on_epoch(Epoch(epoch=0, loss=0.5, val_auroc=0.75))
        for _ in range(n_steps):
            now[0] += seconds_a_step
            bar.on_step(10, 0.25)
        bar.end()
    return [line for line in out.getvalue().splitlines() if "at most" in line]


def test_a_line_a_minute():
    """What is trained, how far, how fast, how good, how long still."""
    lines = run_steps(n_steps=50, seconds_a_step=4)
    assert len(lines) == 3
    assert lines[0] == (
        "lstm_solo: epoch 2/2, 8% of the rows, 2 rows/s, loss 0.250, val 0.750, at most 0:12 h left"
    )


def test_a_short_training_or_a_terminal_has_no_lines():
    """A terminal has its bar."""
    assert run_steps(n_steps=50, seconds_a_step=1) == []
    assert run_steps(n_steps=50, seconds_a_step=4, is_terminal=True) == []


def test_a_resumed_training_tells_its_own_speed():
    """Rows that an earlier process saw are done, and say nothing of how fast this one is."""
    line = run_steps(n_steps=15, seconds_a_step=4, rows_done=1000)[0]
    assert "57% of the rows, 2 rows/s" in line


def test_the_speed_of_a_training_that_stopped_early_stays_there():
    """Its bar is full at the end, whatever it was to have."""
    now = [100.0]
    with TrainingProgress(visible=False) as progress:
        progress.get_time = lambda: now[0]
        bar = progress.begin("lstm_solo", 1000, 2)
        for _ in range(50):
            now[0] += 4
            bar.on_step(10, 0.25)
        bar.end()
        (task,) = progress.tasks
        assert task.finished
        assert task.finished_speed == 2.5
