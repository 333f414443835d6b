"""What a check of a store found: problems, and how they are shown."""

import re
from dataclasses import asdict, dataclass, field
from itertools import chain

from store.reports import count

__all__ = ["INTERRUPTED", "KINDS", "Problem", "Report", "array_of"]

KINDS = ("damaged", "unverifiable", "index", "document", "leftover")  # of problems, the worst first
INTERRUPTED = "a file of an interrupted write"
NUMBER = re.compile(r"\b[0-9a-f]{8}\b|\d+")  # a checksum, or any other


def array_of(file: str) -> str:
    """Path of the array that a file is a shard of, inside the store; else the file."""
    return file.partition("/c/")[0]


@dataclass(frozen=True)
class Problem:
    """One fault: what was expected and found, its file inside the store, and, if known, column,
    shard, chunk (by its number in the shard), and rows concerned, (first, last).

    Its kind is 'damaged': values cannot be trusted; 'unverifiable': their checksums cannot;
    'index': ids may not be found; 'document': other Zarr clients may read something else;
    'leftover': a file that no writer of a store makes; or 'interrupted': an orphan of a writer that
    was stopped, which is no problem, see `Report.leftovers`.
    """

    kind: str
    file: str
    text: str
    column: str | None = None
    shard: int | None = None
    chunk: int | None = None
    rows: tuple[int, int] | None = None

    def __str__(self) -> str:
        text = f"{self.kind}: {self.text}"
        if self.rows is None:
            return text
        first, last = self.rows
        if first == last:
            return f"{text}; row {first}"
        return f"{text}; rows {first} to {last}"


@dataclass
class Report:
    """What `verify_store` found in a state of a store: every fault, damaged values first; none: it
    is whole.

    `leftovers` are orphaned files of an interrupted write, which the next writer removes, and
    metadata of arrays that it wrote ahead of the commit, which the next writer writes again.
    Nothing committed is in them. `bytes` of chunks were checked. `writer`: one was at work, and
    what it has not committed was not judged.
    """

    generation: int
    rows: int
    problems: list[Problem] = field(default_factory=list)
    leftovers: list[Problem] = field(default_factory=list)
    bytes: int = 0
    writer: bool = False

    def to_json(self) -> dict[str, object]:
        return asdict(self) | {"whole": not self.problems}

    def headline(self) -> str:
        """Whether the store is whole, and what an interrupted write left in it."""
        n_files = sum(orphan.text.endswith(INTERRUPTED) for orphan in self.leftovers)
        n_arrays = len({orphan.file for orphan in self.leftovers}) - n_files
        text = "whole"
        if self.problems:
            text = count(len(self.problems), "problem")
        if n_files:
            files = count(n_files, "file")
            text += f"; {files} of an interrupted write that the next writer removes"
        if n_arrays:
            arrays = count(n_arrays, "array")
            text += f"; metadata of {arrays} that the next writer sets back"
        return text

    def lines(self) -> list[str]:
        """The problems, a line each; those that differ in numbers only share one, with a count."""
        alike: dict[tuple[str, ...], list[Problem]] = {}
        for problem in self.problems:
            group = alike.setdefault(_without_numbers(problem), [])
            group.append(problem)
        return [_line_of(problems) for problems in alike.values()]

    def all_lines(self) -> list[str]:
        """Every problem, then every file of an interrupted write, a line each."""
        return [str(problem) for problem in (*self.problems, *self.leftovers)]


def _without_numbers(problem: Problem) -> tuple[str, ...]:
    """What problems share that differ in numbers only (in names: files that do not belong)."""
    if problem.kind == "leftover":
        return problem.kind, problem.text.removeprefix(problem.file)
    return problem.kind, array_of(problem.file), NUMBER.sub("#", problem.text)


def _line_of(problems: list[Problem]) -> str:
    """The first of some problems that are alike, and how many there are."""
    first, *others = problems
    if not others:
        return str(first)
    like_it = f"and {len(others):,} like it"
    rows = list(chain.from_iterable(problem.rows or () for problem in problems))
    if rows:
        like_it += f", rows {min(rows)} to {max(rows)} in all"
    return f"{first} ({like_it})"
