"""The output folder: filled in a workspace beside its place and renamed when complete, so never half written.

The workspace is a folder with a unique name, which the run locks as long as it lives: one without a lock was left by a
run that was killed.
"""

from __future__ import annotations

import csv
import fcntl
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from itertools import chain, count
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, Literal

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from simulator.document import Line
from simulator.errors import ConfigError, insist
from simulator.inputs import whole
from simulator.interrupts import complete, waiting
from simulator.metrics import columns as columns_of
from simulator.metrics.figures import PLAIN, Figure, Unit, asked
from simulator.metrics.rows import Row
from simulator.outputs import check_beside, refusing
from simulator.trace import CAUSES

_SUMMARY = "hosim-summary/2"
"""The schema of ``summary.json``."""
COMPARISON = "comparison.png"
"""Name of the picture that compares all rows."""
_AGAIN = "run again with this version of hosim"
_FILES = ("report.html", COMPARISON, "summary.csv", "summary.json", "scenario.yaml", "hardware.yaml", "workload.yaml")
"""Files of the output folder, whose names no row's folder may have."""
_PARTIAL, _OLD, _GONE = ".{}.partial-", "old", "gone"

Summary = Mapping[str, Any]
"""The content of a ``summary.json``."""


def check_target(out: Path, editable: str = "", *, force: bool = False) -> None:
    """Refuse an output folder that holds anything but an earlier run, or cannot be made.

    Parameters
    ----------
    out
        The folder of the results.
    editable
        Pattern of the files that a command writes there for people to change.
    force
        Whether these are replaced.

    Raises
    ------
    ConfigError
        If it is a file, the working directory or one above it, holds files that hosim did not write, or nothing can be
        created beside it.
    """
    where, rule = f"--out {out}", "the results get a folder of their own"
    do = "choose another folder, or move that away"
    is_file = os.path.lexists(out) and not out.is_dir()
    insist(not is_file, where, rule, "a file, or a link that leads nowhere", do)
    is_around = out.exists() and Path.cwd().is_relative_to(out.resolve())
    insist(not is_around, where, rule, "the working directory", do)
    strange = sorted(_strange(out), key=lambda name: bool(re.fullmatch(editable, name)))
    if strange and re.fullmatch(editable, strange[0]):
        must, do = "a file that is there is kept", "choose another folder, or say --force"
        insist(force, where, must, str(out / strange[0]), do)
    elif strange:
        found = f"{strange[0]!r} in it, and {len(strange)} files in all that are not of an earlier run"
        raise ConfigError(where, rule, found, do)
    check_beside(where, out, rule, do)


def _strange(folder: Path) -> list[str]:
    """Return the names of files in a folder that hosim did not write."""
    summary: Any = None
    with suppress(OSError, orjson.JSONDecodeError):
        summary = orjson.loads((folder / "summary.json").read_bytes())
    is_ours = isinstance(summary, dict) and summary.get("schema") == _SUMMARY
    return sorted(_contents(folder) - set(map(str, summary.get("files", []) if is_ours else ())))


def _contents(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir() or p.is_symlink()}


@contextmanager
def replaced(out: Path, editable: str = "", *, force: bool = False) -> Iterator[Path]:
    """Yield a folder to fill; it replaces `out` when the block ends, and is removed if the block fails.

    If others write into `out` meanwhile, its old content is kept beside it, and a line on stderr says so.

    Parameters
    ----------
    out, editable, force
        See `check_target`.

    Raises
    ------
    ConfigError
        If `out` must not be replaced, or cannot be written.
    MemoryError
        If the system has no memory left.
    """
    check_target(out, editable, force=force)
    out = out.resolve()
    made = [p for p in (out.parent, *out.parent.parents) if not p.exists()]
    try:
        with refusing(f"--out {out}", "the results can be written", "make room for them, or choose another folder"):
            out.parent.mkdir(parents=True, exist_ok=True)
            _clear(out)
            workspace = out.with_name(_PARTIAL.format(out.name) + token_urlsafe(6))
            try:
                workspace.mkdir(0o700)
                with _locked(workspace):
                    new = workspace / "new"
                    new.mkdir()
                    yield new
                    with waiting():
                        if os.path.lexists(out):
                            out.rename(workspace / _OLD)
                            for path in (workspace / _OLD).iterdir() if force else ():
                                if re.fullmatch(editable, path.name):
                                    path.unlink()
                        new.rename(out)
                        complete.append(str(out))
            finally:
                with waiting():
                    _settle(workspace, out)
    finally:
        for parent in made:
            with suppress(OSError):
                parent.rmdir()


_SPARE = 4
"""File descriptors that removing a result takes: one for each level of folders, and one to list the deepest."""


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder; raise an OSError if another process has locked it, or it is gone.

    Meanwhile hold the file descriptors and the memory that removing it takes, so that it can be removed even if the
    system gives no more.
    """
    memory, files = bytearray(4 << 20), [os.open(folder, os.O_RDONLY)]  # Python allocates arenas of 1 MiB
    try:
        fcntl.flock(files[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        files += [os.dup(files[0]) for _ in range(_SPARE)]
        yield
    finally:
        del memory
        for file in files:
            os.close(file)


def _clear(out: Path) -> None:
    """Remove the workspaces that killed runs left beside `out`."""
    for workspace in out.parent.glob(escape(_PARTIAL.format(out.name)) + "*"):
        with suppress(OSError), _locked(workspace):
            _settle(workspace, out)
            _print(f"{workspace}: removed; a run that was killed had left it")


def _settle(workspace: Path, out: Path) -> None:
    """Remove a workspace; put the earlier `out` back if `out` is missing, or keep it if others wrote into it."""
    old = workspace / _OLD
    if os.path.lexists(old) and not os.path.lexists(out):
        old.rename(out)
    elif os.path.lexists(old) and (not old.is_dir() or _strange(old)):
        paths = (out.with_name(f"{out.name}~{suffix}") for suffix in count(1))
        kept = next(path for path in paths if not os.path.lexists(path))
        old.rename(kept)
        _print(f"{kept}: kept; something came into the folder while that was replaced")
    if os.path.lexists(old):  # a half-removed result must not look like one that others wrote into
        old.rename(workspace / _GONE)
    shutil.rmtree(workspace, ignore_errors=True)
    with suppress(OSError):  # rmtree needs it readable, which a umask may prevent
        workspace.rmdir()


def _print(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"hosim: {text}\n")


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write texts into a folder, by file name."""
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def content(rows: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``summary.json``: rows, each with every column, and further entries.

    Parameters
    ----------
    rows
        The summaries.
    more
        Further entries: provenance, sentences, expectations.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return {"schema": _SUMMARY, "rows": [{column: row.get(column) for column in columns} for row in rows], **more}


def figures_of(rows: Iterable[Row], searched: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Describe the columns that another machine, or another question, would not have; readers know the others.

    Parameters
    ----------
    rows, searched
        The rows, and the columns that a search added to them.
    """
    made = {column: figure for row in rows for column, figure in columns_of(row.hardware).items()} | asked(searched)
    keys = _Figure.__annotations__
    return {column: {key: getattr(made[column], key) for key in keys} for column in made if column not in PLAIN}


def stated_figures(*summaries: Summary) -> dict[str, Figure]:
    """Return the figures of the columns of results: what they state, and those of every machine."""
    stated = (item for summary in summaries for item in summary["figures"].items())
    return {column: Figure(column, **described) for column, described in stated} | dict(PLAIN)


def dumped(data: Mapping[str, Any]) -> bytes:
    """Write data as indented JSON that ends with a newline."""
    return orjson.dumps(data, option=orjson.OPT_INDENT_2) + b"\n"


def write_csv(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same columns as CSV; None is an empty cell."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, lines[0] if lines else (), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def write_summary(folder: Path, rows: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> None:
    """Write ``summary.csv`` and, last of all files, ``summary.json`` with the list of all files.

    Parameters
    ----------
    folder
        The folder with all other files in it.
    rows
        The summaries.
    more
        Further entries of ``summary.json``: provenance, sentences, expectations.
    """
    summary = content(rows, more)
    write_csv(folder / "summary.csv", summary["rows"])
    summary["files"] = sorted({*_contents(folder), "summary.json"})
    (folder / "summary.json").write_bytes(dumped(summary))


def folder_names(labels: Sequence[str]) -> dict[str, str]:
    """Choose a folder name for each row: its label without special characters, numbered where names collide.

    Parameters
    ----------
    labels
        Row labels, all different.
    """
    chosen: dict[str, str] = {}
    taken = set(_FILES)
    for label in labels:
        plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", label).strip("-.") or "row"
        names = chain([plain], (f"{plain}-{suffix}" for suffix in count(2)))
        chosen[label] = next(name for name in names if name.lower() not in taken)
        taken.add(chosen[label].lower())
    return chosen


def plan_names(programs: Sequence[str]) -> list[str]:
    """Choose a file name for the plan of each program: ``plan.jsonl`` for a single one, else with the program's name.

    Parameters
    ----------
    programs
        Names of the programs, all different.
    """
    return [f"plan-{name}.jsonl" for name in folder_names(programs).values()] if programs[1:] else ["plan.jsonl"]


_TYPES = {"text": (str, "text"), "ns": (int, "a whole number"), "B": (int, "a whole number")}
"""Unit of a figure -> the type of its values, and the word for it; of others, a number."""


class _Verdict(TypedDict):
    asks: Line
    holds: bool


class _Stall(TypedDict):
    cause: Line
    on: Line
    ns: int


class _Input(TypedDict):
    kind: Line
    name: Line
    sha256: Line


class _Figure(TypedDict):
    unit: Unit
    head: Line
    worse: Literal["", "more", "less"]
    is_compared: bool


class _Provenance(TypedDict, total=False):
    hosim: Line
    seed: int
    inputs: list[_Input]
    set: dict[Line, Any]
    switches: dict[Line, Any]
    draws: dict[Line, Any]


@with_config(ConfigDict(defer_build=True))
class _Summary(TypedDict):
    """The keys of a summary that are read; there may be others."""

    rows: list[dict[Line, int | float | Line | None]]
    expectations: list[_Verdict]
    stalls: dict[Line, list[_Stall]]
    figures: dict[Line, _Figure]
    provenance: _Provenance


_SUMMARIES = TypeAdapter(_Summary)
"""Built when the first summary is read."""


def read_summary(result: Path) -> dict[str, Any]:
    """Read and check the ``summary.json`` of a run.

    Parameters
    ----------
    result
        A folder that ``hosim run --out`` wrote, or only the ``summary.json`` of one.

    Raises
    ------
    ConfigError
        If it is neither, is incomplete, has another version of the schema, or was changed.
    """
    path = result / "summary.json" if result.is_dir() else result
    if result.is_dir() and not path.exists():
        rule = "a result is a folder that `hosim run --out` wrote, or its summary.json"
        raise ConfigError(str(result), rule, f"a folder without {path.name}, which is written last", _AGAIN)
    try:
        summary = orjson.loads(whole(path))
        schema = summary.get("schema") if isinstance(summary, dict) else None
        insist(schema == _SUMMARY, str(path), f"the schema is {_SUMMARY}", repr(schema) if schema else "none", _AGAIN)
        _SUMMARIES.validate_python(summary, strict=True)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}", "a summary is JSON to its end", error.msg, _AGAIN) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = f"{path}, {', '.join(map(str, first['loc']))}"
        raise ConfigError(where, f"a summary of a run is as {_SUMMARY} says", first["msg"].lower(), _AGAIN) from None
    labels = Counter(row.get("policy") for row in summary["rows"])
    figures = stated_figures(summary)
    for row in summary["rows"]:
        for column in (column for column, value in row.items() if value is not None and column in figures):
            kind, word = _TYPES.get(figures[column].unit, (int | float, "a number"))
            where = f"{path}, row {row.get('policy')!r}"
            insist(isinstance(row[column], kind), where, f"{column} is {word}", repr(row[column]), _AGAIN)
        filled_ns, label = sum(ns for _, ns in spent(row, summary)), row.get("policy")
        is_named = isinstance(label, str) and isinstance(row.get("status"), str) and labels[label] == 1
        if not is_named or (row["status"] == "ok" and row.get("step_ns") != filled_ns):
            rule = "a row has a label of its own, and compute, recompute, delays and waits fill its step"
            raise ConfigError(f"{path}, row {label!r}", rule, f"{filled_ns:,} of {row.get('step_ns')} ns", _AGAIN)
    return dict(summary)


def spent(row: Summary, summary: Summary) -> Iterator[tuple[tuple[str, str], int]]:
    """Iterate over the parts of a row's step [ns], keyed by column and place; they sum to the step."""
    for column in ("compute_ns", "recompute_ns", "delay_ns", "drain_ns"):
        yield (column, ""), ns if isinstance(ns := row.get(column), int) else 0
    for stall in (stall for stall in summary["stalls"].get(row.get("policy"), ()) if stall["cause"] in CAUSES):
        yield (f"wait_{stall['cause']}_ns", stall["on"]), stall["ns"]
