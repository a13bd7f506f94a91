"""Writes the files that users name: each beside its place, and renamed once it is whole, so never half written."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from os.path import realpath
from pathlib import Path
from secrets import token_urlsafe
from tempfile import TemporaryFile

from simulator.errors import ConfigError, insist
from simulator.inputs import no_file
from simulator.interrupts import complete, waiting

_MUST, _DO = "the file can be written", "choose another file"


@contextmanager
def written(*files: Path, option: str = "") -> Iterator[list[Path]]:
    """Yield a place beside each file to write to; when the block ends all replace their files, and if it fails none.

    Parameters
    ----------
    files
        The files.
    option
        The option that names the first one: missing folders are made, and an interrupt says that the file is complete.

    Raises
    ------
    ConfigError
        If one of them is no file, or cannot be written; it names the first one.
    MemoryError
        If the system has no memory left.
    """
    for file in files:
        check_file(option, file)
    targets = [Path(realpath(file)) for file in files]  # what a link leads to is replaced, not the link
    parts = [file.with_name(f".part-{token_urlsafe(6)}{file.suffix}") for file in targets]
    with refusing(f"{option} {files[0]}".strip(), _MUST, f"make room, or {_DO}"):
        try:
            if option:
                targets[0].parent.mkdir(parents=True, exist_ok=True)
            yield parts
            with waiting():
                for part, target in zip(parts, targets, strict=True):
                    part.replace(target)
                complete.extend([str(files[0])] if option else [])
        finally:
            for part in parts:
                part.unlink(missing_ok=True)


@contextmanager
def refusing(where: str, must: str, do: str) -> Iterator[None]:
    """Turn an error of the system into a `ConfigError`, or into a `MemoryError`; parameters as for `HosimError`."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError from error
        raise ConfigError(where, must, error.strerror or str(error), do) from error


def check_file(option: str, file: Path) -> None:
    """Refuse a file that cannot be written; a pipe, too, which would wait for a reader.

    Parameters
    ----------
    option
        The option that names the file.
    file
        The file, which is left unchanged.

    Raises
    ------
    ConfigError
        If it is no file, or cannot be written.
    """
    where = f"{option} {file}".strip()
    with refusing(where, _MUST, _DO):
        if file.exists():
            insist(file.is_file(), where, "an output is a file", no_file(file), _DO)
            file.open("ab").close()
    check_beside(where, file, _MUST, _DO)


def check_beside(where: str, path: Path, must: str, do: str) -> None:
    """Refuse a path if nothing can be created in its folder, or in the nearest existing one above it.

    To find out, create an unnamed file there: permissions alone do not tell, and it leaves nothing behind.

    Parameters
    ----------
    where, must, do
        See `HosimError`.
    path
        The path.

    Raises
    ------
    ConfigError
        If nothing can be created.
    """
    above = next(p for p in Path(realpath(path)).parents if p.exists())
    try:
        with TemporaryFile(dir=above):
            pass
    except OSError as error:
        raise ConfigError(where, must, f"that nothing can be made in {above} ({error.strerror})", do) from error
