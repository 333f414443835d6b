"""Where `python -m store` and the console command `trace-store` begin."""

import signal
import sys

__all__ = ["command"]


def command() -> int:
    """Run one command and return its exit status; Ctrl-C and SIGTERM end it in one line."""
    try:
        from store.cli.main import Terminated, main
    except KeyboardInterrupt:  # the imports take a moment
        return 128 + signal.SIGINT

    def terminate(number: int, frame: object) -> None:
        raise Terminated(number)

    signal.signal(signal.SIGTERM, terminate)
    return main()


if __name__ == "__main__":
    sys.exit(command())
