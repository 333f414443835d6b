"""Where tables are printed."""

from __future__ import annotations

from typing import NoReturn

from rich.console import Console

__all__ = ["OutputConsole"]


class OutputConsole(Console):
    """Standard output; a reader that leaves early, e.g. `| head`, is a BrokenPipeError as anywhere
    else."""

    def on_broken_pipe(self) -> NoReturn:
        """Do not end the process with status 1, as rich does."""
        raise BrokenPipeError
