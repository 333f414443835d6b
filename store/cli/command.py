"""A command of `python -m store`: a class whose attributes are its options.

    class Get(Command):
        '''Print the values of one trace.'''   # the description in --help

        epilog = EXAMPLES
        store: Path = argument("path of the store", "STORE", path)
        json: bool = flag("print one JSON object")

An instance has the values that were typed. The order in --help is that of the class, then that of
its bases. A module of a command takes no torch: help comes at once, and so does the message about
a wrong argument.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from store.errors import SchemaError

__all__ = ["Command", "Heading", "argument", "flag", "option"]


class Heading(str):
    """Stands in --help over the options behind it, up to the next one."""


@dataclass(frozen=True)
class Option:
    """An argument of a command."""

    settings: dict[str, Any]  # those of `argparse.ArgumentParser.add_argument`
    # as it is typed, where that is not the attribute's; None for what is known by its place
    name: str | None = ""
    # options of one such name exclude each other; if they are required, one is needed
    either: str = ""
    required: bool = False

    @property
    def default(self) -> Any:
        return self.settings.get("default", False if "action" in self.settings else None)

    def typed(self, attribute: str) -> str:
        """How it is typed, as the attribute of a command."""
        return self.name or f"--{attribute.replace('_', '-')}"

    def add_to(self, parser: argparse._ActionsContainer, attribute: str) -> None:
        if self.name is None:
            parser.add_argument(attribute, **self.settings)
            return
        required = self.required and not self.either
        settings = {"dest": attribute, "required": required, **self.settings}
        parser.add_argument(self.typed(attribute), **settings)


def argument(
    text: str, metavar: str, kind: Callable[[str], Any] | None = None, **settings: object
) -> Any:
    """An argument that is known by its place; `text` explains it, `kind` makes its value."""
    return Option({"metavar": metavar, "type": kind, "help": text, **settings}, name=None)


def option(
    text: str,
    metavar: str | None = None,
    kind: Callable[[str], Any] | None = None,
    default: object = None,
    *,
    name: str = "",
    either: str = "",
    required: bool = False,
    **settings: object,
) -> Any:
    """An option with a value; its help says a default that is a number or a word."""
    if isinstance(default, float | int | str) and "(default" not in text:
        text += " (default: %(default)s)"
    settings = {"metavar": metavar, "type": kind, "help": text, "default": default, **settings}
    return Option(settings, name, either, required)


def flag(text: str, *, name: str = "", either: str = "", **settings: object) -> Any:
    """An option without a value: true where it is given."""
    return Option({"action": "store_true", "help": text, **settings}, name, either)


class Command(argparse.Namespace):
    """What a command was asked for; `run` does it."""

    usage: ClassVar[str | None] = None
    epilog: ClassVar[str]
    command: str  # its name
    typed: str  # the whole line

    def run(self) -> int:
        """Do it; return the exit status."""
        raise NotImplementedError

    def given(self, *attributes: str) -> list[str]:
        """Those of some options that have another value than by default, as typed."""
        return [
            found.typed(attribute)
            for attribute, found in self._declared().items()
            if isinstance(found, Option)
            and found.name is not None
            and attribute in attributes
            and getattr(self, attribute) != found.default
        ]

    def refuse(self, why: str, *attributes: str) -> None:
        """Raise SchemaError for the first of some options that was given: "--map is for ..."."""
        given = self.given(*attributes)
        if given:
            raise SchemaError(f"{given[0]} {why}")

    @classmethod
    def describe(cls, parser: argparse.ArgumentParser) -> None:
        """Add the help of the command, and its arguments."""
        parser.description = cls.__doc__
        parser.usage = cls.usage
        parser.epilog = cls.epilog
        place: argparse._ActionsContainer = parser
        exclusive: dict[str, argparse._ActionsContainer] = {}
        for attribute, found in cls._declared().items():
            if isinstance(found, Heading):
                place = parser.add_argument_group(found)
                continue
            if found.either and found.either not in exclusive:
                group = place.add_mutually_exclusive_group(required=found.required)
                exclusive[found.either] = group
            found.add_to(exclusive.get(found.either, place), attribute)

    @classmethod
    def _declared(cls) -> dict[str, Option | Heading]:
        """Attribute -> option or heading; what a base declares as well has its place there."""
        declared: dict[str, Option | Heading] = {}
        for kind in cls.__mro__:
            for name, value in vars(kind).items():
                if isinstance(value, Option | Heading):
                    declared.pop(name, None)
                    declared[name] = getattr(cls, name)
        return declared
