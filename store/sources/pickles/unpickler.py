"""Python's own unpickler, with a table of functions instead of imports.

This is the standard library's implementation in Python, not the one in C: its memo takes only the
slots that are filled, and every opcode is a method. The opcodes that reach outside the file are
refused here. Those that call a function or change an object accept functions of the table, lists,
dicts, sets, arrays and dtypes only.
"""

import math
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from store.errors import CorruptError, RefusedError
from store.sources.pickles.builders import BUILDERS, fill_array, set_byte_order
from store.sources.pickles.reader import CheckedReader, too_much

__all__ = ["Unpickler"]

# Most items that calls may copy for each byte of the pickle. Protocol 2 makes a bytearray by two
# calls; a pickle that copies more multiplies itself.
COPIES_PER_BYTE = 4

OLD_MODULES = {  # of Python 2 and NumPy 1
    "__builtin__": "builtins",
    "numpy.core.multiarray": "numpy._core.multiarray",
    "numpy.core.numeric": "numpy._core.numeric",
}

_SIZED = {str, bytes, bytearray, list}
_CONTAINERS = {list, tuple, set, frozenset, dict, OrderedDict}
_DATA = (
    type(None),
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    np.ndarray,
    np.generic,
    np.dtype,
    Tensor,
)


def _refused(asked: str) -> RefusedError:
    return RefusedError(f"asks for {asked}, which no trace needs; do not trust the file")


class Unpickler(pickle._Unpickler):
    """Reads one pickle.

    Parameters
    ----------
    reader
        The pickle.
    max_bytes : int
        Most bytes of all tensors; of a view, all that it shows counts.
    more_names
        What the pickle may ask for by name, apart from `BUILDERS`.

    Attributes
    ----------
    classes
        Classes whose objects may be built; none, unless a subclass adds some.
    """

    dispatch: ClassVar[Any]
    stack: list
    memo: dict
    read: Callable
    append: Callable
    pop_mark: Callable

    def __init__(self, reader: CheckedReader, max_bytes: int, more_names: dict[str, Any]) -> None:
        super().__init__(reader)
        self.classes: set[type] = set()
        self._reader = reader
        self._max_bytes = max_bytes
        self._names = BUILDERS | more_names
        self._n_copied = 0
        self._n_tensor_bytes = 0

    def load(self) -> Any:
        """Return what the next pickle holds."""
        self.memo = {}
        value = super().load()
        slot = max(self.memo, default=0)
        if slot > self._reader.n_read:  # every slot of the memo took an opcode to fill
            raise CorruptError(
                f"expected a whole pickle, found memo slot {slot} in {self._reader.n_read} bytes; "
                "copy the file again"
            )
        self._check_is_data(value)
        return value

    def _check_is_data(self, root: Any) -> None:
        """Refuse a value that holds functions or storages; nothing here recurses."""
        seen: set[int] = set()
        waiting = [root]
        while waiting:
            value = waiting.pop()
            kind = type(value)
            if isinstance(value, _DATA) or kind in self.classes or id(value) in seen:
                continue
            if kind not in _CONTAINERS:
                raise _refused(f"a {kind.__name__} as a value")
            seen.add(id(value))
            waiting.extend(value)
            if isinstance(value, dict):
                waiting.extend(value.values())

    def find_class(self, module: str, name: str) -> Any:
        """Return what the table holds under a name; there are no others."""
        present_module = OLD_MODULES.get(module, module)
        asked = f"{present_module}.{name}"
        if asked not in self._names:
            shown = ascii(f"{module[:80]}.{name[:80]}")
            raise _refused(shown[1:-1])
        return self._names[asked]

    def persistent_load(self, pid: object) -> Any:
        """Refuse an object that lies outside the pickle."""
        raise _refused("a persistent id (PERSID, BINPERSID)")

    def get_extension(self, code: int) -> None:
        """Refuse a name by its number in the process's registry."""
        raise _refused("the extension registry (EXT1, EXT2, EXT4)")

    def load_next_buffer(self) -> None:
        """Refuse a buffer that lies outside the pickle."""
        raise _refused("an out-of-band buffer (NEXT_BUFFER, READONLY_BUFFER)")

    load_readonly_buffer = load_next_buffer

    def load_newobj(self) -> None:
        """Make an object without a call: one of `classes`, without arguments."""
        arguments = self.stack.pop()
        kind = self.stack.pop()
        if kind not in self.classes or arguments != ():
            raise _refused("an object that is more than data")
        self.append(kind.__new__(kind))

    def load_newobj_ex(self) -> None:
        raise _refused("an object that is more than data")

    def _instantiate(self, *kind_and_arguments: object) -> None:
        self.load_newobj_ex()

    def load_reduce(self) -> None:
        """Call a function of the table: no other can be on the stack."""
        arguments = self.stack.pop()
        function = self.stack.pop()
        if type(function) is not FunctionType or type(arguments) is not tuple:
            raise _refused("a call of what is no function")
        self._count_copies(arguments)
        value = function(*arguments)
        if isinstance(value, Tensor):  # a copy of a view takes all that it shows
            self._n_tensor_bytes += math.prod(value.shape) * value.itemsize
            if self._n_tensor_bytes > self._max_bytes:
                raise too_much(f"tensors of {self._n_tensor_bytes} bytes", self._max_bytes)
        self.append(value)

    def load_build(self) -> None:
        """Set the state of an array, of a dtype or of an object of `classes`."""
        state = self.stack.pop()
        target = self.stack[-1]
        if type(target) is np.ndarray and type(state) is tuple:
            self._count_copies(state)
            fill_array(target, state)
        elif isinstance(target, np.dtype):
            set_byte_order(target, state)
        elif type(target) in self.classes and type(state) is dict:
            target.__setstate__(state)
        else:
            raise _refused(f"the state of a {type(target).__name__} to be set")

    def load_append(self) -> None:
        item = self.stack.pop()
        self._container(list).append(item)

    def load_appends(self) -> None:
        items = self.pop_mark()
        self._container(list).extend(items)

    def load_setitem(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self._container(dict)[key] = value

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self._container(dict).update(zip(items[::2], items[1::2], strict=True))

    def load_additems(self) -> None:
        items = self.pop_mark()
        self._container(set).update(items)

    def load_bytearray8(self) -> None:
        """Read a bytearray; its size is checked before it is allocated."""
        n = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(n)))

    def _container(self, kind: type) -> Any:
        """Return the container on the stack; arrays have methods of the same names."""
        container = self.stack[-1]
        if not isinstance(container, kind):
            raise _refused(f"items to be put into a {type(container).__name__}")
        return container

    def _count_copies(self, arguments: Iterable[Any]) -> None:
        """Refuse to copy one large value again and again, which would fill the memory."""
        self._n_copied += sum(len(value) for value in arguments if type(value) in _SIZED)
        allowed = COPIES_PER_BYTE * self._reader.n_read
        if self._n_copied > allowed:
            raise RefusedError(
                f"asks to copy {self._n_copied} items, where {allowed} are allowed; "
                "do not trust the file"
            )


# each opcode calls the method of this class: those above, or else the inherited one
Unpickler.dispatch = {
    opcode: getattr(Unpickler, load.__name__) for opcode, load in pickle._Unpickler.dispatch.items()
}
