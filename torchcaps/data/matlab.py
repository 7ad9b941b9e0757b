"""Reader of MATLAB 5 files with numeric arrays and structs; checks every length before it reads.

A damaged file can crash the interpreter through SciPy's reader, so torchcaps has its own.
"""

import struct
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from torchcaps.data.source import LARGEST, read_bytes
from torchcaps.errors import TorchcapsError

_STORED = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
_CLASSES = {
    6: "f8",
    7: "f4",
    8: "i1",
    9: "u1",
    10: "i2",
    11: "u2",
    12: "i4",
    13: "u4",
    14: "i8",
    15: "u8",
}
_MATRIX, _COMPRESSED, _STRUCT = 14, 15, 2
_MAX_DEPTH = 8


class _DamagedFile(Exception):
    pass


class _Reader:
    """Reads consecutive data elements from a buffer."""

    def __init__(self, data: memoryview, order: str):
        self.data, self.order, self.at = data, order, 0

    def more(self) -> bool:
        return self.at < len(self.data)

    def _take(self, count: int) -> memoryview:
        if count < 0 or self.at + count > len(self.data):
            raise _DamagedFile("an element is longer than the file")
        chunk = self.data[self.at : self.at + count]
        self.at += count
        return chunk

    def element(self) -> tuple[int, memoryview]:
        (tag,) = struct.unpack(f"{self.order}I", self._take(4))
        if tag >> 16:  # a small element: type, length and up to four bytes in eight
            if tag >> 16 > 4:
                raise _DamagedFile("a small element has more than four bytes")
            return tag & 0xFFFF, self._take(4)[: tag >> 16]
        (length,) = struct.unpack(f"{self.order}I", self._take(4))
        content = self._take(length)
        if tag != _COMPRESSED:
            self._take(min(-length % 8, len(self.data) - self.at))
        return tag, content

    def numbers(self) -> np.ndarray:
        kind, data = self.element()
        if kind not in _STORED:
            raise _DamagedFile(f"unknown number type {kind}")
        dtype = np.dtype(self.order + _STORED[kind])
        if len(data) % dtype.itemsize:
            raise _DamagedFile("an incomplete number")
        return np.frombuffer(data, dtype)

    def matrix(self, depth: int = 0) -> tuple[str, Any]:
        """Read an array element -> (name, array or struct; None for unsupported kinds)."""
        if depth > _MAX_DEPTH:
            raise _DamagedFile("structs are nested too deeply")
        flags = self.numbers()
        shape = tuple(self.numbers().tolist())
        name = bytes(self.element()[1]).decode("latin1")
        if len(flags) < 1 or len(shape) < 2 or min(shape) < 0:
            raise _DamagedFile("an array has no shape")
        kind = int(flags[0]) & 0xFF
        if kind == _STRUCT:
            return name, self._struct(shape, depth)
        if kind not in _CLASSES:
            return name, None
        values = self.numbers()
        if len(values) != prod(shape):
            raise _DamagedFile(f"{len(values)} numbers for shape {shape}")
        with np.errstate(all="ignore"):  # a wider type than declared may overflow in a damaged file
            return name, values.astype(_CLASSES[kind]).reshape(shape, order="F")

    def _struct(self, shape: tuple[int, ...], depth: int) -> dict[str, Any] | None:
        (width,) = self.numbers().tolist() or (0,)
        names = bytes(self.element()[1])
        if prod(shape) != 1:
            return None
        if width < 1 or len(names) % width:
            raise _DamagedFile("field names have no length")
        fields = {}
        for start in range(0, len(names), width):
            key = names[start : start + width].split(b"\0")[0].decode("latin1")
            kind, data = self.element()
            if kind != _MATRIX:
                raise _DamagedFile("a field is not an array")
            fields[key] = _Reader(data, self.order).matrix(depth + 1)[1] if len(data) else None
        return fields


def _decompress(content: memoryview, order: str) -> bytes:
    """Decompress an element, at most the number of bytes in its header."""
    stream = zlib.decompressobj()
    head = stream.decompress(content, 8)
    if len(head) < 8:
        raise _DamagedFile("a compressed element has no header")
    tag, length = struct.unpack(f"{order}II", head)
    if tag >> 16:
        return head
    if length > LARGEST:
        raise _DamagedFile("a compressed element is too large")
    rest = stream.decompress(stream.unconsumed_tail, length + 8) if length else b""
    return head + rest


def read_mat(path: Path) -> dict[str, Any]:
    """Read variables by name: arrays, and structs as dicts of arrays."""
    data = read_bytes(path)
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if order is None:
        raise TorchcapsError(f"{path}: not a MATLAB 5 file.")
    variables = {}
    try:
        reader = _Reader(memoryview(data)[128:], order)
        while reader.more():
            kind, content = reader.element()
            if kind == _COMPRESSED:
                kind, content = _Reader(memoryview(_decompress(content, order)), order).element()
            if kind == _MATRIX:
                name, value = _Reader(content, order).matrix()
                variables[name] = value
    except (_DamagedFile, zlib.error, struct.error, ValueError, MemoryError) as error:
        raise TorchcapsError(f"{path}: damaged MATLAB 5 file ({error}).") from None
    return variables
