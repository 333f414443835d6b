"""Commands that are killed at a chosen step, for the tests of resuming."""

import os
import signal

from train.commands.main import main
from train.run.trainer import TrainingHooks


def killed_at(step, arguments):
    """Run the command, one training after the other, in a child process that is killed after so
    many steps; give whether it was."""
    child = os.fork()
    if child == 0:
        steps = iter(range(1, step + 1))

        def count(self, *args):
            if next(steps, step) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            TrainingHooks.on_step = count
            os._exit(main([*arguments, "--jobs", "1"]))
        finally:
            os._exit(70)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
