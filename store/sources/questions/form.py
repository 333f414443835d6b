"""How a benchmark writes its records, and what all of them need. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from store.sources.questions.question import find_first
from store.text_records import LineError

__all__ = ["SUMMARY", "Form", "Record", "as_list", "as_objects", "find_form", "form", "own_id"]

Record = Mapping[str, Any]
Expand = Callable[[Record, int], Iterable[Record]]
# templates of a summary to be written, without and with a chat template
SUMMARY = ("{context}\n\n{question}\nSummary:", "{question}\n\n{context}")
# of questions; `id` may be that of a response
_OWN_ID_NAMES = ("question_id", "QuestionId")


class Form(NamedTuple):
    """How a benchmark writes its records."""

    name: str  # of the benchmark
    keys: frozenset[str]  # a record that has all of these keys is one of it
    expand: Expand  # the record and its number, from 1 -> records of one spelling
    # the prompt template by default, without and with a chat template; None: the usual one
    template: str | None = None
    chat_template: str | None = None
    further: frozenset[str] = frozenset()  # keys beside `keys` that are no fields either
    matches: Callable[[Record], bool] | None = None  # what a record must be besides

    def fits(self, record: Record) -> bool:
        return self.keys <= record.keys() and (self.matches is None or self.matches(record))

    @property
    def used(self) -> frozenset[str]:
        """What a record says in another spelling, and is no field of its own."""
        return self.keys | self.further


_FORMS: list[Form] = []  # each that `form` has added, in the order in which they are tried


def form(
    name: str,
    keys: Sequence[str],
    further: Sequence[str] = (),
    templates: tuple[str | None, str | None] = (None, None),
    matches: Callable[[Record], bool] | None = None,
) -> Callable[[Expand], Expand]:
    """A decorator: add a form whose `expand` may raise what a value of another type makes it."""

    def add(expand: Expand) -> Expand:
        checked = partial(_checked, name, expand)
        _FORMS.append(Form(name, frozenset(keys), checked, *templates, frozenset(further), matches))
        return expand

    return add


def find_form(record: object) -> Form | None:
    """The benchmark that a record is of; None if of none."""
    if not isinstance(record, Mapping):
        return None
    return next((one for one in _FORMS if one.fits(record)), None)


def _checked(name: str, expand: Expand, record: Record, number: int) -> Iterator[Record]:
    """Turn what a value of another type than the data set's own raises into a LineError."""
    try:
        yield from expand(record, number)
    except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
        raise LineError(f"expected a record of {name} as published, found: {error}") from error


def own_id(record: Record, otherwise: str, names: tuple[str, ...] = ()) -> object:
    """The question_id that a record has, or what it has under one of these names."""
    own = find_first(record, (*_OWN_ID_NAMES, *names))
    return otherwise if own is None or own == "" else own


def as_objects(record: Record, name: str) -> list[Record]:
    values = as_list(record, name)
    if not all(isinstance(value, Mapping) for value in values):
        raise LineError(f"{name}: expected a list of objects, found {values!r:.200}")
    return values


def as_list(record: Record, name: str) -> list[Any]:
    value = record.get(name, [])
    if not isinstance(value, list):
        raise LineError(f"{name}: expected a list, found {value!r:.200}")
    return value
