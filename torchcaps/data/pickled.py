"""The few pickles that are read here, without Python's unpickler: nothing in a file is ever called.

CIFAR's python version is a dict of lists, strings and one array of bytes. Its opcodes are read one
by one; an array is built from the bytes that stand in the file, if their number is right. Every
other opcode, name or shape is refused. What is read is never larger than the file.
"""

import pickletools
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

MOST = 2_000_000
"""Opcodes of a file; the largest of CIFAR's has about 400,000."""
_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_NAMES = {(m, "_reconstruct"): "array" for m in _MODULES} | {
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
}
_KINDS = {"u1": "u1", "i4": "<i4", "i8": "<i8"}
_VALUES = {
    "BININT", "BININT1", "BININT2", "INT", "LONG1", "BINSTRING", "SHORT_BINSTRING", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "BINUNICODE", "SHORT_BINUNICODE", "UNICODE",
}  # fmt: skip
_MARK = object()


class Refused(Exception):
    """Something that no file of the kind has."""


@dataclass
class _Made:
    """What a file says it makes: an array or a kind of number, as far as it is known."""

    what: str
    kind: str = ""
    array: np.ndarray | None = field(default=None)


def read_pickle(data: bytes) -> Any:
    """Dicts, lists, tuples, bytes, strings, numbers, arrays of whole numbers."""
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > MOST:
                raise Refused(f"more than {MOST:,} opcodes")
            if opcode.name == "STOP":
                return machine.pop()
            machine.do(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from None
    raise Refused("it has no end")


class _Machine:
    def __init__(self):
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise Refused("a mark in place of a value")
        return value

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:  # below the first: an IndexError, which is refused
            at = at - 1 if at else len(self.stack)
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def do(self, name: str, argument: Any) -> None:
        if name in _VALUES:
            self.stack.append(argument.encode("latin1") if "BINSTRING" in name else argument)
        elif name in ("PROTO", "FRAME"):
            pass
        elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
            self.stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
        elif name == "MARK":
            self.stack.append(_MARK)
        elif name in ("EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE"):
            self.stack.append({"EMPTY_LIST": [], "EMPTY_DICT": {}, "EMPTY_TUPLE": ()}[name])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else int(argument)] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[int(argument)])
        else:
            self._gather(name, argument)

    def _gather(self, name: str, argument: Any) -> None:
        if name in ("TUPLE", "LIST", "DICT"):
            values = self.since_mark()
            made = {"TUPLE": tuple, "LIST": list, "DICT": _pairs}[name]
            self.stack.append(made(values))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            values = [self.pop() for _ in range(count)][::-1]
            self.stack.append(tuple(values))
        elif name in ("APPEND", "APPENDS"):
            values = [self.pop()] if name == "APPEND" else self.since_mark()
            self._top(list).extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = [self.pop(), self.pop()][::-1] if name == "SETITEM" else self.since_mark()
            self._top(dict).update(_pairs(values))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self._global(name, argument)
        elif name == "REDUCE":
            values, called = self.pop(), self.pop()
            self.stack.append(_reduced(called, values))
        elif name == "BUILD":
            state = self.pop()
            _built(self._top(_Made), state)
        else:
            raise Refused(f"refused the opcode {name}")

    def _top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise Refused(f"refused a {type(self.stack[-1]).__name__} where there is none")
        return self.stack[-1]

    def _global(self, name: str, argument: Any) -> None:
        if name == "GLOBAL":
            module, _, called = argument.partition(" ")
        else:
            called, module = self.pop(), self.pop()
        if (module, called) not in _NAMES:
            raise Refused(f"refused {module}.{called}")
        self.stack.append(_Made(_NAMES[module, called]))


def _pairs(values: list[Any]) -> dict[Any, Any]:
    keys = values[::2]
    if len(values) % 2 or not all(isinstance(key, bytes | str | int) for key in keys):
        raise Refused("refused a key that is no name")
    return dict(zip(keys, values[1::2], strict=True))


def _reduced(called: Any, values: Any) -> Any:
    """What a call would make, if it is one of three."""
    if not isinstance(called, _Made) or not isinstance(values, tuple):
        raise Refused("refused a call")
    if called.what == "array":
        return _Made("array")
    if called.what == "dtype" and values and isinstance(values[0], str | bytes):
        text = values[0].decode("latin1") if isinstance(values[0], bytes) else values[0]
        if text not in _KINDS:
            raise Refused(f"refused numbers of the kind {text[:20]!r}")
        return _Made("kind", _KINDS[text])
    if called.what == "encode" and values and isinstance(values[0], str):
        return values[0].encode("latin1")
    raise Refused(f"refused a call of {called.what}")


def _built(made: _Made, state: Any) -> None:
    if made.what == "kind":
        return  # its byte order and flags: a kind of number here has neither
    if made.what != "array" or not isinstance(state, tuple) or len(state) != 5:
        raise Refused("refused a state")
    _, shape, kind, by_columns, content = state
    good = isinstance(kind, _Made) and kind.what == "kind" and isinstance(content, bytes)
    good = good and isinstance(shape, tuple) and all(isinstance(n, int) and n >= 0 for n in shape)
    if not good or len(content) != prod(shape) * np.dtype(kind.kind).itemsize:
        raise Refused("refused an array that its bytes do not fill")
    order = "F" if by_columns else "C"
    made.array = np.frombuffer(content, kind.kind).reshape(shape, order=order)


def array_of(value: Any) -> np.ndarray:
    """An array, or a list of whole numbers."""
    if isinstance(value, _Made) and value.array is not None:
        return value.array
    whole = (int, np.integer)
    if isinstance(value, list) and all(isinstance(n, whole) and abs(n) < 2**31 for n in value):
        return np.array(value, np.int64)
    raise Refused("neither an array nor a list of whole numbers")
