"""A page to look at the traces of a store, served to this machine alone.

`columns`, `filters`, `traces`, `layers`, `attention`, `runs` and `scores` are functions
from a store to numbers; `server` hands them out, and `safety` decides to whom. Nothing here writes
to a store; notes of traces go to a file beside it.
"""

from pathlib import Path

__all__ = ["PAGE"]

PAGE = Path(__file__).parent / "page"  # the files that a browser shows
