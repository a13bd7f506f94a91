"""Reads the YAML of documents as plain data, with the line of every field, and writes it; puts faults in their places.

Scalars are typed by a strict form of YAML 1.2's core schema: ``true``, ``false``, ``null``, decimal integers without
leading zeros, and decimal floats (``1e-6`` is one). All others are text, so that ``yes``, ``12:30`` and ``017`` stay
as they are. libyaml composes the nodes with their lines; duplicate keys, and what a hostile file may hold, are refused
here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from simulator.document import LONGEST_NAME, Part
from simulator.errors import CONTROLS, LONGEST_DO, ConfigError, quotable
from simulator.faults import faults
from simulator.units import FieldError

Keys = tuple[str, ...]
"""The path to a field, key by key."""
Validated = TypeVar("Validated", bound=Part)
_MOST_FAULTS = 5
"""Most faults that an error lists, so that they fit in a message."""

_Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,999})")
_FLOAT = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_DEEPEST, _LARGEST = 32, 100_000
"""Most levels, and most values, of a document: several times those of the largest shipped one."""
_DEFAULT_TAGS = (None, "!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


class YamlTree:
    """A document as plain data, with the line of each field.

    Parameters
    ----------
    root
        The mapping at the root of the document, as libyaml reads it.
    file
        Name of the file, for errors.

    Attributes
    ----------
    data
        The document, as plain Python data.

    Raises
    ------
    ConfigError
        If it has a duplicate key, a key that is not a word, a tag, a control character, or too many values or levels.
    """

    def __init__(self, root: yaml.MappingNode, file: str) -> None:
        self._root, self._file, self._size = root, file, 0
        self.data: dict[str, Any] = self._read(root, 0)

    def line_of(self, path: Sequence[str]) -> int:
        """Return the line of a field, counted from 1; if there is no such field, that of its nearest parent."""
        node, line = self._root, _line(self._root)
        for part in path:
            if isinstance(node, yaml.MappingNode):
                entries = {key.value: (key, value) for key, value in node.value}
            else:
                entries = {str(index): (entry, entry) for index, entry in enumerate(node.value)}
            if isinstance(node, yaml.ScalarNode) or part not in entries:
                break
            key, node = entries[part]
            line = _line(key)
        return line

    def place(self, *path: str) -> str:
        """Return the place of a field: file, line and path."""
        return f"{self._file}:{self.line_of(path)}" + (f", {'.'.join(path)}" if path else "")

    def _read(self, node: yaml.Node, depth: int) -> Any:
        """Return the value of a node at nesting level `depth`; what an alias repeats counts each time."""
        self._size += 1
        if self._size > _LARGEST:
            must, do = f"a document holds at most {_LARGEST:,} values", "make it smaller"
            raise ConfigError(self._file, must, "more, aliases included", do)
        if node.tag not in _DEFAULT_TAGS:
            raise self._error(node, "a document has no tags", repr(node.tag), "remove the tag")
        if isinstance(node, yaml.ScalarNode):
            if odd := CONTROLS.search(node.value):
                raise self._error(node, "a text has no control characters", repr(odd[0]), "remove it")
            return node.value if node.style in ("'", '"', "|", ">") else scalar(node.value)
        if depth == _DEEPEST:
            raise _too_deep(f"{self._file}:{_line(node)}")
        if isinstance(node, yaml.SequenceNode):
            return [self._read(entry, depth + 1) for entry in node.value]
        lines: dict[str, int] = {}
        for key, _ in node.value:
            self._check_key(key, lines)
            lines[key.value] = _line(key)
        return {key.value: self._read(value, depth + 1) for key, value in node.value}

    def _check_key(self, key: yaml.Node, lines: Mapping[str, int]) -> None:
        """Refuse a key that is not a word, or that is among those above it (key -> line)."""
        if not isinstance(key, yaml.ScalarNode):
            raise self._error(key, "a key is a word", "a list or a mapping", "write a word")
        self._read(key, 0)
        if len(key.value) > LONGEST_NAME or not key.value.isprintable():
            must = f"a key is one line of at most {LONGEST_NAME:,} characters"
            raise self._error(key, must, repr(key.value), "shorten it")
        if key.value in lines:
            found = f"{key.value!r} again, first on line {lines[key.value]}"
            raise self._error(key, "each key comes once", found, "remove one of them")

    def _error(self, node: yaml.Node, must: str, found: str, do: str) -> ConfigError:
        return ConfigError(f"{self._file}:{_line(node)}", must, found, do)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def scalar(text: str) -> bool | int | float | str | None:
    """Read a plain scalar.

    Parameters
    ----------
    text
        The scalar as written in the document, without quotes.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def compose(text: str, file: str) -> YamlTree:
    """Read a document, which is one mapping.

    Parameters
    ----------
    text
        The YAML.
    file
        Name of the file, for errors.

    Raises
    ------
    ConfigError
        If it is not YAML, more than one document, not a mapping, or refused by `YamlTree`.
    """
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise _broken(error, text, file) from None
    except RecursionError:  # PyYAML without libyaml; libyaml itself refuses this
        raise _too_deep(file) from None
    if root is None:
        raise ConfigError(file, "a document holds keys and values", "an empty file", "write the document")
    if not isinstance(root, yaml.MappingNode):
        found = "a list" if isinstance(root, yaml.SequenceNode) else f"the value {scalar(root.value)!r:.40}"
        must = "a document is a mapping of keys to values"
        raise ConfigError(f"{file}:{_line(root)}", must, found, "write 'key: value' lines")
    return YamlTree(root, file)


def _too_deep(where: str) -> ConfigError:
    return ConfigError(where, f"a document nests at most {_DEEPEST} deep", "more", "flatten it")


def _broken(error: yaml.YAMLError, text: str, file: str) -> ConfigError:
    mark: Any = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark else text.encode(errors="replace").count(b"\n", 0, getattr(error, "position", 0)) + 1
    if "nesting depth" in str(error):  # libyaml 0.2.6 and later read ahead of the events and refuse 1,000 levels
        return _too_deep(f"{file}:{line}")
    found = " ".join(str(error).replace('in "<unicode string>", ', "at ").split()).removeprefix("found ")
    if isinstance(error, yaml.composer.ComposerError):
        must = "a file is one document, with each anchor once, above its aliases"
        return ConfigError(f"{file}:{line}", must, found, "correct the line")
    do = "correct the line: spaces for indentation, 'key: value' with a space, quotes around special characters"
    return ConfigError(f"{file}:{line}", "a document is well-formed YAML", found, do)


@contextmanager
def errors_at(where: str) -> Iterator[None]:
    """Put errors that are raised inside at the place `where`; what was found then names the place in a file."""
    try:
        yield
    except FieldError as error:
        raise error.at(where) from None
    except ConfigError as error:
        raise ConfigError(where, error.must, f"{error.found}: {error.where!r}", error.do) from None


class MistypedError(ConfigError):
    """A value that its field can never hold, whatever the others are: in a sweep a mistake, no outcome of a cell."""


def validated(model: type[Validated], data: Any, name: str, place: Callable[..., str]) -> Validated:
    """Make a part of a document of data, or raise one error of all its faults.

    Parameters
    ----------
    model, data
        The type of the part, and its fields.
    name, place
        See `to_error`.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        wrong = to_error(faults(error, data), name, place)
        by_field = ((item.get("ctx", {}).get("error"), item["input"]) for item in error.errors())
        is_rule = any(isinstance(cause, FieldError) and isinstance(given, dict) for cause, given in by_field)
        raise wrong if is_rule else MistypedError(*wrong.args) from None


def to_error(faults: Iterable[FieldError], name: str, place: Callable[..., str]) -> ConfigError:
    """Combine faults into one error.

    Parameters
    ----------
    faults
        At least one fault.
    name
        Name of the document.
    place
        Maps the keys that lead to a field to its place: file, line and path.
    """
    every = [fault.at(place(*fault.path)) for fault in faults]
    errors = {str(error): error for error in every}
    if len(errors) == 1:
        return every[0]
    room = LONGEST_DO - len("correct each:\n  and 1,000,000 more")
    lines = [f"\n  {quotable(text, room - 3)}" for text in list(errors)[:_MOST_FAULTS]]
    whole = [line for line, size in zip(lines, accumulate(map(len, lines)), strict=True) if size <= room]
    more = f"\n  and {len(errors) - len(whole)} more" if len(errors) > len(whole) else ""
    do = f"correct each:{''.join(whole)}{more}"
    return ConfigError(name, "a document keeps its rules", f"{len(errors)} faults", do)


def to_yaml(data: Mapping[str, Any]) -> str:
    """Write plain data as YAML that :func:`compose` reads back equal.

    Parameters
    ----------
    data
        Mappings, lists, text, numbers, booleans and None.
    """
    text: str = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes text that :func:`scalar` would not read as text."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def analyze_scalar(self, scalar: str) -> Any:
        """Escape text that is not printable."""
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
