"""Where `python -m train` and the console command `trace-train` begin."""

import os
import signal
import sys

__all__ = ["command"]


def command() -> int:
    """Run the command line and return its exit status."""
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


if __name__ == "__main__":
    sys.exit(command())
