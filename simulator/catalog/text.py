"""The YAML of a document: text in, plain data with a line for every field out.

Only what YAML 1.2 calls core is typed, and strictly: ``true``, ``false``, ``null``, decimal integers without leading
zeros, and decimal floats (``1e-6`` is one). All else is text, so that ``yes``, ``12:30`` and ``017`` stay what they
are. libyaml reads the events; the tree is built here, because it must know its lines, refuse a key that comes twice
and survive a hostile file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from simulator.document import LONGEST_NAME
from simulator.errors import CONTROLS, ConfigError

_Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,999})")
_FLOAT = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_DEEPEST, _LARGEST = 32, 100_000
_DEFAULT_TAGS = (None, "!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@dataclass(slots=True)
class Node:
    """A value of the document, and where it stands.

    Attributes
    ----------
    line
        Line of its first character, from 1.
    value
        A scalar, or the nodes of a mapping or a list.
    key_lines
        Of a mapping: key -> line.
    size
        Number of values in it, itself and what aliases repeat included.
    """

    line: int
    value: Any
    key_lines: dict[str, int] = field(default_factory=dict)
    size: int = 1

    def plain(self) -> Any:
        """The value as plain Python data."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def line_of(self, path: Sequence[str | int]) -> int:
        """Line of the key or entry at `path`; of its nearest parent if the document has no such field."""
        node, line = self, self.line
        for part in path:
            if isinstance(node.value, dict) and part in node.value:
                line, node = node.key_lines[str(part)], node.value[part]
            elif isinstance(node.value, list) and str(part).isdigit() and int(part) < len(node.value):
                node = node.value[int(part)]
                line = node.line
            else:
                break
        return line


def scalar(text: str) -> bool | int | float | str | None:
    """Read a plain scalar.

    Parameters
    ----------
    text
        What stands in the document, without quotes.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def compose(text: str, file: str) -> Node:
    """Read the one mapping that a document is.

    Parameters
    ----------
    text
        The YAML.
    file
        Name of the file, for errors.

    Raises
    ------
    ConfigError
        If it is no YAML, holds a key twice, a tag, more than one document, too much, or something else than a mapping.
    """
    try:
        root = _Tree(file).build(yaml.parse(text, Loader=_Loader))
    except yaml.YAMLError as error:
        raise _broken(error, text, file) from None
    if root is None:
        raise ConfigError(file, "a document holds keys and values", "an empty file", "write the document")
    if not isinstance(root.value, dict):
        found = "a list" if isinstance(root.value, list) else f"the value {root.value!r:.40}"
        where = f"{file}:{root.line}"
        raise ConfigError(where, "a document is a mapping of keys to values", found, "write 'key: value' lines")
    return root


class _Tree:
    """The open mappings and lists while events come in."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.open: list[Node] = []
        self.keys: list[str | None] = []
        self.names: list[str | None] = []
        self.anchors: dict[str, Node] = {}
        self.root: Node | None = None

    def build(self, events: Iterator[Any]) -> Node | None:
        for event in events:
            line = event.start_mark.line + 1
            if getattr(event, "tag", None) not in _DEFAULT_TAGS:
                raise self.error(line, "a document has no tags", repr(event.tag), "remove the tag")
            if isinstance(event, yaml.ScalarEvent):
                if odd := CONTROLS.search(event.value):
                    raise self.error(line, "a text has no control characters", repr(odd[0]), "remove it")
                value = event.value if event.style in ("'", '"', "|", ">") else scalar(event.value)
                self.close(Node(line, value), event.anchor, event.value)
            elif isinstance(event, yaml.AliasEvent):
                self.close(self.alias(str(event.anchor), line), None, None)
            elif isinstance(event, yaml.CollectionStartEvent):
                self.start(Node(line, {} if isinstance(event, yaml.MappingStartEvent) else []), event.anchor)
            elif isinstance(event, yaml.CollectionEndEvent):
                self.keys.pop()
                self.close(self.open.pop(), self.names.pop(), None)
            elif isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
                raise self.error(line, "a file holds one document", "a second one", "move it to a file of its own")
        return self.root

    def start(self, node: Node, anchor: str | None) -> None:
        if len(self.open) == _DEEPEST:
            raise self.error(node.line, f"a document nests at most {_DEEPEST} deep", "more", "flatten it")
        self.open.append(node)
        self.keys.append(None)
        self.names.append(anchor)

    def alias(self, name: str, line: int) -> Node:
        if name not in self.anchors:
            must, do = "an alias repeats an anchor that ended above it", f"define '&{name}' first"
            raise self.error(line, must, f"'*{name}'", do)
        return self.anchors[name]

    def close(self, node: Node, anchor: str | None, key: str | None) -> None:
        """Put a finished node into the mapping or list around it; a scalar may be a key."""
        if anchor is not None:
            self.anchors[anchor] = node
        if not self.open:
            self.root = node
            return
        parent = self.open[-1]
        parent.size += node.size
        if parent.size > _LARGEST:
            found = "more, aliases included"
            raise self.error(node.line, f"a document holds at most {_LARGEST:,} values", found, "make it smaller")
        if isinstance(parent.value, list):
            parent.value.append(node)
        elif self.keys[-1] is None:
            self.keys[-1] = self.key(parent, node, key)
        else:
            parent.value[self.keys[-1]] = node
            self.keys[-1] = None

    def key(self, parent: Node, node: Node, text: str | None) -> str:
        if text is None:
            raise self.error(node.line, "a key is a word", "a list, a mapping or an alias", "write a word")
        if len(text) > LONGEST_NAME or not text.isprintable():
            must = f"a key is one line of at most {LONGEST_NAME:,} characters"
            raise self.error(node.line, must, repr(text), "shorten it")
        if text in parent.value:
            found = f"{text!r} again, first on line {parent.key_lines[text]}"
            raise self.error(node.line, "each key comes once", found, "remove one of them")
        parent.key_lines[text] = node.line
        return text

    def error(self, line: int, must: str, found: str, do: str) -> ConfigError:
        return ConfigError(f"{self.file}:{line}", must, found, do)


def _broken(error: yaml.YAMLError, text: str, file: str) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        line, found = mark.line + 1, f"what the parser refuses: {getattr(error, 'problem', None)}"
        start = getattr(error, "context_mark", None)
        if start is not None and start.line != mark.line:
            found += f" {error.context} from line {start.line + 1}"  # type: ignore[attr-defined]
    else:
        line, found = _control(text)
    do = "correct the line: spaces for indentation, 'key: value' with a space, quotes around special characters"
    return ConfigError(f"{file}:{line}", "a document is well-formed YAML", found, do)


def _control(text: str) -> tuple[int, str]:
    match = re.search(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x84\x86-\x9f\ufffe\uffff]", text)
    at = match.start() if match else 0
    return text.count("\n", 0, at) + 1, f"the control character {match[0]!r}" if match else "an unreadable character"


def to_yaml(data: Mapping[str, Any]) -> str:
    """Write plain data as YAML that :func:`compose` reads back equal.

    Parameters
    ----------
    data
        Mappings, lists, text, numbers, truth values and None.
    """
    text: str = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


class _Dumper(yaml.SafeDumper):
    """Knows one type of scalar; what is typed here is told from text by quotes alone."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def ignore_aliases(self, data: Any) -> bool:
        return True


_TEXT = "tag:yaml.org,2002:str"


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = '"' if not text.isprintable() else None if isinstance(scalar(text), str) else "'"
    return dumper.represent_scalar(_TEXT, text, style=style)


def _write_typed(dumper: yaml.SafeDumper, value: object) -> yaml.Node:
    words = {None: "null", True: "true", False: "false"}
    return dumper.represent_scalar(_TEXT, words[value] if value is None or isinstance(value, bool) else repr(value))


_Dumper.add_representer(str, _write_text)
for _type in (bool, int, float, type(None)):
    _Dumper.add_representer(_type, _write_typed)
