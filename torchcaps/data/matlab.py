"""MATLAB 5 files: numeric arrays and structs of them, every length checked before it is believed.

Written here because the usual reader can be made to crash the interpreter by a damaged file.
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


class _Broken(Exception):
    pass


class _Reader:
    """Data elements one after the other out of a stretch of bytes."""

    def __init__(self, data: memoryview, order: str):
        self.data, self.order, self.at = data, order, 0

    def more(self) -> bool:
        return self.at < len(self.data)

    def _take(self, count: int) -> memoryview:
        if count < 0 or self.at + count > len(self.data):
            raise _Broken("an element is longer than the file")
        part = self.data[self.at : self.at + count]
        self.at += count
        return part

    def element(self) -> tuple[int, memoryview]:
        (tag,) = struct.unpack(f"{self.order}I", self._take(4))
        if tag >> 16:  # a small element: type, length and up to four bytes in eight
            if tag >> 16 > 4:
                raise _Broken("a small element of more than four bytes")
            return tag & 0xFFFF, self._take(4)[: tag >> 16]
        (length,) = struct.unpack(f"{self.order}I", self._take(4))
        part = self._take(length)
        if tag != _COMPRESSED:
            self._take(min(-length % 8, len(self.data) - self.at))
        return tag, part

    def numbers(self) -> np.ndarray:
        kind, data = self.element()
        if kind not in _STORED:
            raise _Broken(f"numbers of the unknown type {kind}")
        dtype = np.dtype(self.order + _STORED[kind])
        if len(data) % dtype.itemsize:
            raise _Broken("a part of a number")
        return np.frombuffer(data, dtype)

    def matrix(self, depth: int = 0) -> tuple[str, Any]:
        """An array element -> (name, array or struct); None for kinds that we have no use for."""
        if depth > _MAX_DEPTH:
            raise _Broken("structs within structs without end")
        flags = self.numbers()
        shape = tuple(self.numbers().tolist())
        name = bytes(self.element()[1]).decode("latin1")
        if len(flags) < 1 or len(shape) < 2 or min(shape) < 0:
            raise _Broken("an array without a shape")
        kind = int(flags[0]) & 0xFF
        if kind == _STRUCT:
            return name, self._struct(shape, depth)
        if kind not in _CLASSES:
            return name, None
        values = self.numbers()
        if len(values) != prod(shape):
            raise _Broken(f"{len(values)} numbers for the shape {shape}")
        with np.errstate(all="ignore"):  # stored in a wider type than declared: damage, or nothing
            return name, values.astype(_CLASSES[kind]).reshape(shape, order="F")

    def _struct(self, shape: tuple[int, ...], depth: int) -> dict[str, Any] | None:
        (width,) = self.numbers().tolist() or (0,)
        names = bytes(self.element()[1])
        if prod(shape) != 1:
            return None
        if width < 1 or len(names) % width:
            raise _Broken("field names of no length")
        fields = {}
        for start in range(0, len(names), width):
            key = names[start : start + width].split(b"\0")[0].decode("latin1")
            kind, data = self.element()
            if kind != _MATRIX:
                raise _Broken("a field that is no array")
            fields[key] = _Reader(data, self.order).matrix(depth + 1)[1] if len(data) else None
        return fields


def _unpacked(part: memoryview, order: str) -> bytes:
    """A compressed element: as many bytes as its own head promises, and no more."""
    stream = zlib.decompressobj()
    head = stream.decompress(part, 8)
    if len(head) < 8:
        raise _Broken("a compressed element without a head")
    tag, length = struct.unpack(f"{order}II", head)
    if tag >> 16:
        return head
    if length > LARGEST:
        raise _Broken("a compressed element that is too large")
    rest = stream.decompress(stream.unconsumed_tail, length + 8) if length else b""
    return head + rest


def read_mat(path: Path) -> dict[str, Any]:
    """Variables by name: arrays, and structs as dicts of arrays."""
    data = read_bytes(path)
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if order is None:
        raise TorchcapsError(f"{path}: not a MATLAB 5 file.")
    found = {}
    try:
        reader = _Reader(memoryview(data)[128:], order)
        while reader.more():
            kind, part = reader.element()
            if kind == _COMPRESSED:
                kind, part = _Reader(memoryview(_unpacked(part, order)), order).element()
            if kind == _MATRIX:
                name, value = _Reader(part, order).matrix()
                found[name] = value
    except (_Broken, zlib.error, struct.error, ValueError, MemoryError) as error:
        raise TorchcapsError(f"{path}: a damaged MATLAB 5 file ({error}).") from None
    return found
