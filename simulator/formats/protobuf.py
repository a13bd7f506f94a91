"""The wire format of protocol buffers, as far as the messages of Chakra use it.

These are four messages with few fields, whose numbers have never changed, so reading and writing them here takes fewer
lines than a schema for a library would.
"""

from __future__ import annotations

from array import array
from collections import defaultdict

_SIZES = {1: 8, 2: -1, 5: 4}  # wire type -> bytes of a value; type 0 is a varint, type 2 is length-delimited


def varint(data: bytes, offset: int) -> tuple[int, int]:
    """Decode the 64-bit varint at an offset; return it and the offset of its end."""
    value = shift = 0
    while shift < 70:
        byte = data[offset]
        value |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128:
            return value & (1 << 64) - 1, offset
    raise ValueError("a number without end")


def chunk(data: bytes, offset: int, size: int = -1) -> tuple[bytes, int]:
    """Read `size` bytes at an offset (by default, after their length); return them and the offset of their end."""
    if size < 0:
        size, offset = varint(data, offset)
    if offset + size > len(data):
        raise IndexError
    return data[offset : offset + size], offset + size


class Message:
    """A protocol buffer message: the values of each field, by field number."""

    def __init__(self, data: bytes) -> None:
        self.numbers, self.texts = defaultdict[int, list[int]](list), defaultdict[int, list[bytes]](list)
        offset = 0
        while offset < len(data):
            key, offset = varint(data, offset)
            wire = key & 7
            if wire == 0:
                value, offset = varint(data, offset)
                self.numbers[key >> 3].append(value)
            elif wire in _SIZES:
                text, offset = chunk(data, offset, _SIZES[wire])
                self.texts[key >> 3].append(text)
            else:
                raise ValueError(f"a field of wire type {wire}")

    def number(self, field: int) -> int:
        """Return the last number of a field; 0 if it has none."""
        return (self.numbers[field] or [0])[-1]

    def text(self, field: int) -> bytes:
        """Return the last byte string of a field; an empty one if it has none."""
        return (self.texts[field] or [b""])[-1]

    def all_numbers(self, field: int) -> array[int]:
        """Return all numbers of a field, repeated or packed, at 8 bytes each: a node may depend on hundreds."""
        values = array("Q", self.numbers[field])
        for packed in self.texts[field]:
            offset = 0
            while offset < len(packed):
                value, offset = varint(packed, offset)
                values.append(value)
        return values


def field(number: int, value: int | bytes) -> bytes:
    """Encode a field: a whole number as a varint, text after its length."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + delimited(value)


def delimited(message: bytes) -> bytes:
    """Put the length of a message before it."""
    return _varint(len(message)) + message


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
