"""Names of methods and their modules: a mapping that imports a method on first access.

`--help` and the check of a command line need the names only, without the seconds that torch takes.
"""

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeVar

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(UserDict[str, T]):
    """Name -> method.

    `places` gives "module:attribute", imported on first access, or the method itself.

    Examples
    --------
    >>> registry = Registry({"saplma": "models.saplma:Saplma"})
    >>> registry["mine"] = MyDetector  # doctest: +SKIP
    """

    data: dict[str, Any]  # "module:attribute" until the first access

    def __init__(self, places: Mapping[str, Any]) -> None:
        super().__init__(places)

    def __getitem__(self, name: str) -> T:
        method = self.data[name]
        if isinstance(method, str):
            module, _, attribute = method.partition(":")
            method = getattr(import_module(module), attribute)
            self.data[name] = method
        return method
