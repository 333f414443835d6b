"""Where `python -m store` and the console command `trace-store` begin."""

import signal
import sys

__all__ = ["command", "run"]


def command() -> int:
    """Run `trace-store`, which a `store.py` in the current folder cannot hide."""
    return run("trace-store")


def run(program: str = "python -m store") -> int:
    """Run one command and return its exit status; Ctrl-C and SIGTERM end it in one line."""
    try:
        from store.cli.main import Terminated, main
    except KeyboardInterrupt:  # the imports take a moment
        return 128 + signal.SIGINT

    def terminate(number: int, frame: object) -> None:
        raise Terminated(number)

    signal.signal(signal.SIGTERM, terminate)
    return main(program=program)


if __name__ == "__main__":
    sys.exit(run())
