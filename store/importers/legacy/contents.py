"""What files of the older formats hold, decided by their content, never by their names."""

import glob
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from store.errors import SchemaError
from store.importers.damage import DAMAGE, one_line
from store.importers.files import Given, match_pattern, old_suffix
from store.importers.legacy.fields import shown_keys
from store.importers.legacy.preprocessed import (
    GraphTraces,
    PreprocessedTraces,
    QuestionIds,
    SequenceTraces,
)
from store.importers.legacy.raw import RawTraces
from store.importers.pickles import read_content
from store.reports import count

__all__ = ["FileReader", "Traces", "describe_files", "import_command", "survey_files"]

NAMED = 3  # files of a kind that are shown

Traces = RawTraces | PreprocessedTraces  # of one file


class FileReader:
    """Reads files, of which it holds the last one; fills `refused`: file -> why it is not read.

    Neither a file nor the arrays of a record have more than `max_bytes`.
    """

    def __init__(self, keep_attention: bool, max_bytes: int, refused: dict[str, str]) -> None:
        self._raw_traces = partial(RawTraces, keep_attention=keep_attention, max_bytes=max_bytes)
        self._max_bytes = max_bytes
        self._refused = refused
        self._last: tuple[Given, Traces] | None = None

    def read(self, item: Given) -> Traces:
        """Return the traces of a file, or raise what is wrong; the file before is let go first."""
        if self._last is None or self._last[0] != item:
            self._last = None
            content = read_content(item.path, item.kind, self._max_bytes)
            self._last = (item, self._understand(content))
        return self._last[1]

    @property
    def last_kind(self) -> str:
        return self._last[1].kind if self._last else ""

    def open(self, item: Given) -> Traces:
        """Return the traces of a file, none if it is refused."""
        if str(item.path) not in self._refused:
            try:
                return self.read(item)
            except DAMAGE as error:
                self.refuse(item, error)
        return self._raw_traces([])

    def refuse(self, item: Given, error: Exception) -> None:
        """Leave a file out, with the reason in one line."""
        name = str(item.path)
        reason = one_line(error)
        if not reason.startswith(name):
            reason = f"{name}: {reason}"
        self._refused[name] = reason

    def _understand(self, content: object) -> Traces:
        """Return the traces in a file's content; raise SchemaError with what it is not."""
        if isinstance(content, Mapping):
            for kind in (SequenceTraces, GraphTraces):
                if {kind.key, "labels", "question_ids"} <= content.keys():
                    return kind(content)
            found = f"a dict with the keys {shown_keys(content)}"
        elif not isinstance(content, list):
            found = type(content).__name__
        elif not content or any(  # damaged records beside it are named one by one
            isinstance(record, Mapping) and {"hidden_states", "attentions"} <= record.keys()
            for record in content
        ):
            return self._raw_traces(content)
        elif isinstance(content[0], Mapping):
            found = f"a list of {shown_keys(content[0])}"
        else:
            found = f"a list of {type(content[0]).__name__}"
        raise SchemaError(
            "expected a list of raw traces (hidden_states, attentions), or a dict of sequences or "
            f"graphs with labels and question_ids, found {found}; python -m store import --inspect "
            "shows a --map for other arrays"
        )


class Survey(NamedTuple):
    """What the files are."""

    files: list[Given]  # to read: either all preprocessed ones, graphs first, or all raw ones
    question_ids: QuestionIds  # of the preprocessed ones
    smallest_edge: float  # a threshold that all graphs were built with or above

    @property
    def is_preprocessed(self) -> bool:
        return any(self.question_ids.values())


def survey_files(files: Sequence[Given], reader: FileReader) -> Survey:
    """Look into the torch files, which are mapped; damaged ones are refused.

    Raises SchemaError where there are raw and preprocessed files.
    """
    question_ids: QuestionIds = {GraphTraces.kind: {}, SequenceTraces.kind: {}}
    raw = []
    smallest_edge = 0.0
    for item in files:
        if item.kind != "torch":
            raw.append(item)
            continue
        try:
            traces = reader.read(item)
            if isinstance(traces, GraphTraces):
                smallest_edge = max(smallest_edge, traces.smallest_edge())
        except DAMAGE as error:
            reader.refuse(item, error)
            continue
        if isinstance(traces, RawTraces):
            raw.append(item)
        else:
            question_ids[traces.kind][item] = traces.question_ids
    preprocessed = list(chain.from_iterable(question_ids.values()))
    if raw and preprocessed:
        paths = [item.path for item in raw]
        others = [item.path for item in preprocessed]
        raise SchemaError(
            f"expected files of one kind, found {describe_kind('raw', paths, others)} and "
            f"{describe_kind('preprocessed', others, paths)}; "
            "import the two kinds into two stores"
        )
    return Survey(preprocessed or raw, question_ids, smallest_edge)


def describe_kind(kind: str, files: Sequence[Path], others: Sequence[Path]) -> str:
    """Return which files are of a kind, and the command that imports them without the others."""
    return f"{describe_files(kind, files)}: {import_command(kind, files, others)}"


def describe_files(kind: str, files: Sequence[Path]) -> str:
    """Return how many files are of a kind, and the first of them."""
    more = ["..."] if len(files) > NAMED else []
    shown = ", ".join([*map(str, files[:NAMED]), *more])
    return f"{count(len(files), f'{kind} file')} ({shown})"


def import_command(kind: str, files: Sequence[Path], others: Sequence[Path]) -> str:
    """Return a command to copy, which imports files of a kind without the others.

    It names every file where no pattern tells them from the others.
    """
    slug = kind.replace(" ", "-")
    patterns = _patterns_of(files, others) if len(files) > NAMED else []
    sources = shlex.join(patterns or list(map(str, files)))
    return f"python -m store import OUT-{slug}.zarr {sources}"


def _patterns_of(files: Sequence[Path], others: Sequence[Path]) -> list[str]:
    """Return a few patterns that match these files and no others, [] if there are none."""
    patterns = list(dict.fromkeys(map(_pattern_of, files)))
    matched = chain.from_iterable(map(match_pattern, patterns))
    if len(patterns) > NAMED or not set(others).isdisjoint(matched):
        return []
    return patterns


def _pattern_of(file: Path) -> str:
    """Return the pattern of the files in its folder with its suffix; itself if it has none."""
    suffix = old_suffix(file)
    if not suffix:
        return str(file)
    folder = glob.escape(str(file.parent))
    return f"{folder}/*{file.name[-len(suffix) :]}"
