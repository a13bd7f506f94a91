"""The output folder: filled beside its place and renamed when complete, so that none is ever half written.

Beside it lies a folder of the run's own, whose name nobody else has. The run holds it as long as it lives: what nobody
holds was left by one that was killed.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import Any

import orjson

from simulator.errors import ConfigError, said_by_system
from simulator.interrupts import complete, waiting
from simulator.report import summaries


def check_target(out: Path) -> None:
    """Refuse an output folder that holds anything but an earlier run, or cannot be made.

    Parameters
    ----------
    out
        Where the results shall be.

    Raises
    ------
    ConfigError
        If it is a file, the working directory or one above it, holds what hosim did not write, or is where nothing can
        be made: it is filled beside its place.
    """
    where, must, do = f"--out {out}", "the results get a folder of their own", "choose another folder"
    if out.is_symlink() and not out.exists():
        raise ConfigError(where, must, "a link that leads nowhere", f"remove it, or {do}")
    if out.exists() and not out.is_dir():
        raise ConfigError(where, must, "a file", do)
    if out.exists() and Path.cwd().is_relative_to(out.resolve()):
        raise ConfigError(where, must, "the working directory", "name a folder inside it")
    if out.exists() and (strange := _strange(out)):
        must = "an existing folder is empty or holds an earlier run of hosim, and nothing else"
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        raise ConfigError(where, must, f"{strange[0]!r}{more}", f"{do}, or move that away")
    check_beside(where, out, must, do)


def _strange(folder: Path) -> list[str]:
    return sorted(_contents(folder) - _written_by_hosim(folder))


def _contents(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir() or p.is_symlink()}


def _written_by_hosim(folder: Path) -> set[str]:
    try:
        summary = orjson.loads((folder / "summary.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return set()
    if not isinstance(summary, dict) or summary.get("schema") != summaries.SUMMARY:
        return set()
    return set(map(str, summary.get("files", [])))


@contextmanager
def replaced(out: Path) -> Iterator[Path]:
    """Give a folder to fill; when that is done it takes the place of `out`, and if it fails nothing is left.

    What others put into `out` meanwhile is kept in it, and told.

    Parameters
    ----------
    out
        Where the results shall be.

    Raises
    ------
    ConfigError
        If `out` must not be replaced, or cannot be written.
    """
    check_target(out)
    out = out.resolve()
    made = [p for p in (out.parent, *out.parent.parents) if not p.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _clear(out)
        with _own(out) as own:
            new = own / "new"
            new.mkdir()
            yield new
            with waiting():
                if os.path.lexists(out):
                    out.rename(own / _OLD)
                new.rename(out)
                complete.append(str(out))
    except OSError as error:
        do = "make room for them, or choose another folder"
        raise ConfigError(f"--out {out}", "the results can be written", said_by_system(error), do) from error
    finally:
        for parent in made:
            with suppress(OSError):
                parent.rmdir()


_PARTIAL, _OLD = ".{}.partial-", "old"
_DEEPEST = 4
"""Folders that are open at once while one with the rows' folders is removed: there must be room for so many files."""


@contextmanager
def _own(out: Path) -> Iterator[Path]:
    """Give a folder beside `out` that nobody else uses, nor removes; behind it, it is settled."""
    made, held, spare = list[Path](), list[int](), list[int]()
    try:
        with waiting():
            while not held:
                made.append(Path(mkdtemp(prefix=_PARTIAL.format(out.name), dir=out.parent)))
                if (file := _hold(made[-1])) is not None:
                    held.append(file)
            spare += (os.dup(*held) for _ in range(_DEEPEST))
        yield made[-1]
    finally:
        with waiting():
            for file in spare:
                os.close(file)
            for own in made:
                _settle(own, out)
            for file in held:
                os.close(file)


def _clear(out: Path) -> None:
    """Settle what runs left beside `out` that were killed."""
    for left in out.parent.glob(escape(_PARTIAL.format(out.name)) + "*"):
        with suppress(PermissionError):  # it is someone else's
            held = _hold(left, is_sure=True) if left.is_dir() and not left.is_symlink() else None
            if held is not None:
                _settle(left, out)
                os.close(held)
                _say(f"{left}: removed; a run that was killed had left it")


def _hold(folder: Path, is_sure: bool = False) -> int | None:
    """Hold a folder until the file is closed that is returned; None if another process does, or removes it.

    Where the system lets nobody hold it, that is as well, unless one must be sure.
    """
    try:
        file = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    is_held = not is_sure
    try:
        fcntl = import_module("fcntl")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held = folder.exists()
    except BlockingIOError:
        is_held = False
    except (ImportError, OSError):
        pass
    if not is_held:
        os.close(file)
    return file if is_held else None


def _settle(own: Path, out: Path) -> None:
    """Remove a run's own folder, but of the earlier `out` in it all that is missed now, or that hosim did not write."""
    old = own / _OLD
    if os.path.lexists(old) and not os.path.lexists(out):
        old.rename(out)
    elif os.path.lexists(old):
        for name in _strange(old) if old.is_dir() and not old.is_symlink() else [""]:
            kept = out / name
            while os.path.lexists(kept):
                kept = kept.with_name(f"{kept.name}~")
            kept.parent.mkdir(parents=True, exist_ok=True)
            (old / name).rename(kept)
            _say(f"{kept}: kept; it came into the folder while that was replaced")
        if os.path.lexists(old):  # it is known by a file in it, so that what is left of it must not be taken for it
            old.rename(own / "gone")
    shutil.rmtree(own, ignore_errors=True)
    with suppress(OSError):  # not even readable: what a umask may do
        own.rmdir()


def _say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"hosim: {text}\n")


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write texts into a folder, by file name."""
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def write_summary(folder: Path, rows: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> None:
    """Write ``summary.csv`` and, last of all files, ``summary.json`` with the list of what the folder holds.

    Parameters
    ----------
    folder
        The folder with all other files in it.
    rows
        The summaries.
    more
        Further entries of ``summary.json``: provenance, sentences, expectations.
    """
    said = summaries.content(rows, more)
    with (folder / "summary.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, said["rows"][0] if rows else (), lineterminator="\n")
        writer.writeheader()
        writer.writerows(said["rows"])
    said["files"] = sorted({*_contents(folder), "summary.json"})
    (folder / "summary.json").write_bytes(summaries.dumped(said))


def check_file(option: str, file: Path) -> None:
    """Refuse a file that cannot be written; its folders are made if need be, an earlier one is replaced.

    Parameters
    ----------
    option
        Which one names the file.
    file
        Nothing of it changes.

    Raises
    ------
    ConfigError
        If it cannot be written.
    """
    where, must, do = f"{option} {file}", "the file can be written", "choose another file"
    if not file.exists():
        check_beside(where, file, must, do)
        return
    try:
        file.open("ab").close()
    except OSError as error:
        raise ConfigError(where, must, str(error.strerror), do) from error


def check_beside(where: str, path: Path, must: str, do: str) -> None:
    """Refuse a place if nothing can be made in its folder, or in the nearest one above it that exists.

    The system is asked by making a file there that has no name: permissions alone do not tell, and nothing can be left.

    Parameters
    ----------
    where, must, do
        What a message begins with, the rule, and what helps.
    path
        The place.

    Raises
    ------
    ConfigError
        If nothing can be made.
    """
    above = next(p for p in path.resolve().parents if p.exists())
    if not above.is_dir():
        raise ConfigError(where, must, f"that {above} is a file", do)
    try:
        with TemporaryFile(dir=above):
            pass
    except OSError as error:
        raise ConfigError(where, must, f"that nothing can be made in {above} ({error.strerror})", do) from error


COMPARISON = "comparison.png"
"""Name of the picture of the table."""
_DOCUMENTS = ("scenario.yaml", "hardware.yaml", "workload.yaml")
_FILES = ("report.html", COMPARISON, "summary.csv", "summary.json", *_DOCUMENTS)
"""Names in the output folder that no row's folder may have."""


def folder_names(labels: Sequence[str]) -> dict[str, str]:
    """Choose a folder name for each row: its label, plain, with a number where it is taken.

    Parameters
    ----------
    labels
        Row labels, all different.
    """
    chosen: dict[str, str] = {}
    taken = set(_FILES)
    for label in labels:
        plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", label).strip("-.") or "row"
        name, number = plain, 1
        while name.lower() in taken:
            number += 1
            name = f"{plain}-{number}"
        chosen[label] = name
        taken.add(name.lower())
    return chosen


def plan_names(programs: Sequence[str]) -> list[str]:
    """Choose a file name for the plan of each program: ``plan.jsonl`` if there is one, else with the program's name.

    Parameters
    ----------
    programs
        Their names, all different.
    """
    if len(programs) == 1:
        return ["plan.jsonl"]
    return [f"plan-{name}.jsonl" for name in folder_names(programs).values()]
