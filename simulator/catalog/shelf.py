"""Finds a document by name or path, reads and checks it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from os.path import isfile
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from simulator import inputs
from simulator.catalog.settings import FieldChange, apply
from simulator.catalog.text import YamlTree, compose, errors_at, to_error, to_yaml
from simulator.document import ORIGINS, Document
from simulator.errors import ConfigError, insist
from simulator.faults import faults
from simulator.hardware import Hardware
from simulator.inputs import no_file, shown
from simulator.scenario import Scenario
from simulator.scenario.study import StudyDocument
from simulator.software import Software
from simulator.units import did_you_mean, in_yaml, nearest, suggestion
from simulator.workload import Workload
from simulator.workload.job import JobDocument, JobProgram

KINDS: Mapping[str, type[Document]] = {
    "hardware": Hardware,
    "software": Software,
    "workload": Workload,
    "job": JobDocument,
    "scenario": Scenario,
    "study": StudyDocument,
}
"""Kind of document -> its class."""
_PACKAGE = Path(__file__).parents[1]
_ROOT = _PACKAGE / "_data" if (_PACKAGE / "_data").is_dir() else _PACKAGE.parent
_FOLDERS = {
    "hardware": "hardware_profiles",
    "software": "software_profiles",
    "workload": "workloads",
    "job": "workloads/jobs",
    "scenario": "scenarios",
    "study": "studies",
}
_RATIOS = "scenarios/measured/ratios.yml"
_LARGEST_BYTES = 4_000_000
"""Largest document: a hundred times the largest shipped one, and still read in seconds."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A document that was read from a file.

    Attributes
    ----------
    inside
        JobProgram of a job -> the workload that it names.
    """

    document: Any
    path: Path
    sha256: str
    tree: YamlTree
    inside: dict[str, Entry] = dataclasses.field(default_factory=dict)


def names(kind: str) -> tuple[str, ...]:
    """Return the names of the documents of a kind in the catalogue, sorted.

    Parameters
    ----------
    kind
        One of `KINDS`.
    """
    return tuple(sorted(_shelf(kind)))


def path_of(ref: str | Path, kind: str, base_dir: Path | None = None) -> Path:
    """Find the file of a document.

    Parameters
    ----------
    ref
        A name in the catalogue; or a path: a `Path`, or a text that ends in ``.yaml``.
    kind
        One of `KINDS`.
    base_dir
        Folder that a path is relative to; default: the working directory.

    Raises
    ------
    ConfigError
        If the catalogue has no such name, or there is no such file.
    """
    shelf = _shelf(kind) | (_shelf("job") if kind == "workload" else {})
    if isinstance(ref, Path) or str(ref).endswith((".yaml", ".yml")):
        path = (base_dir or Path()) / ref
        do = f"write {path.stem!r} for the one in the catalogue" if path.stem in shelf else "correct the path"
        return _file(path, f"a {kind} document is a file", do)
    if ref not in shelf:
        rule = f"a {kind} document has a name in the catalogue, or a path that ends in .yaml"
        otherwise = f"name a file in it: '{ref}/{kind}.yaml'" if Path(str(ref)).is_dir() else "`hosim list` names all"
        is_work = ref in _shelf("workload")
        if kind == "scenario" and (is_work or ref in _shelf("hardware")):
            machine, work = ("NAME", ref) if is_work else (ref, "NAME")
            do = f"give --hardware {machine} --workload {work} in place of a scenario{suggestion(ref, shelf)}"
            raise ConfigError(kind, rule, f"the {'workload' if is_work else 'machine'} {ref!r}", do)
        raise ConfigError(kind, rule, repr(ref), did_you_mean(ref, shelf, otherwise))
    return shelf[ref]


def load(ref: str | Path, kind: str | None = None, *, is_strict: bool = False) -> Entry:
    """Find, read and check a document.

    Parameters
    ----------
    ref
        A name in the catalogue, or a path that ends in ``.yaml``, relative to the working directory.
    kind
        One of `KINDS`; None: `ref` is a path to a document of any kind.
    is_strict
        Whether each figure needs an origin, as in shipped documents.

    Raises
    ------
    ConfigError
        If there is no such document, or it has faults; all are listed.
    """
    path = path_of(ref, kind) if kind else _file(Path(ref), "a document is a file")
    data, is_strict = inputs.whole(path, _LARGEST_BYTES), is_strict or path.is_relative_to(_ROOT)
    entry = _checked(data, path, shown(path), kind, is_strict)
    return _with_workloads(entry, is_strict=is_strict) if isinstance(entry.document, JobDocument) else entry


@lru_cache(64)  # a session reads the same few documents for each of its runs
def _checked(data: bytes, path: Path, name: str, kind: str | None, is_strict: bool) -> Entry:
    try:
        tree = compose(data.decode("utf-8-sig"), name)
    except UnicodeDecodeError as error:
        where, found = f"{name}:{data.count(10, 0, error.start) + 1}", f"the byte 0x{data[error.start]:02x}"
        raise ConfigError(where, "a document is text in UTF-8", found, "save it as UTF-8") from None
    try:
        document = _model_of(tree, kind).model_validate(tree.data, by_alias=True, by_name=False)
        wrong = list(document.field_errors(is_strict=is_strict))
    except ValidationError as error:
        wrong = faults(error, tree.data)
    if wrong:
        raise to_error(sorted(wrong, key=lambda fault: tree.line_of(fault.path)), name, tree.place)
    return Entry(document, path, hashlib.sha256(data).hexdigest(), tree)


def _with_workloads(entry: Entry, *, is_strict: bool) -> Entry:
    """Read the workloads that the programs of a job name, and change them as it says."""
    job, inside, programs = entry.document, dict[str, Entry](), dict[str, JobProgram]()
    must, do = "a program of a job is a workload", "name its workloads here"
    for name, program in job.programs.items():
        programs[name], place = program, partial(entry.tree.place, "programs", name)
        if isinstance(program.workload, str):
            with errors_at(place("workload")):
                path = path_of(program.workload, "workload", entry.path.parent)
            inside[name] = load(path, "workload", is_strict=is_strict)
            work = inside[name].document
            insist(isinstance(work, Workload), place("workload"), must, "another job", do)
            if work.graph and path.parent != entry.path.parent:
                work = work.model_copy(update={"graph": str(path.parent.absolute() / work.graph)})
            changes = {
                key: FieldChange.stated(job, f"programs.{name}.set.{key}", value, place("set", key), "set by the job")
                for key, value in program.set_.items()
            }
            programs[name] = program.model_copy(update={"workload": apply(work, changes), "set_": {}})
    gone = tuple(f"programs.{name}.set" for name in inside)
    kept = {of: {key: why for key, why in getattr(job, of).items() if not key.startswith(gone)} for of in ORIGINS}
    return replace(entry, document=job.model_copy(update={"programs": programs, **kept}), inside=inside)


@cache
def measured_ratios() -> Mapping[str, Mapping[str, list[float]]]:
    """Read the ratios of published measurements: kind of pace -> record -> real over predicted time of each row.

    ``python tests/bench/measured.py --ratios`` writes them.
    """
    path = _ROOT / _RATIOS
    return cast(dict[str, dict[str, list[float]]], compose(path.read_text("utf-8"), shown(path)).data)


def read_hardware(ref: str | Path) -> Hardware:
    """Read a hardware profile by its name in the catalogue, or by its path."""
    return cast(Hardware, load(ref, "hardware").document)


def read_workload(ref: str | Path) -> Workload:
    """Read a workload by its name in the catalogue, or by its path."""
    return cast(Workload, load(ref, "workload").document)


def read_scenario(ref: str | Path) -> Scenario:
    """Read a scenario by its name in the catalogue, or by its path."""
    return cast(Scenario, load(ref, "scenario").document)


def dump(document: Document) -> str:
    """Write a document as YAML that reads back equal.

    Parameters
    ----------
    document
        Of any kind.
    """
    data = document.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return to_yaml({"schema": _schema_key(type(document)), **data})


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of document.

    Parameters
    ----------
    kind
        One of `KINDS`.
    """
    insist(kind in KINDS, "schema", "a kind of document is known", repr(kind), nearest(kind, tuple(KINDS)))
    read, written = (KINDS[kind].model_json_schema(mode=mode) for mode in ("validation", "serialization"))
    read["required"] = ["schema", *read.get("required", [])]
    read["$defs"].get("Workload", {}).pop("required", None)  # in a job it is called as its program
    for name, part in (("", read), *read["$defs"].items()):
        as_written = written["$defs"][name] if name else written
        for key, field in part.get("properties", {}).items():
            if "default" in field:  # a text with a unit in the document, a whole number inside
                field["default"] = as_written["properties"][key]["default"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **read}


def _schema_key(model: type[Document]) -> str:
    """Return the value of the key ``schema`` in documents of a class."""
    return str(model.model_fields["schema_"].default)


@cache
def _shelf(kind: str) -> dict[str, Path]:
    """Map the names of shipped documents to paths: beside the package in a checkout, inside it in a wheel."""
    others = [
        _ROOT / folder for other, folder in _FOLDERS.items() if other != kind and folder.startswith(_FOLDERS[kind])
    ]
    paths = sorted((_ROOT / _FOLDERS[kind]).rglob("*.yaml"))
    return {path.stem: path for path in paths if not any(path.is_relative_to(folder) for folder in others)}


def _file(path: Path, must: str, do: str = "correct the path") -> Path:
    if not isfile(path):
        raise ConfigError(shown(path), must, no_file(path), do)
    return path


def _model_of(tree: YamlTree, wanted: str | None) -> type[Document]:
    """Return the class that the key ``schema`` of a document names."""
    kinds = ("workload", "job") if wanted == "workload" else (wanted,)
    models = {_schema_key(model): model for kind, model in KINDS.items() if wanted is None or kind in kinds}
    stated = tree.data.get("schema")
    if isinstance(stated, str) and stated in models:
        return models[stated]
    noun = wanted or "hardware, software, workload, job, scenario or study"
    rule = f"the key schema says that this is a {noun} document"
    do = nearest(str(stated), tuple(models)) if stated else f"add schema: {' or '.join(models)}"
    if (wanted, stated) == ("scenario", _schema_key(Workload)):
        do = "run it on a machine: give --hardware NAME --workload FILE in place of a scenario"
    raise ConfigError(tree.place("schema"), rule, in_yaml(stated) if stated else "none", do)
