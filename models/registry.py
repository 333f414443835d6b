"""Names of methods and their modules: a mapping that imports a method on first access.

`--help` and the check of a command line need the names only, without the seconds that torch takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, TypeVar

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """Name -> method.

    Parameters
    ----------
    places
        Name -> "module:attribute", imported on first access.

    Examples
    --------
    >>> registry = Registry({"saplma": "models.saplma:Saplma"})
    >>> registry["mine"] = MyDetector  # doctest: +SKIP
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._loaded:
            module, _, attribute = self._places[name].partition(":")
            self._loaded[name] = getattr(import_module(module), attribute)
        return self._loaded[name]

    def __setitem__(self, name: str, method: T) -> None:
        self._places.setdefault(name, "")
        self._loaded[name] = method

    def __delitem__(self, name: str) -> None:
        del self._places[name]
        self._loaded.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **other}

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**other, **self}

    def __repr__(self) -> str:
        return f"Registry({', '.join(self)})"
