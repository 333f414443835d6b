"""Where `python -m train` and the console command `trace-train` begin."""

import os
import signal
import sys

__all__ = ["command"]


def command() -> int:
    """Run the command line and return its exit status."""
    open_outputs()
    try:
        from train.commands.main import main
    except KeyboardInterrupt:  # the imports take a moment
        return 128 + signal.SIGINT
    status = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # Threads of torch's process group can outlive it, and abort an interpreter that ends in
        # the usual way.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def open_outputs() -> None:
    """Discard what would go to an output that was closed (`>&-`), for which Python has None."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115 - a descriptor


if __name__ == "__main__":
    sys.exit(command())
