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

    def line_of(self, path: Sequence[str]) -> int:
        """Line of the key or entry at `path`; of its nearest parent if the document has no such field."""
        node, line = self, self.line
        for part in path:
            if isinstance(node.value, dict) and part in node.value:
                line, node = node.key_lines[part], node.value[part]
            elif isinstance(node.value, list) and part.isdigit() and int(part) < len(node.value):
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
    composer = _Composer(file, yaml.parse(text, Loader=_Loader))
    try:
        root = composer.document()
    except yaml.YAMLError as error:
        raise _broken(error, text, file) from None
    if root is None:
        raise ConfigError(file, "a document holds keys and values", "an empty file", "write the document")
    if not isinstance(root.value, dict):
        found = "a list" if isinstance(root.value, list) else f"the value {root.value!r:.40}"
        raise composer.error(root.line, "a document is a mapping of keys to values", found, "write 'key: value' lines")
    return root


class _Composer:
    """Makes nodes of events, each with all that is in it before the next."""

    def __init__(self, file: str, events: Iterator[Any]) -> None:
        self.file, self.events = file, events
        self.anchors: dict[str, Node] = {}

    def document(self) -> Node | None:
        """The only document; None if the file is empty."""
        root = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    line = self.line(event)
                    raise self.error(line, "a file holds one document", "a second one", "move it to a file of its own")
                root = self.node(next(self.events), 0)
        return root

    def node(self, event: Any, depth: int) -> Node:
        """The value that begins with an event, which `depth` mappings and lists hold."""
        line = self.line(event)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                rule, do = "an alias repeats an anchor that ended above it", f"define '&{event.anchor}' first"
                raise self.error(line, rule, f"'*{event.anchor}'", do)
            return self.anchors[event.anchor]
        if event.tag not in _DEFAULT_TAGS:
            raise self.error(line, "a document has no tags", repr(event.tag), "remove the tag")
        if isinstance(event, yaml.ScalarEvent):
            if odd := CONTROLS.search(event.value):
                raise self.error(line, "a text has no control characters", repr(odd[0]), "remove it")
            node = Node(line, event.value if event.style in ("'", '"', "|", ">") else scalar(event.value))
        elif depth == _DEEPEST:
            raise _too_deep(f"{self.file}:{line}")
        else:
            node = self.collection(event, line, depth + 1)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def collection(self, start: Any, line: int, depth: int) -> Node:
        """A mapping or a list, to its end."""
        node = Node(line, {} if isinstance(start, yaml.MappingStartEvent) else [])
        while not isinstance(event := next(self.events), yaml.CollectionEndEvent):
            if isinstance(node.value, list):
                node.value.append(entry := self.node(event, depth))
            else:
                key = self.key(event, node)
                entry = node.value[key] = self.node(next(self.events), depth)
            node.size += entry.size
            if node.size > _LARGEST:
                found = "more, aliases included"
                raise self.error(entry.line, f"a document holds at most {_LARGEST:,} values", found, "make it smaller")
        return node

    def key(self, event: Any, node: Node) -> str:
        """The next key of a mapping; its line is noted."""
        line = self.line(event)
        if not isinstance(event, yaml.ScalarEvent):
            raise self.error(line, "a key is a word", "a list, a mapping or an alias", "write a word")
        key = str(self.node(event, 0) and event.value)
        if len(key) > LONGEST_NAME or not key.isprintable():
            rule = f"a key is one line of at most {LONGEST_NAME:,} characters"
            raise self.error(line, rule, repr(key), "shorten it")
        if key in node.value:
            found = f"{key!r} again, first on line {node.key_lines[key]}"
            raise self.error(line, "each key comes once", found, "remove one of them")
        node.key_lines[key] = line
        return key

    def line(self, event: Any) -> int:
        """The line on which an event begins, from 1."""
        return int(event.start_mark.line) + 1

    def error(self, line: int, must: str, found: str, do: str) -> ConfigError:
        """What is wrong with a line."""
        return ConfigError(f"{self.file}:{line}", must, found, do)


def _too_deep(where: str) -> ConfigError:
    return ConfigError(where, f"a document nests at most {_DEEPEST} deep", "more", "flatten it")


def _broken(error: yaml.YAMLError, text: str, file: str) -> ConfigError:
    mark: Any = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark else text.encode(errors="replace").count(b"\n", 0, getattr(error, "position", 0)) + 1
    if "nesting depth" in str(error):  # libyaml 0.2.6 and later read ahead of the events and refuse 1,000 levels
        return _too_deep(f"{file}:{line}")
    found = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
    do = "correct the line: spaces for indentation, 'key: value' with a space, quotes around special characters"
    return ConfigError(f"{file}:{line}", "a document is well-formed YAML", found, do)


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
    """Puts in quotes what :func:`scalar` would not read as text."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def analyze_scalar(self, scalar: str) -> Any:
        """Leave no text that is not printable without escapes."""
        analysis = super().analyze_scalar(scalar)
        if not scalar.isprintable():
            analysis.allow_flow_plain = analysis.allow_block_plain = analysis.allow_single_quoted = False
        return analysis


for _tag, _pattern in {
    "null": "null|~|",
    "bool": "true|false",
    "int": _INTEGER.pattern,
    "float": _FLOAT.pattern,
}.items():
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), None)
