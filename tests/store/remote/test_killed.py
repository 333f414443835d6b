"""Pushes and pulls that are killed, or told to stop, anywhere; the same command goes on."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from pushing import assert_rows, grow, pull, push, write


@pytest.mark.slow
@pytest.mark.parametrize("command", ["push", "append", "pull"])
def test_a_command_that_is_killed_goes_on(bucket, tmp_path, command):
    """Wherever it was; Ctrl-C ends it at once, although requests are on their way."""
    path, copy = write(tmp_path / "s.zarr", 4 if command == "append" else 7), tmp_path / "copy.zarr"
    url, objects = bucket.url(), bucket.open()
    if command != "push":
        push(path, objects)
    if command == "append":
        grow(path, 7)
        command = "push"
    places = (path, url) if command == "push" else (url, copy)
    environment = environment_of(bucket)
    arguments = [sys.executable, "-m", "store", command, *map(str, places)]
    dice = random.Random(0)  # noqa: S311
    most = 20 if command == "push" else 12
    for number in range(8):
        bucket.server.seen.clear()
        passing = iter(range(dice.randrange(most) if number > 1 else 0))
        bucket.server.slow_s = 30.0
        bucket.server.faults = lambda *_, n=passing: "slow" if next(n, None) is None else None
        process = subprocess.Popen(
            arguments, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=heed_ctrl_c
        )
        while process.poll() is None and not any(fault for _, _, fault in bucket.server.seen):
            time.sleep(0.01)
        is_asked = number % 2
        process.send_signal(signal.SIGINT if is_asked else signal.SIGKILL)
        _, text = process.communicate(timeout=3)
        if process.returncode == 0:  # all was done before
            break
        assert process.returncode == (130 if is_asked else -signal.SIGKILL), text
        assert "stopped" in text or not is_asked
    assert number > 1
    bucket.server.faults = lambda *_: None
    push(path, objects)
    pull(objects, copy)
    assert_rows(copy, 7)


def heed_ctrl_c():
    """A shell has what it starts in the background ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def environment_of(bucket):
    """With the server's address, and all that can be imported here."""
    path = os.pathsep.join(sys.path)
    return os.environ | {"PYTHONPATH": path, "AWS_ENDPOINT_URL": bucket.server.url}
