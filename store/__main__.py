"""`python -m store`: see `cli.py`."""

import signal
import sys


def run() -> int:
    """Import what the commands need and run one; Ctrl-C ends either in one line."""
    try:
        from store.cli.main import Terminated, main
    except KeyboardInterrupt:
        return 128 + signal.SIGINT

    def terminate(number: int, frame: object) -> None:
        raise Terminated(number)

    signal.signal(signal.SIGTERM, terminate)
    return main()


if __name__ == "__main__":
    sys.exit(run())
