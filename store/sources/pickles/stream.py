"""The bytes of an untrusted pickle, checked opcode by opcode before the unpickler sees them.

CPython's unpickler allocates what a pickle announces before it reads it: a string of 2**60 bytes,
or a memo of 2**32 slots (https://github.com/python/cpython/issues/115952). `CheckedReader` stands
between the file and the unpickler, follows the opcodes as they pass and raises on a size that the
rest of the file cannot hold, on a memo slot that the bytes so far cannot have filled, and on the
opcodes that reach outside the file. It executes nothing and keeps nothing.
"""

from typing import Protocol

from store.errors import CorruptError, RefusedError

__all__ = ["CheckedReader", "RawReader", "too_much"]

_FIXED = {
    1: b"(012NRbadestlu})]o\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94",
    2: b"Kh\x80q",
    3: b"M",
    5: b"Jj",
    9: b"G",
}
# opcode, then a count of as many bytes
_COUNTED = {1: b"UC\x8a\x8c", 4: b"TBX\x8b", 8: b"\x8d\x8e\x96\x95"}
_LINES = {1: b"IFLSVgp", 2: b"ci"}
_FRAME, _LONG_BINPUT, _PUT, _STOP = 0x95, ord("r"), ord("p"), ord(".")
_REFUSED = {
    ord("P"): "a persistent id (PERSID)",
    ord("Q"): "a persistent id (BINPERSID)",
    0x82: "the extension registry (EXT1)",
    0x83: "the extension registry (EXT2)",
    0x84: "the extension registry (EXT4)",
    0x97: "an out-of-band buffer (NEXT_BUFFER)",
    0x98: "an out-of-band buffer (READONLY_BUFFER)",
}


def _table(opcodes_by_number: dict[int, bytes]) -> list[int]:
    """Give the number of each of the 256 opcodes, 0 for the others."""
    table = [0] * 256
    for number, opcodes in opcodes_by_number.items():
        for opcode in opcodes:
            table[opcode] = number
    return table


_STEP, _COUNT_BYTES, _N_LINES = _table(_FIXED), _table(_COUNTED), _table(_LINES)
_STEP_PERSISTENT = [1 if opcode == ord("Q") else step for opcode, step in enumerate(_STEP)]


class RawReader(Protocol):
    """What `CheckedReader` needs of a file: an `io.BufferedReader` has it."""

    def peek(self, n: int, /) -> bytes: ...
    def read(self, n: int, /) -> bytes: ...
    def readinto(self, buffer: memoryview, /) -> int: ...
    def readline(self, n: int, /) -> bytes: ...


class CheckedReader:
    """A file object for `pickle.Unpickler` that checks what it hands over.

    Parameters
    ----------
    raw
        The pickle, not compressed.
    size : int
        Most bytes that `raw` can hold.
    max_bytes : int
        Most bytes to hand over.
    persistent : bool
        Whether persistent ids may pass (torch's files use them).
    """

    def __init__(self, raw: RawReader, size: int, max_bytes: int, persistent: bool = False):
        self._raw = raw
        self._size = size
        self._max_bytes = max_bytes
        self._step = _STEP_PERSISTENT if persistent else _STEP
        self._tail = b""  # the bytes from `_next` on, where its opcode is not whole
        self.position = 0  # bytes handed over
        self.seen = 0  # bytes handed over or shown
        self._next = 0  # offset of the next opcode; beyond the bytes seen, inside a string

    def peek(self, n: int) -> bytes:
        """Give some of the next bytes, without a step."""
        data = self._raw.peek(n)
        self._check(self.position, data)
        return data

    def read(self, n: int) -> bytes:
        """Give the next `n` bytes, fewer at the end."""
        return self._hand_over(self._raw.read(n))

    def readline(self) -> bytes:
        """Give the bytes up to the next newline, inclusive."""
        return self._hand_over(self._raw.readline(self._max_bytes - self.position + 1))

    def readinto(self, buffer: memoryview) -> int:
        """Fill the buffer of a string whose length was checked; the file can end before."""
        n = self._raw.readinto(buffer)
        self._advance(n)
        return n

    def at_end(self) -> bool:
        """Tell whether no byte is left; the checksum of a gzip file is compared here."""
        return not self._raw.read(1)

    def begin_next(self) -> None:
        """Expect another pickle here: torch's older files hold several."""
        self._next, self._tail = self.position, b""

    def _hand_over(self, data: bytes) -> bytes:
        self._check(self.position, data)
        self._advance(len(data))
        return data

    def _advance(self, n: int) -> None:
        self.position += n
        self.seen = max(self.seen, self.position)
        if self.position > self._max_bytes:
            raise too_much(f"more than {self._max_bytes} bytes", self._max_bytes)

    def _check(self, start: int, data: bytes) -> None:
        """Follow the opcodes in the bytes at `start` as far as they were not seen."""
        self.seen = max(self.seen, start + len(data))
        if start + len(data) <= self._next:
            return
        if start > self._next:
            data, start = self._tail[: start - self._next] + data, self._next
        at = self._follow(data, start, self._next - start)
        self._next, self._tail = start + at, data[at:]

    def _follow(self, data: bytes, start: int, at: int) -> int:
        """Step over whole opcodes; give the place of the first that is not whole."""
        end, steps = len(data), self._step
        while at < end:
            opcode = data[at]
            if step := steps[opcode]:
                at += step
            elif (width := _COUNT_BYTES[opcode]) == 1:
                if at + 2 > end:
                    break
                at += 2 + data[at + 1]
            elif width:
                if at + 1 + width > end:
                    break
                n = int.from_bytes(data[at + 1 : at + 1 + width], "little")
                at += 1 + width
                self._check_size(n, start + at)
                at += n if opcode != _FRAME else 0
            elif lines := _N_LINES[opcode]:
                stop = _end_of_lines(data, at + 1, lines)
                if not stop:
                    break
                if opcode == _PUT:
                    self._check_slot(data[at + 1 : stop], start + at)
                at = stop
            elif opcode == _LONG_BINPUT:
                if at + 5 > end:
                    break
                self._check_slot(int.from_bytes(data[at + 1 : at + 5], "little"), start + at)
                at += 5
            elif opcode == _STOP:
                return _NEVER
            elif opcode in _REFUSED:
                raise RefusedError(
                    f"asks for {_REFUSED[opcode]} at byte {start + at}; do not trust the file"
                )
            else:
                raise CorruptError(
                    f"expected a whole pickle, found the unknown opcode {opcode:#04x} at byte {start + at}"
                )
        return at

    def _check_size(self, n: int, offset: int) -> None:
        """The unpickler allocates `n` bytes next."""
        if n > self._size - offset:
            found = f"found {n} bytes announced at byte {offset}, where at most {max(self._size - offset, 0)} can follow"
            raise CorruptError(f"expected a whole pickle, {found}; copy the file again")
        if n > self._max_bytes - offset:
            raise too_much(f"{n} bytes at byte {offset}", self._max_bytes)

    def _check_slot(self, slot: int | bytes, offset: int) -> None:
        """Every slot of the memo took an opcode to fill; the unpickler allocates all up to the one
        it is asked for."""
        if isinstance(slot, bytes):
            slot = int(slot) if len(slot) < 20 else _NEVER
        if slot > offset:
            raise CorruptError(
                f"expected a whole pickle, found memo slot {slot} at byte {offset}; copy the file again"
            )


_NEVER = 1 << 63  # an offset that no file reaches


def _end_of_lines(data: bytes, at: int, n: int) -> int:
    """Give the place after `n` newlines, 0 if there are fewer."""
    for _ in range(n):
        at = data.find(b"\n", at) + 1
        if not at:
            break
    return at


def too_much(found: str, max_bytes: int) -> RefusedError:
    """Tell the cap, what went over it, and how to raise it."""
    cap = f"expected at most {max_bytes} bytes, found {found}"
    return RefusedError(f"{cap}; if you trust the file, raise max_bytes (--max-file-gb)")
