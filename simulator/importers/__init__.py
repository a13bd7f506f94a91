"""Readers of files that other tools write, one module for each kind, and the `Imported` that they return.

A reader is one public function, ``read_NAME(source, *, option=default, ...) -> Imported``. It opens `source` (a path as
text) through `simulator.inputs`, whose limits hold; executes nothing in it; and raises a `ConfigError` for anything
wrong with it. It returns hosim's own documents, so the rooms below know no foreign format.

A new kind is a module here and an entry in ``facts.toml``; the package has its reader, too (``docs/build.py`` writes
that into its stub). The command is derived from the reader's signature: `hosim import KIND SOURCE -o FILE` has an
option for each keyword (``new_tokens`` becomes ``--new-tokens``), of the annotated type (``bool``, ``int``, ``float``,
``str``, ``Path``, a ``Literal``, each perhaps ``| None``; ``tuple[str, ...]`` may be repeated), and its help is the
docstring's section *Parameters*. A module is imported only when its kind is asked for, and imports heavy libraries only
when it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from os.path import isfile
from pathlib import Path
from typing import NamedTuple, cast

from simulator import inputs
from simulator.errors import ConfigError
from simulator.importers.imported import FACTS
from simulator.importers.imported import Imported as Imported

Reader = Callable[..., Imported]
"""Function that reads a source, with options by keyword."""


class ImportKind(NamedTuple):
    """A kind of file that can be imported.

    Attributes
    ----------
    name
        Name of the reader, here and in the package.
    signs
        Texts that identify a file of this kind: those joined by ``&`` all occur in its first 64 KiB, unpacked; ``|``
        separates alternatives.
    """

    module: str
    name: str
    about: str
    signs: str = ""

    @property
    def reader(self) -> Reader:
        """The function that reads such a file."""
        return cast(Reader, getattr(import_module(f"{__name__}.{self.module}"), self.name))


KINDS: dict[str, ImportKind] = {name: ImportKind(**about) for name, about in FACTS["kinds"].items()}
"""Name on the command line -> kind."""

# Signs may follow a long first entry, such as the device properties of a profile.
_HEAD_BYTES = 1 << 16


def sniff(path: Path) -> str | None:
    """Return the kind of a file by its content; None if it matches none.

    Raises
    ------
    ConfigError
        If the file cannot be read, or holds a program or a pickle.
    """
    with inputs.opened(path) as file:
        head = file.read(_HEAD_BYTES)
    inputs.data_only(head, path)
    for name, kind in KINDS.items():
        alternatives = (signs.split(" & ") for signs in kind.signs.split(" | ") if signs)
        if any(all(sign.encode() in head for sign in signs) for signs in alternatives):
            return name
    return None


_NEVER = dict.fromkeys((".ckpt", ".pkl", ".pt", ".pth", ".safetensors"), "weights or a pickle, which hosim never opens")
_NEVER[".py"] = "a Python program, which is not run"


def refuse_foreign(reference: str | Path, kind: str = "scenario") -> None:
    """Refuse a file that must be imported first, and name the command that does; accept anything else.

    Parameters
    ----------
    reference
        The user's name or path of a document.
    kind
        The kind of document.

    Raises
    ------
    ConfigError
        If the file is of one of the `KINDS`, or is PyTorch code or weights, which are never opened.
    """
    path = Path(reference)
    if path.suffix in (".yaml", ".yml") or not isfile(path):
        return
    stem, about = path.name.partition(".")[0] or "mine", _NEVER.get(path.suffix)
    if about:
        do = f"run `hosim import torch {stem}:FUNCTION -o {stem}.yaml` with a function that makes model and inputs"
    elif name := {".onnx": "onnx", ".pt2": "torch"}.get(path.suffix) or sniff(path):
        do, about = f"run `hosim import {name} {inputs.shown(path)} -o {stem}.yaml`", KINDS[name].about
    elif not path.suffix:
        return
    else:
        about, do = "another kind of file", "import it as one of the kinds that `hosim import --help` names"
    verb = "serve" if about == KINDS["requests"].about else "run"
    do += f", then `hosim {verb} --hardware NAME --workload {stem}.yaml`" if kind != "hardware" else ""
    raise ConfigError(inputs.shown(path), f"a {kind} is a YAML document of hosim", about, do)
