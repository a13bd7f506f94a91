"""Nodes of Chakra's execution traces: length-delimited messages of protocol buffers (``.et``), or JSON.

The wire format has four messages with few fields, whose numbers have never changed, so decoding it here takes fewer
lines than a schema for a library would. JSON has two forms: that of Chakra's feeder, an object with a list
``workload_graph``, and that of its jsonizer, which writes one message after another.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from simulator.errors import ConfigError, insist
from simulator.importers.imported import FACTS
from simulator.importers.operators import OperatorNode, views
from simulator.importers.recordings import MOST_BYTES, Event, objects, records_of
from simulator.inputs import shown, unpacked

MOST_NODES = 1_000_000
"""Most nodes of a trace: each takes 4 to 12 kB of memory, with its op and the replay."""
TYPES = ["INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL"]
LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(2, 8)
"""Types of nodes, and names of all by number."""
OWN = "hosim_graph", "hosim_plan", "hosim_op"
"""Attributes of what `hosim export --to chakra` writes: lines of the graph and of the plan, and the op's place."""
_ATTRIBUTES = ("rf_id", "comm_type", "comm_size", "num_ops", "tensor_size", *OWN)  # kept for each node
_LONGEST_US = 1 << 40  # 13 days: sums of such times fit the integers of a graph


_SIZES = {1: 8, 2: -1, 5: 4}  # wire type -> bytes of a value; type 0 is a varint, type 2 is length-delimited


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """Decode the 64-bit varint at an offset; return it and the offset of its end."""
    value = shift = 0
    while shift < 70:
        byte = data[offset]
        value |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128:
            return value & (1 << 64) - 1, offset
    raise ValueError("a number without end")


def _chunk(data: bytes, offset: int, size: int = -1) -> tuple[bytes, int]:
    """Read `size` bytes at an offset (by default, after their length); return them and the offset of their end."""
    if size < 0:
        size, offset = _varint(data, offset)
    if offset + size > len(data):
        raise IndexError
    return data[offset : offset + size], offset + size


class WireMessage:
    """A protocol buffer message: the values of each field, by field number."""

    def __init__(self, data: bytes) -> None:
        self.numbers, self.texts = defaultdict[int, list[int]](list), defaultdict[int, list[bytes]](list)
        self.sides, offset = dict[int, list[bytes]](), 0
        while offset < len(data):
            key, offset = _varint(data, offset)
            wire = key & 7
            if wire == 0:
                value, offset = _varint(data, offset)
                self.numbers[key >> 3].append(value)
            elif wire in _SIZES:
                text, offset = _chunk(data, offset, _SIZES[wire])
                self.texts[key >> 3].append(text)
            else:
                raise ValueError(f"a field of wire type {wire}")

    def number(self, field: int) -> int:
        """Return the last number of a field; 0 if it has none."""
        return (self.numbers[field] or [0])[-1]

    def text(self, field: int) -> bytes:
        """Return the last byte string of a field; an empty one if it has none."""
        return (self.texts[field] or [b""])[-1]

    def side(self, field: int) -> list[bytes]:
        """Return values, shapes and types of inputs or outputs, a message of three texts."""
        return self.sides.get(field) or list(map(WireMessage(self.text(field)).text, (1, 2, 3)))

    def all_numbers(self, field: int) -> array[int]:
        """Return all numbers of a field, repeated or packed, at 8 bytes each: a node may depend on hundreds."""
        values = array("Q", self.numbers[field])
        for packed in self.texts[field]:
            offset = 0
            while offset < len(packed):
                value, offset = _varint(packed, offset)
                values.append(value)
        return values


_WORDS = re.compile(r"\b(?:None|True|False|nan|inf)\b")
_TENSOR = re.compile(r"""\[(?:(?:0|[1-9]\d{0,17}), ){5}"[^"]*"\]""")


@lru_cache(1024)
def _values(text: bytes) -> list[Any]:
    """Parse a list in Python's notation (single quotes), or at least its tensors; equal texts share one object."""
    words = _WORDS.sub("null", text.decode(errors="replace").replace("'", '"'))
    try:
        values = orjson.loads(words or "[]")
    except orjson.JSONDecodeError:
        tensors = (tensor for tensor in _TENSOR.findall(words) if "\\" not in tensor and tensor.isprintable())
        return list(map(orjson.loads, tensors))
    return values if isinstance(values, list) else []


@lru_cache(1024)
def _attribute(data: bytes) -> tuple[str, int | str]:
    """Return name and value of an attribute, a number if it has one; cached, as many nodes share attributes."""
    attribute = WireMessage(data)
    numbers = (value for values in attribute.numbers.values() for value in values)
    return attribute.text(1)[:200].decode(errors="replace"), next(numbers, attribute.text(29).decode(errors="replace"))


class ChakraNode:
    """A node of the file, reduced to what hosim uses; times in microseconds."""

    def __init__(self, fields: WireMessage, attrs: dict[str, Any]) -> None:
        self.id, self.type = fields.number(1), fields.number(3)
        self.start, self.took = min(fields.number(6), _LONGEST_US << 10), min(fields.number(7), _LONGEST_US)
        self.under, self.after = fields.all_numbers(4), fields.all_numbers(5)
        self.name = re.sub(r"\(\d+\)$", "", fields.text(2)[:1000].decode(errors="replace"))
        self.moves, self.stream = self.type in (LOAD, STORE), str(attrs.get("tid"))
        self.is_of_host = self.is_on_host = bool(attrs.get("is_cpu_op"))
        self.attrs = {name: attrs[name] for name in _ATTRIBUTES if name in attrs}
        schema, (inputs, outputs) = attrs.get("op_schema"), map(fields.side, (8, 9))
        reads, writes = [list(views(value)) for value in _values(inputs[0])], list(views(_values(outputs[0])))
        about = self.id, 0, 0, self.name, schema if isinstance(schema, str) else "", reads, writes
        types = _values(inputs[1]), _values(outputs[1]), _values(inputs[2])
        self.operator = OperatorNode(*about, (), *types)
        self.launcher: ChakraNode | None = None
        self.op: Event | None = None


def _check_version(stated: str, where: str, derived: list[str]) -> None:
    """Accept only schemas 0.0.4 to 1.x, whose nodes are alike."""
    version = stated.rpartition("chakra.")[2][:50]
    parts = re.match(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", version or "0.0.4")
    numbers, must = tuple(map(int, parts.groups())) if parts else (), "hosim reads schemas 0.0.4 to 1.x of Chakra"
    insist((0, 0, 4) <= numbers < (2,), where, must, repr(version), "convert it by a chakra_converter of one of them")
    if numbers > (1, 0, 0):
        derived.append(f"Schema {version} of Chakra is read as 1.0.0, the newest known, without its additions.")


def load(path: Path, derived: list[str]) -> tuple[dict[str, Any], dict[int, ChakraNode]]:
    """Read the header's attributes, and then all nodes, by id.

    Raises
    ------
    ConfigError
        If the file is no trace, or of an unsupported version.
    """
    where, nodes, index, header = shown(path), dict[int, ChakraNode](), 0, dict[str, Any]()
    try:
        for fields, attrs in _messages(path, unpacked(path, MOST_BYTES)):
            if index:
                node = ChakraNode(fields, attrs)
                nodes[node.id] = node
            else:
                header = attrs
                named = str(attrs.get("schema", ""))  # by some converters
                _check_version(fields.text(1).decode(errors="replace") or named, where, derived)
            must = f"a Chakra trace has at most {MOST_NODES:,} nodes, each with its own id"
            insist(len(nodes) == index <= MOST_NODES, f"{where}: message {index}", must, "one more")
            index += 1
        return header, nodes
    except (ValueError, IndexError, RecursionError) as error:
        found = str(error) if isinstance(error, ValueError) else "one that breaks off"
        must, do = "a Chakra trace is of length-delimited messages", "record it again, or choose another file"
        raise ConfigError(f"{where}: message {index}", must, found, do) from None


def _messages(path: Path, data: bytes) -> Iterator[tuple[WireMessage, dict[str, Any]]]:
    """Yield the messages of a trace, the header first, with their attributes."""
    if re.match(rb'\s*\{\s*["}]', data):
        yield from map(_of_json, _records(path, data))
        return
    offset, attributes = 0, 2
    while offset < len(data):
        message, offset = _chunk(data, offset)
        fields = WireMessage(message)
        yield fields, dict(map(_attribute, fields.texts[attributes]))
        attributes = 10


def _records(path: Path, data: bytes) -> Iterator[Any]:
    """Yield the records of a trace in JSON, the header first."""
    if b'"workload_graph"' in data:
        nodes, where = records_of(path).get("workload_graph"), f"{shown(path)}: workload_graph"
        yield {}
        yield from objects(nodes if isinstance(nodes, list) else (), where, "a node is an object")
        return
    if not re.match(rb'\s*\{\s*("version"|"attr"|\})', data):
        raise ValueError("JSON that is none of Chakra's forms")
    text, offset, read = data.decode(), 0, json.JSONDecoder().raw_decode
    while match := re.compile(r"\s*(?=\S)").match(text, offset):
        record, offset = read(text, match.end())
        if not isinstance(record, dict):
            raise ValueError("a value that is no object")
        yield record


def _of_json(record: dict[str, Any]) -> tuple[WireMessage, dict[str, Any]]:
    """Return fields and attributes of a message in JSON; what is no field is an attribute."""
    fields, attrs = WireMessage(b""), list[tuple[Any, Any]]()
    for key, value in record.items():
        field = FACTS["chakra"].get(key.lower().replace("_", ""), 0)
        values = value if isinstance(value, list) else [value]
        if isinstance(value, dict):
            fields.sides[field] = [_text(value.get(side, "")) for side in ("values", "shapes", "types")]
        elif key == "attr":
            listed = (list(attr.items())[:2] for attr in values if isinstance(attr, dict) and len(attr) > 1)
            attrs += ((name, content) for (_, name), (_, content) in listed)
        elif field in (1, 2) and key.lower() != "id":
            fields.texts[field].append(_text(value))
        elif field:
            fields.numbers[field] += map(_number, values)
        else:
            attrs.append((key, value))
    return fields, {str(name): _number(value, value) for name, value in attrs}


def _text(value: object) -> bytes:
    return str(value).encode(errors="replace")


def _number(value: object, other: Any = 0) -> Any:
    """Return a whole number, also one in quotes or a node's type by name; for other texts, the other value."""
    name = str(value)[:30].removesuffix("_NODE")
    if name in TYPES:
        return TYPES.index(name)
    text = str(int(value)) if isinstance(value, int) else str(value)
    whole_number = int(text) if re.fullmatch(r"\d{1,20}", text, re.ASCII) else 1 << 64
    return whole_number if whole_number < 1 << 64 else other if isinstance(other, str) else 0
