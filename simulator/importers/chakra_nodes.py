"""Nodes of Chakra's execution traces: length-delimited messages of protocol buffers (``.et``), or JSON.

JSON has two forms: that of Chakra's feeder, an object with a list ``workload_graph``, and that of its jsonizer, which
writes one message after another. Both become messages, so that all is read in one way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from simulator.errors import ConfigError, insist
from simulator.formats.protobuf import Message, chunk, field
from simulator.importers.operators import OperatorNode, views
from simulator.importers.recordings import Event, objects, records_of, unpacked
from simulator.inputs import shown

MOST_NODES = 1_000_000
"""Most nodes of a trace: each takes 4 to 12 kB of memory, with its op and the replay."""
LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(2, 8)
"""Types of nodes."""
OWN = "hosim_graph", "hosim_plan", "hosim_op"
"""Attributes of what `hosim export --to chakra` writes: lines of the graph and of the plan, and the op's place."""
_TYPES = ["INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL"]
_ATTRIBUTES = ("rf_id", "comm_type", "comm_size", "num_ops", "tensor_size", *OWN)  # kept for each node
_LONGEST_US = 1 << 40  # 13 days: sums of such times fit the integers of a graph


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
    attribute = Message(data)
    numbers = (value for values in attribute.numbers.values() for value in values)
    return attribute.text(1)[:200].decode(errors="replace"), next(numbers, attribute.text(29).decode(errors="replace"))


class ChakraNode:
    """A node of the file, reduced to what hosim uses; times in microseconds."""

    def __init__(self, data: bytes) -> None:
        fields = Message(data)
        self.id, self.type = fields.number(1), fields.number(3)
        self.start, self.took = min(fields.number(6), _LONGEST_US << 10), min(fields.number(7), _LONGEST_US)
        self.under, self.after = fields.all_numbers(4), fields.all_numbers(5)
        self.name = re.sub(r"\(\d+\)$", "", fields.text(2)[:1000].decode(errors="replace"))
        attrs = dict(map(_attribute, fields.texts[10]))
        self.moves, self.stream = self.type in (LOAD, STORE), str(attrs.get("tid"))
        self.is_of_host = self.is_on_host = bool(attrs.get("is_cpu_op"))
        self.attrs = {name: attrs[name] for name in _ATTRIBUTES if name in attrs}
        schema, inputs, outputs = attrs.get("op_schema"), Message(fields.text(8)), Message(fields.text(9))
        reads, writes = [list(views(value)) for value in _values(inputs.text(1))], list(views(_values(outputs.text(1))))
        about = self.id, 0, 0, self.name, schema if isinstance(schema, str) else "", reads, writes
        types = _values(inputs.text(2)), _values(outputs.text(2)), _values(inputs.text(3))
        self.operator = OperatorNode(*about, (), *types)
        self.launcher: ChakraNode | None = None
        self.op: Event | None = None


def _check_version(header: Message, where: str, derived: list[str]) -> None:
    """Accept only schemas 0.0.4 to 1.x, whose nodes are alike; some converters give the version as an attribute."""
    named = (attribute.text(29) for attribute in map(Message, header.texts[2]) if attribute.text(1) == b"schema")
    version = (header.text(1) or next(named, b"")).rpartition(b"chakra.")[2].decode(errors="replace")[:50]
    parts = re.match(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", version or "0.0.4")
    numbers, must = tuple(map(int, parts.groups())) if parts else (), "hosim reads schemas 0.0.4 to 1.x of Chakra"
    insist((0, 0, 4) <= numbers < (2,), where, must, repr(version), "convert it by a chakra_converter of one of them")
    if numbers > (1, 0, 0):
        derived.append(f"Schema {version} of Chakra is read as 1.0.0, the newest known: what it adds is left out.")


def load(path: Path, derived: list[str]) -> tuple[dict[str, int | str], dict[int, ChakraNode]]:
    """Read the header's attributes, and then all nodes, by id.

    Raises
    ------
    ConfigError
        If the file is no trace, or of an unsupported version.
    """
    where, nodes, header, index = shown(path), dict[int, ChakraNode](), Message(b""), 0
    try:
        for message in _messages(path, unpacked(path)):
            if index:
                node = ChakraNode(message)
                nodes[node.id] = node
            else:
                header = Message(message)
                _check_version(header, where, derived)
            must = f"a Chakra trace has at most {MOST_NODES:,} nodes, each with its own id"
            insist(len(nodes) == index <= MOST_NODES, f"{where}: message {index}", must, "one more")
            index += 1
        return dict(map(_attribute, header.texts[2])), nodes
    except (ValueError, IndexError, RecursionError) as error:
        found = str(error) if isinstance(error, ValueError) else "one that breaks off"
        must, do = "a Chakra trace is of length-delimited messages", "record it again, or choose another file"
        raise ConfigError(f"{where}: message {index}", must, found, do) from None


def _messages(path: Path, data: bytes) -> Iterator[bytes]:
    """Yield the messages of a trace, the header first."""
    if not re.match(rb'\s*\{\s*["}]', data):
        offset = 0
        while offset < len(data):
            message, offset = chunk(data, offset)
            yield message
    elif b'"workload_graph"' in data:
        nodes = records_of(path).get("workload_graph")
        if not isinstance(nodes, list):
            raise ValueError(_NO_FORM)
        yield b""
        yield from map(_encoded, objects(nodes, f"{shown(path)}: workload_graph", "a node is an object"))
    else:
        text, offset, read = data.decode(), 0, json.JSONDecoder().raw_decode
        while match := re.compile(r"\s*(?=\S)").match(text, offset):
            record, end = read(text, match.end())
            if not isinstance(record, dict) or (not offset and record.keys() - {"version", "attr"}):
                raise ValueError(_NO_FORM)
            yield _encoded(record) if offset else field(1, str(record.get("version", "")).encode())
            offset = end


_NO_FORM = "JSON that is none of Chakra's forms"
_FIELDS = {"id": 1, "name": 2, "nodetype": 3, "type": 3, "ctrldeps": 4, "datadeps": 5, "starttimemicros": 6}
_FIELDS |= {"runtime": 7, "durationmicros": 7, "inputs": 8, "outputs": 9}


def _encoded(record: dict[str, Any]) -> bytes:
    """Encode a node in JSON as its message; what is no field of a node is an attribute."""
    parts, attrs = list[bytes](), record.pop("attr", ())
    for name, value in record.items():
        number = _FIELDS.get(name.lower().replace("_", ""), 10)
        if number == 10:
            parts.append(field(10, _encoded_attribute({"name": name, "": value})))
        elif number >= 8:
            sides = ("values", "shapes", "types") if isinstance(value, dict) else ()
            texts = (field(place, _text(value.get(side, ""))) for place, side in enumerate(sides, 1))
            parts.append(field(number, b"".join(texts)))
        elif number == 2:
            parts.append(field(2, _text(value)))
        else:
            parts += [field(number, _number(part)) for part in (value if isinstance(value, list) else [value])]
    listed = attrs if isinstance(attrs, list) else ()
    return b"".join((*parts, *(field(10, _encoded_attribute(attr)) for attr in listed if isinstance(attr, dict))))


def _encoded_attribute(attr: dict[str, Any]) -> bytes:
    """Encode an attribute; beside its name it has one value, under the name of its type."""
    kind, value = next(((kind, value) for kind, value in attr.items() if kind not in ("name", "docString")), ("", 0))
    is_text = isinstance(value, str) and kind.lower().replace("_", "") in ("", "stringval")
    return field(1, _text(attr.get("name"))) + (field(29, _text(value)) if is_text else field(13, _number(value)))


def _text(value: object) -> bytes:
    return str(value).encode(errors="replace")


def _number(value: object) -> int:
    """Return a whole number, one in quotes, or the number of a type of nodes by its name; 0 for anything else."""
    if isinstance(value, str) and (name := value.removesuffix("_NODE")) in _TYPES:
        return _TYPES.index(name)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,20}", value, re.ASCII):
        value = int(value)
    return int(value) if isinstance(value, int) and 0 <= value < 1 << 64 else 0
