"""Whether something can be written at a place, asked before what takes long has run."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

from simulator.errors import ConfigError


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
    where, do = f"{option} {file}", "choose another file"
    if file.exists():
        try:
            file.open("ab").close()
        except OSError as error:
            raise ConfigError(where, "the file can be written", str(error.strerror), do) from error
    else:
        check_beside(where, file, "the file can be written", do)


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
