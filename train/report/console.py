"""The console that tables are printed on."""

from typing import NoReturn

from rich.console import Console

__all__ = ["OutputConsole"]


class OutputConsole(Console):
    """Standard output; a pipe closed early, e.g. by `| head`, raises BrokenPipeError."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise, instead of ending the process with status 1 as rich does."""
        raise BrokenPipeError
