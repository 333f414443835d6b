"""What a request may take, and what is kept of answers; the command line has the same defaults."""

from dataclasses import dataclass
from pathlib import Path

from store.write.files import DISK, Files

__all__ = ["Keeping", "Limits"]


@dataclass(frozen=True)
class Limits:
    """What a request may take."""

    tokens: int = 512  # of an answer
    seconds: float = 120.0  # from its coming to its last token
    requests: int = 64  # that run or wait
    body_bytes: int = 1_000_000


@dataclass(frozen=True)
class Keeping:
    """Which answers are kept, and where: those of either kind."""

    store: Path
    sample: float = 0.0  # probability of any answer
    above: float | None = None  # the score of some method from which on an answer is kept
    files: Files = DISK
