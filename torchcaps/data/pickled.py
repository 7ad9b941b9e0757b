"""Reader of CIFAR's pickles without Python's unpickler: it never calls anything from a file.

CIFAR's python version is a dict of lists, strings and one array of bytes. The reader interprets the
opcodes one by one and builds an array from its bytes if their number is right. It refuses all other
opcodes, names and shapes. The result is never larger than the file.
"""

import pickletools
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

MAX_OPCODES = 2_000_000
"""Largest number of opcodes in a file; CIFAR's largest file has about 400,000."""
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
    """The pickle contains something other than data of the supported kinds."""


@dataclass
class _Object:
    """An array, a number type or a function, as named in a file."""

    what: str
    kind: str = ""
    array: np.ndarray | None = field(default=None)


def read_pickle(data: bytes) -> Any:
    """Read dicts, lists, tuples, bytes, strings, numbers and arrays of integers from a pickle."""
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > MAX_OPCODES:
                raise Refused(f"more than {MAX_OPCODES:,} opcodes")
            if opcode.name == "STOP":
                return machine.pop()
            machine.do(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from None
    raise Refused("no STOP opcode")


class _Machine:
    """Stack and memo of the pickle machine."""

    def __init__(self):
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise Refused("refused a mark instead of a value")
        return value

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:  # without a mark an IndexError, which is refused
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
            build = {"TUPLE": tuple, "LIST": list, "DICT": _pairs}[name]
            self.stack.append(build(self.since_mark()))
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
            values, function = self.pop(), self.pop()
            self.stack.append(_reduce(function, values))
        elif name == "BUILD":
            state = self.pop()
            _build(self._top(_Object), state)
        else:
            raise Refused(f"refused the opcode {name}")

    def _top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise Refused(f"refused a {type(self.stack[-1]).__name__}, expected a {kind.__name__}")
        return self.stack[-1]

    def _global(self, name: str, argument: Any) -> None:
        if name == "GLOBAL":
            module, _, function = argument.partition(" ")
        else:
            function, module = self.pop(), self.pop()
        if (module, function) not in _NAMES:
            raise Refused(f"refused {module}.{function}")
        self.stack.append(_Object(_NAMES[module, function]))


def _pairs(values: list[Any]) -> dict[Any, Any]:
    keys = values[::2]
    if len(values) % 2 or not all(isinstance(key, bytes | str | int) for key in keys):
        raise Refused("refused a key that is not a string, bytes or integer")
    return dict(zip(keys, values[1::2], strict=True))


def _reduce(function: Any, values: Any) -> Any:
    """Result of a call of one of the three supported functions."""
    if not isinstance(function, _Object) or not isinstance(values, tuple):
        raise Refused("refused a call")
    if function.what == "array":
        return _Object("array")
    if function.what == "dtype" and values and isinstance(values[0], str | bytes):
        text = values[0].decode("latin1") if isinstance(values[0], bytes) else values[0]
        if text not in _KINDS:
            raise Refused(f"refused number type {text[:20]!r}")
        return _Object("kind", _KINDS[text])
    if function.what == "encode" and values and isinstance(values[0], str):
        return values[0].encode("latin1")
    raise Refused(f"refused a call of {function.what}")


def _build(target: _Object, state: Any) -> None:
    """Set the state of an array."""
    if target.what == "kind":
        return  # byte order and flags, which the supported number types do not need
    if target.what != "array" or not isinstance(state, tuple) or len(state) != 5:
        raise Refused("refused a state")
    _, shape, kind, by_columns, content = state
    valid = isinstance(kind, _Object) and kind.what == "kind" and isinstance(content, bytes)
    valid = valid and isinstance(shape, tuple) and all(isinstance(n, int) and n >= 0 for n in shape)
    if not valid or len(content) != prod(shape) * np.dtype(kind.kind).itemsize:
        raise Refused("refused an array whose bytes do not match its shape")
    order = "F" if by_columns else "C"
    target.array = np.frombuffer(content, kind.kind).reshape(shape, order=order)


def array_of(value: Any) -> np.ndarray:
    """Convert an array of the file, or a list of integers, to NumPy."""
    if isinstance(value, _Object) and value.array is not None:
        return value.array
    integer = (int, np.integer)
    if isinstance(value, list) and all(isinstance(n, integer) and abs(n) < 2**31 for n in value):
        return np.array(value, np.int64)
    raise Refused("not an array or a list of integers")
