"""Import of arrays by a map `COLUMN=KEY`: NumPy, safetensors, Arrow, JSON lines, pickles."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TypeVar

import numpy as np

from store.errors import SchemaError, is_no_damage
from store.format.schema import TRACE_ID, Column
from store.importers.arrays.axes import check_named, has_rows
from store.importers.arrays.contents import BadRecord, Contents, Record, is_single
from store.importers.arrays.mapping import (
    KNOWN,
    PLAIN,
    PLAIN_FLOAT,
    TEXTS,
    Mapped,
    check_keys,
    column_of,
    plain_width,
    value_of,
)
from store.importers.damage import DAMAGE, one_line
from store.importers.files import Given
from store.importers.source import SINGLE, FileSource, Options, Row, check_scores_of_part
from store.labels.rule import check_agreement
from store.traces.fields import NO_FIELDS, NONE, Fields, find_fields

__all__ = ["MapSource"]

T = TypeVar("T")

UNLABELLED = ("score", "label")  # columns that a trace need not have a value for
# columns of one value, which a key of this name is without being mapped
IMPLIED = {name for name, axes in KNOWN.items() if axes == (None, ())} - {"source_file"}


class MapSource(FileSource):
    """The traces in files of arrays or tables, with at most `max_bytes` of an array in memory.

    Without a key for ids, a trace has the number of its row as its question id, with the name of
    its file before it where there are several; a file that is one trace gives it its name.
    """

    def __init__(
        self, given: Sequence[Given], mapped: Sequence[Mapped], options: Options, max_bytes: int
    ) -> None:
        self._asked = self._mapped = mapped
        self._max_bytes = max_bytes
        self._own_columns: dict[str, Column] = {}  # not known until a record is whole
        self._opened: tuple[Given, Contents] | None = None
        self._by_row = self._find_layout(given)
        self._mapped = [*mapped, *self._implied(given)]
        columns = [item.column for item in self._mapped]
        if "question_id" in columns and TRACE_ID not in columns:
            check_scores_of_part(options, "map trace_id, or leave out --scores")
        if options.scores is None:
            check_agreement(self._each(given, self._judged), options.score_threshold)
        self.fields = self._find_fields(given, options.fields)
        super().__init__(given, options)

    def _describe(self) -> dict[str, object]:
        return {
            "format": "mapped arrays",
            "map": {item.column: item.key for item in self._mapped},
            "axes": {
                item.column: item.axis or list(item.names or ())
                for item in self._mapped
                if item.axis or item.names
            },
            "rows_in_a_file": self._by_row,
        }

    def _find_layout(self, given: Sequence[Given]) -> bool:
        """Return whether the first file with all keys has a row for each trace."""
        problem: Exception | None = None
        for item in given:
            try:
                contents = self._open(item)
                if contents.is_table:
                    check_named(self._mapped, contents.keys, by_row=False)
                    return True
                by_row = has_rows(self._mapped, contents.keys)
                check_named(self._mapped, contents.keys, by_row)
                return by_row
            except DAMAGE as error:
                problem = problem or SchemaError(f"{item.path}: {one_line(error)}")
        raise problem or SchemaError("expected files of arrays, found none")

    def _implied(self, given: Sequence[Given]) -> list[Mapped]:
        """Return the keys of the first file that are called like a column of a single value."""
        taken = {name for item in self._asked for name in (item.column, item.key)}
        for contents in self._each(given, lambda contents: [contents]):
            # of two that are called the same, the single one counts
            single = [*self._lone_numbers(contents), *self._single_keys(contents)]
            free = {name.lower(): name for name in single if name not in taken}
            return [Mapped(name, free[name]) for name in free if name in IMPLIED - taken]
        return []

    def _n_record_axes(self, contents: Contents) -> int:
        """Return how many axes of each array are those of the records."""
        return int(self._by_row and not contents.is_table)

    def _single_keys(self, contents: Contents) -> list[str]:
        """Return the keys with one value a trace."""
        n_axes = self._n_record_axes(contents)
        return [name for name, key in contents.keys.items() if is_single(key, n_axes)]

    def _lone_numbers(self, contents: Contents) -> list[str]:
        """Return the keys of columns of one number that have an axis more, of length 1."""
        n_axes = self._n_record_axes(contents)
        numbers = {name: key for name, key in contents.keys.items() if name.lower() not in TEXTS}
        lone = {name: key for name, key in numbers.items() if key.shape[n_axes:] == (1,)}
        return [name for name, key in lone.items() if is_single(key, n_axes + 1)]

    def _find_fields(self, given: Sequence[Given], wanted: Sequence[str] | None) -> Fields:
        """Return what the records have in keys of single values that are not mapped."""
        mapped = {item.key for item in self._mapped}

        def read(contents: Contents) -> Iterable[Record]:
            chosen = {*self._single_keys(contents), *(wanted or ())} - mapped
            keys = [name for name in contents.keys if name in chosen]
            records = contents.records(keys, self._by_row) if keys else ()
            return (one for one in records if not isinstance(one, BadRecord))

        taken = {item.column for item in self._mapped}
        fields = NO_FIELDS if wanted == [NONE] else find_fields(self._each(given, read), wanted)
        for name in fields.columns.keys() & taken:
            raise SchemaError(
                f"field {fields.names[name]!r:.80}: --map makes the column {name!r}; leave the "
                f"field out (--fields all,-{fields.names[name]:.80})"
            )
        return fields

    def _judged(self, contents: Contents) -> Iterator[tuple[str, object, object]]:
        """Yield the place, the score and the label of each record, where both are mapped."""
        keys = {item.column: item.key for item in self._mapped if item.column in UNLABELLED}
        if len(keys) < len(UNLABELLED):
            return
        for i, record in enumerate(contents.records(list(keys.values()), self._by_row)):
            score, label = (record.get(keys[name]) for name in UNLABELLED)
            yield f"{contents.path}, record {i}", score, label

    def _open(self, item: Given) -> Contents:
        if self._opened is None or self._opened[0] != item:
            self._opened = None  # the file before is let go first
            self._opened = (item, item.open(self._max_bytes))
        contents = self._opened[1]
        check_keys(self._asked, contents)
        return contents

    def _each(self, given: Sequence[Given], read: Callable[[Contents], Iterable[T]]) -> Iterator[T]:
        """Yield what is read of each file; what is wrong with it is reported as it is imported."""
        for item in given:
            try:
                yield from read(self._open(item))
            except DAMAGE as error:
                if is_no_damage(error):
                    raise

    def _records(self, item: Given) -> Iterator[tuple[int, Record]]:
        contents = self._open(item)
        keys = dict.fromkeys([*(one.key for one in self._mapped), *self.fields.names.values()])
        return enumerate(contents.records([k for k in keys if k in contents.keys], self._by_row))

    def _row(self, item: Given, record: Record, i: int) -> tuple[str | None, Row]:
        if isinstance(record, BadRecord):
            raise record.error
        row: Row = {}
        for mapped in self._mapped:
            value = record.get(mapped.key)
            if value is None and mapped.column in TEXTS and mapped not in self._asked:
                value = ""
            if mapped.column not in UNLABELLED or not _is_missing(value):
                row[mapped.column] = value_of(mapped, value, self._own_columns.get(mapped.column))
        row |= self.fields.row(record)
        own_id = row.pop(TRACE_ID, None)
        row.setdefault("question_id", own_id or self._position(item, i))
        return own_id, row

    def _position(self, item: Given, i: int) -> str:
        """Return what a trace without an id is called."""
        name = self._names[item]
        if not self._by_row:
            return str(PurePath(name).with_suffix(""))
        return f"{name}/{i}" if len(self._names) > 1 else str(i)

    def _columns(self, row: Row) -> dict[str, Column]:
        own = [mapped for mapped in self._mapped if mapped.column not in (*SINGLE, TRACE_ID)]
        columns = {item.column: column_of(item, row[item.column]) for item in own}
        self._own_columns = columns | self._widened(own, columns)
        return SINGLE | self._own_columns

    def _widened(self, own: Sequence[Mapped], columns: dict[str, Column]) -> dict[str, Column]:
        """Return the columns of plain values, as wide as the widest value in any record."""
        looked_at = [item for item in own if _may_widen(item, columns[item.column])]
        widths = {item: PLAIN.index(columns[item.column].dtype) for item in looked_at}
        keys = [item.key for item in looked_at]
        files = list(self._names) if keys else []
        for record in self._each(files, lambda contents: contents.records(keys, self._by_row)):
            for item in looked_at:
                widths[item] = max(widths[item], plain_width(record.get(item.key)))
        return {
            item.column: replace(columns[item.column], dtype=PLAIN[width])
            for item, width in widths.items()
        }


def _is_missing(value: object) -> bool:
    """Return whether there is no value, also in axes of length 1; arrays of floats have NaN."""
    lone = np.asarray(value, object).reshape(-1)
    return len(lone) == 1 and (lone[0] is None or bool(lone[0] != lone[0]))


def _may_widen(item: Mapped, column: Column) -> bool:
    """Return whether a later value may need another dtype; arrays of floats are not read for it."""
    is_own = item.column not in KNOWN and column.dtype in PLAIN
    return is_own and (column.is_single or column.dtype != PLAIN_FLOAT)
