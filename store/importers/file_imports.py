"""What imports of files share, whatever the files hold."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from store.errors import LockedError, NotFoundError, SchemaError
from store.labels.score_table import ScoreTable
from store.read.store import TraceStore
from store.reports import count
from store.write.source import REMARKS

__all__ = [
    "Committed",
    "check_apart",
    "check_scores_of_part",
    "digest_files",
    "is_finite",
    "match_pattern",
    "no_traces",
    "read_committed",
]

SHOWN_REASONS = 3  # why no trace is in any file


def match_pattern(pattern: str) -> list[Path]:
    """Return what a pattern names, sorted; nothing for a path without a name."""
    path = Path(pattern)
    if not path.name:
        return []
    try:
        return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    except ValueError as error:
        raise NotFoundError(f"{pattern}: expected a pattern of files, found: {error}") from error


def check_apart(out: Path, sources: Sequence[str]) -> None:
    """Raise SchemaError for a store to be made among what is imported.

    It would be one of the things to import itself when the import goes on, or is repeated.

    Parameters
    ----------
    out
        Where the store is made.
    sources
        Files, folders and patterns.
    """
    place = out.resolve()
    for source in sources:
        folders = [path for path in (Path(source), *match_pattern(source)) if path.is_dir()]
        is_within = any(place.is_relative_to(folder.resolve()) for folder in folders)
        if is_within or out.absolute().match(str(Path(source).absolute())):
            raise SchemaError(
                f"{out}: expected a path outside of what is imported, found it within {source}; "
                "choose another OUT, or a pattern of the files"
            )


def digest_files(named: Iterable[tuple[str, Path]]) -> str:
    """Return a checksum of the files' names, sizes and times, not of their contents."""
    lines = []
    for name, file in named:
        stat = file.stat()
        lines.append(f"{name}\t{stat.st_size}\t{stat.st_mtime_ns}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check_scores_of_part(scores: ScoreTable | None, part: tuple[int, int], advice: str) -> None:
    """Raise SchemaError for scores by trace id in a part, which numbers its traces by itself."""
    if scores is not None and scores.by_trace and part[1] > 1:
        raise SchemaError(
            f"{scores.source}: part {part[0]}/{part[1]} numbers the traces of a question by "
            f"itself, so scores by trace_id could go to others; {advice}, merge the parts, then "
            "python -m store label"
        )


def no_traces(n_files: int, reasons: Sequence[str], n_reasons: int) -> SchemaError:
    """Return the error of files without a whole trace.

    Parameters
    ----------
    n_files
        How many were looked at.
    reasons
        Why there is none in some of them, the first ones.
    n_reasons
        How many reasons there are in all.
    """
    shown = "; ".join(reasons[:SHOWN_REASONS]) or "no record is in them"
    if n_reasons > SHOWN_REASONS:
        shown += f"; and {n_reasons - SHOWN_REASONS:,} more"
    return SchemaError(f"expected traces in {count(n_files, 'file')}, found none: {shown}")


class Committed(NamedTuple):
    """What a stopped import has committed.

    Attributes
    ----------
    left_out
        Its report on what it left out; None without one.
    files, question_ids, trace_ids
        Of each row.
    n_unlabelled
        Rows without a label; 0 if labels are not asked for.
    """

    left_out: dict[str, Any] | None
    files: list[str]
    question_ids: list[str]
    trace_ids: list[str]
    n_unlabelled: int


def read_committed(begun: TraceStore | None, start: int, *, labels: bool) -> Committed:
    """Read the first rows of a stopped import, as far as it has to know them to go on.

    Raises LockedError without the store that it began.
    """
    if begun is None:
        raise LockedError(f"expected no trace, found {start} of another process; run it again")
    rows = range(start)
    batch = begun.read(rows, ["source_file", "question_id"])
    n_unlabelled = 0
    if labels:
        n_unlabelled = int((begun.read(rows, ["label"]).fixed("label") < 0).sum())
    return Committed(
        begun.provenance.get(REMARKS),
        batch.texts("source_file"),
        batch.texts("question_id"),
        list(begun.ids[:start]),
        n_unlabelled,
    )


def is_finite(value: Any) -> bool:
    """Return whether an array, or a tensor of bfloat16, has no NaN and no infinity.

    NumPy's isfinite is slow for half precision: there such values have all bits of the exponent
    set.
    """
    if hasattr(value, "detach"):
        import torch

        exponent = np.int16(0x7F80)
        bits = value.contiguous().view(torch.int16).numpy()
        return not ((bits & exponent) == exponent).any()
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return True
    if value.dtype != np.float16:
        return bool(np.isfinite(value).all())
    bits = np.ascontiguousarray(value).view(np.uint16)
    return not ((bits & 0x7C00) == 0x7C00).any()
