"""Python's own unpickler, with a table of functions instead of imports.

This is the standard library's implementation in Python, not the one in C: its memo takes only the
slots that are filled, and every opcode is a method. The opcodes that reach outside the file are
refused here. Those that call a function or change an object accept functions of the table, lists,
dicts, sets, arrays and dtypes only.
"""

import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import chain
from types import FunctionType
from typing import Any, ClassVar

import numpy as np

from store.errors import CorruptError, RefusedError
from store.importers.pickles.builders import (
    BUILDERS,
    Graph,
    Storage,
    StorageKind,
    fill_array,
    set_byte_order,
)
from store.importers.pickles.limits import (
    CheckedReader,
    check_keys,
    check_tree,
    refused,
    too_much,
)

__all__ = ["Unpickler"]

# Most items that calls may copy for each byte of the pickle. Protocol 2 makes a bytearray by two
# calls; a pickle that copies more multiplies itself.
COPIES_PER_BYTE = 4

library: Any = pickle

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
)


class Unpickler(pickle._Unpickler):
    """Reads one pickle, which may ask for `more_names` apart from `BUILDERS`.

    `storage_of`: (key, dtype, number of items) -> the items of a storage that lies outside the
    pickle; raises CorruptError if there are not as many. None where nothing may lie outside. Values
    of the types `more_data` may be in it, apart from those of `_DATA`.
    """

    dispatch: ClassVar[Any]
    stack: list
    memo: dict
    read: Callable
    append: Callable
    pop_mark: Callable

    def __init__(
        self,
        reader: CheckedReader,
        more_names: dict[str, Any],
        storage_of: Callable[[str, np.dtype, int], np.ndarray] | None = None,
        more_data: tuple[type, ...] = (),
    ) -> None:
        super().__init__(reader)
        self._data = (*_DATA, *more_data)
        self._reader = reader
        self._names = BUILDERS | more_names
        self._storage_of = storage_of
        self._n_copied = 0

    def load(self) -> Any:
        """Return what the next pickle holds."""
        self.memo = {}
        value = self._run()
        check_tree(value, self._parts, self._reader.n_read, self._reader.max_bytes)
        return value

    def _run(self) -> Any:
        """The standard library's loop, and no more opcodes than are allowed."""
        self._unframer = library._Unframer(self._reader.read, self._reader.readline)
        self.read = read = self._unframer.read
        self.readinto = self._unframer.readinto
        self.readline = self._unframer.readline
        self.metastack: list[list] = []
        self.stack = []
        self.append = self.stack.append
        dispatch = self.dispatch
        try:
            for _ in range(self._reader.max_opcodes):
                dispatch[read(1)[0]](self)
        except library._Stop as end:
            return end.value
        reader = self._reader
        found = f"more than {reader.max_opcodes} opcodes from a file of that size"
        raise too_much(found, reader.max_bytes) if reader.takes_memory else refused(found)

    def _parts(self, value: Any) -> Iterable[Any] | None:
        """What a value holds; None of one that holds no others. Functions are refused."""
        kind = type(value)
        if isinstance(value, self._data):
            return None
        if kind is Graph:
            return [value.attributes]
        if kind not in _CONTAINERS:
            raise refused(f"a {kind.__name__} as a value")
        return chain(value, value.values()) if isinstance(value, dict) else value

    def find_class(self, module: str, name: str) -> Any:
        """Return what the table holds under a name; there are no others."""
        present_module = OLD_MODULES.get(module, module)
        asked = f"{present_module}.{name}"
        if asked not in self._names:
            shown = ascii(f"{module[:80]}.{name[:80]}")
            raise refused(shown[1:-1])
        return self._names[asked]

    def persistent_load(self, pid: object) -> Storage:
        """Return the storage that the pickle names; of other objects outside it there are none."""
        if self._storage_of is None:
            raise refused("a persistent id (PERSID, BINPERSID)")
        match pid:
            case ("storage", StorageKind(dtype), str() as key, str(), int() as n, *view):
                if n < 0 or view not in ([], [None]):
                    raise CorruptError("expected a whole storage, found a part of another")
                return Storage(self._storage_of(key, dtype, n))
        raise CorruptError("expected a storage, found another persistent id")

    def get_extension(self, code: int) -> None:
        """Refuse a name by its number in the process's registry."""
        raise refused("the extension registry (EXT1, EXT2, EXT4)")

    def load_next_buffer(self) -> None:
        """Refuse a buffer that lies outside the pickle."""
        raise refused("an out-of-band buffer (NEXT_BUFFER, READONLY_BUFFER)")

    load_readonly_buffer = load_next_buffer

    def load_newobj(self) -> None:
        """Make an object: a graph, without arguments."""
        arguments = self.stack.pop()
        kind = self.stack.pop()
        if kind is not Graph or arguments != ():
            raise refused("an object that is more than data")
        self.append(Graph())

    def load_newobj_ex(self) -> None:
        raise refused("an object that is more than data")

    def _instantiate(self, *kind_and_arguments: object) -> None:
        self.load_newobj_ex()

    def load_reduce(self) -> None:
        """Call a function of the table: no other can be on the stack."""
        arguments = self.stack.pop()
        function = self.stack.pop()
        if type(function) is not FunctionType or type(arguments) is not tuple:
            raise refused("a call of what is no function")
        self._count_copies(arguments)
        self.append(function(*arguments))

    def load_build(self) -> None:
        """Set the state of an array, of a dtype or of a graph."""
        state = self.stack.pop()
        target = self.stack[-1]
        if type(target) is np.ndarray and type(state) is tuple:
            self._count_copies(state)
            fill_array(target, state)
        elif isinstance(target, np.dtype):
            set_byte_order(target, state)
        elif type(target) is Graph and type(state) is dict:
            target.set_state(state)
        else:
            raise refused(f"the state of a {type(target).__name__} to be set")

    def load_append(self) -> None:
        item = self.stack.pop()
        self._container(list).append(item)

    def load_appends(self) -> None:
        items = self.pop_mark()
        self._container(list).extend(items)

    def load_setitem(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self._set_items([key], [value])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self._set_items(items[::2], items[1::2])

    def _set_items(self, keys: list, values: list) -> None:
        container = self._container(dict)
        check_keys(keys)
        container.update(zip(keys, values, strict=True))

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._set_items(items[::2], items[1::2])

    def load_additems(self) -> None:
        items = self.pop_mark()
        container = self._container(set)
        check_keys(items)
        container.update(items)

    def load_frozenset(self) -> None:
        items = self.pop_mark()
        check_keys(items)
        self.append(frozenset(items))

    def load_put(self) -> None:
        self._fill(int(self.readline()))

    def load_long_binput(self) -> None:
        self._fill(int.from_bytes(self.read(4), "little"))

    def _fill(self, slot: int) -> None:
        """Fill a slot of the memo; each took an opcode, so that there are no large numbers."""
        if not 0 <= slot <= self._reader.n_read:
            raise CorruptError(
                f"expected a whole pickle, found memo slot {slot} in {self._reader.n_read} bytes; "
                "copy the file again"
            )
        self.memo[slot] = self.stack[-1]

    def load_bytearray8(self) -> None:
        """Read a bytearray; its size is checked before it is allocated."""
        n = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(n)))

    def _container(self, kind: type) -> Any:
        """Return the container on the stack; arrays have methods of the same names."""
        container = self.stack[-1]
        if not isinstance(container, kind):
            raise refused(f"items to be put into a {type(container).__name__}")
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
