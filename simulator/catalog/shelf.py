"""Where documents lie, and how one is read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import ValidationError

from simulator import inputs
from simulator.catalog.faults import Fault, of_fields, of_validation, to_error
from simulator.catalog.text import Node, compose, to_yaml
from simulator.document import Document
from simulator.errors import ConfigError
from simulator.hardware import Hardware
from simulator.inputs import instead, shown
from simulator.scenario import Scenario
from simulator.units import closest, nearest
from simulator.workload import Workload

D = TypeVar("D", bound=Document)

KINDS: Mapping[str, type[Document]] = {"hardware": Hardware, "workload": Workload, "scenario": Scenario}
"""Kind of document -> its type."""
_LISTED = {"hardware": "hardware", "workload": "workloads", "scenario": "scenarios"}
"""Kind of document -> what `hosim list` calls it."""
_FOLDERS = {"hardware": "hardware_profiles", "workload": "workloads", "scenario": "scenarios"}
_LARGEST_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class Entry(Generic[D]):
    """A document that was read from a file.

    Attributes
    ----------
    document
        What it says.
    path
        Where it lies.
    sha256
        Digest of its bytes.
    node
        Its fields with their lines.
    """

    document: D
    path: Path
    sha256: str
    node: Node

    def place(self, *keys: str | int) -> str:
        """Where a field stands: file, line and path."""
        return _place(shown(self.path), self.node, keys)


def names(kind: str) -> tuple[str, ...]:
    """Names of the documents in the catalogue, sorted.

    Parameters
    ----------
    kind
        ``hardware``, ``workload`` or ``scenario``.
    """
    return tuple(sorted(_shelf(kind)))


def path_of(ref: str | Path, kind: str, base_dir: Path | None = None) -> Path:
    """Find a document.

    Parameters
    ----------
    ref
        A name in the catalogue; or a path, which ends in ``.yaml`` or is a `Path`.
    kind
        ``hardware``, ``workload`` or ``scenario``.
    base_dir
        What a path is relative to; default: the working directory.

    Raises
    ------
    ConfigError
        If the catalogue has no such name, or there is no such file.
    """
    if not isinstance(ref, str | Path):
        must = f"a {kind} is named by its name in the catalogue or its path"
        raise ConfigError(kind, must, repr(ref), "write one of them as text")
    if isinstance(ref, Path) or ref.endswith((".yaml", ".yml")):
        path = (base_dir or Path()) / ref
        if not isfile(path):
            known = names(kind)
            do = f"write {path.stem!r} for the one in the catalogue" if path.stem in known else "correct the path"
            raise ConfigError(shown(path), f"a {kind} document is a file", instead(path), do)
        return path
    shelf = _shelf(kind)
    if ref not in shelf:
        must = f"a {kind} document has a name in the catalogue, or a path that ends in .yaml"
        raise ConfigError(kind, must, repr(ref), _meant(ref, kind))
    return shelf[ref]


def _meant(ref: str, kind: str) -> str:
    """What a name may have meant that is none in the catalogue."""
    if isfile(Path(ref) / f"{kind}.yaml"):
        return f"that is a folder: write {str(Path(ref) / f'{kind}.yaml')!r}"
    close = closest(ref, names(kind))
    return (f"did you mean {close!r}? " if close else "") + f"`hosim list {_LISTED[kind]}` names them all"


def load(ref: str | Path, kind: str | None = None, base_dir: Path | None = None) -> Entry[Any]:
    """Find, read and check a document.

    Parameters
    ----------
    ref
        A name in the catalogue, or a path that ends in ``.yaml``.
    kind
        ``hardware``, ``workload`` or ``scenario``; None takes a path to any of them.
    base_dir
        What a path is relative to; default: the working directory.

    Raises
    ------
    ConfigError
        With all faults of the document.
    """
    path = path_of(ref, kind, base_dir) if kind else _any_file(Path(ref), base_dir)
    data = inputs.whole(path, _LARGEST_BYTES)
    node = compose(_decoded(data, path), shown(path))
    document = _validated(node, _kind(node, kind, path), path)
    return Entry(document, path, hashlib.sha256(data).hexdigest(), node)


def read_hardware(ref: str | Path, base_dir: Path | None = None) -> Hardware:
    """Read a hardware profile by its name in the catalogue, or by its path."""
    return cast(Hardware, load(ref, "hardware", base_dir).document)


def read_workload(ref: str | Path, base_dir: Path | None = None) -> Workload:
    """Read a workload by its name in the catalogue, or by its path."""
    return cast(Workload, load(ref, "workload", base_dir).document)


def read_scenario(ref: str | Path, base_dir: Path | None = None) -> Scenario:
    """Read a scenario by its name in the catalogue, or by its path."""
    return cast(Scenario, load(ref, "scenario", base_dir).document)


def dump(document: Document) -> str:
    """Write a document as YAML that reads back equal.

    Parameters
    ----------
    document
        A hardware profile, a workload or a scenario.
    """
    data = document.model_dump(mode="json", by_alias=True, exclude_unset=True)
    kind = type(document).model_fields["schema_"].default
    return to_yaml({"schema": kind, **{key: value for key, value in data.items() if key != "schema"}})


def schema(kind: str) -> dict[str, Any]:
    """JSON Schema of a kind of document.

    Parameters
    ----------
    kind
        ``hardware``, ``workload`` or ``scenario``.
    """
    made = _model(kind).model_json_schema(by_alias=True)
    made["required"] = ["schema", *made.get("required", [])]
    for part in (made, *made["$defs"].values()):
        for field in part.get("properties", {}).values():
            if field.get("type") == "string" and not isinstance(field.get("default", ""), str):
                del field["default"]  # a whole number inside, a text with a unit in the document
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def _model(kind: str) -> type[Document]:
    if kind not in KINDS:
        raise ConfigError("schema", "a kind of document is known", repr(kind), nearest(kind, tuple(KINDS)))
    return KINDS[kind]


def _shelf(kind: str) -> dict[str, Path]:
    """Name -> path of what ships: in a checkout beside the package, in a wheel inside it."""
    _model(kind)
    package = Path(__file__).parents[1]
    root = package / "_data" if (package / "_data").is_dir() else package.parent
    return {path.stem: path for path in sorted((root / _FOLDERS[kind]).rglob("*.yaml"))}


def _any_file(path: Path, base_dir: Path | None) -> Path:
    path = (base_dir or Path()) / path
    if not isfile(path):
        raise ConfigError(shown(path), "a document is a file", instead(path), "correct the path")
    return path


def _decoded(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"{shown(path)}:{data.count(10, 0, error.start) + 1}"
        found = f"the byte 0x{data[error.start]:02x}"
        raise ConfigError(where, "a document is text in UTF-8", found, "save it as UTF-8") from None


def _kind(node: Node, wanted: str | None, path: Path) -> str:
    marks = {str(model.model_fields["schema_"].default): kind for kind, model in KINDS.items()}
    found = node.value["schema"].value if "schema" in node.value else None
    kind = marks.get(found) if isinstance(found, str) else None
    if kind is None or wanted not in (None, kind):
        allowed = tuple(mark for mark, k in marks.items() if wanted in (None, k))
        must = "a document says what it is" if wanted is None else f"a {wanted} document says what it is"
        do = "add the line " + " or ".join(f"'schema: {mark}'" for mark in allowed)
        if found is not None:
            do = f"use a {wanted} document, whose first line is 'schema: {allowed[0]}'"
            do = do if wanted and kind else nearest(str(found), allowed)
        shown_found = f"schema {found!r}" if found is not None else "no key 'schema'"
        raise ConfigError(f"{shown(path)}:{node.line_of(('schema',))}", must, shown_found, do)
    return kind


def _validated(node: Node, kind: str, path: Path) -> Document:
    model, data = KINDS[kind], node.plain()

    def place(keys: tuple[str | int, ...]) -> str:
        return _place(shown(path), node, keys)

    try:
        document = model.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        raise to_error(_by_line(of_validation(error, data, model), node), shown(path), place) from None
    faults = of_fields(document.field_errors())
    if faults:
        raise to_error(_by_line(faults, node), shown(path), place)
    return document


def _by_line(faults: list[Fault], node: Node) -> list[Fault]:
    return sorted(faults, key=lambda fault: node.line_of(fault.path))


def _place(file: str, node: Node, keys: tuple[str | int, ...]) -> str:
    field = ".".join(str(key) for key in keys)
    return f"{file}:{node.line_of(keys)}" + (f", {field}" if field else "")
