"""Compile the replay as a part of the install: `simulator/engine/replay/_replay.abi3.so`, or `_replay.pyd`.

Hatchling runs this for wheels and for editable installs. It takes compilers that setuptools knows: gcc, clang, MSVC.
Where none is found, or with ``HOSIM_PURE=1``, the install goes on without it, in pure Python.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

ROOM = Path("simulator/engine/replay")
PYTHON, LIMITED_API = "cp311", "0x030B0000"
"""The first Python whose limited API has buffers: what is built for it runs on all later ones."""
UNIX = ["-O2", "-std=c++17", "-fvisibility=hidden", "-g0", "-ffp-contract=off"]
"""Without contraction a product is rounded before it is added to, as in Python, so that times are the same."""
MSVC = ["/O2", "/std:c++17", "/EHsc"]


class ReplayHook(BuildHookInterface):
    """Adds the compiled replay to what is installed, if it can be compiled."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile: beside the source for an editable install, else into the wheel alone."""
        room = Path(self.root) / ROOM
        self._made = TemporaryDirectory()
        if version == "editable":
            for old in (*room.glob("_replay*.so"), *room.glob("_replay*.pyd")):
                old.unlink()
        if (file := self._compiled(room)) is None:
            return
        if version == "editable":
            shutil.copyfile(file, room / file.name)
        else:
            build_data["force_include"][str(file)] = str(ROOM / file.name)
        build_data["pure_python"] = False
        build_data["tag"] = f"{PYTHON}-abi3-{sysconfig.get_platform().translate(str.maketrans('-.', '__'))}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled into the wheel."""
        self._made.cleanup()

    def _compiled(self, room: Path) -> Path | None:
        """Compile the sources, and return the file; None, after a line that says why, if that cannot be."""
        if os.environ.get("HOSIM_PURE"):
            self.app.display_info("hosim: HOSIM_PURE is set, so the replay is not compiled.")
            return None
        try:
            return compiled(room, Path(self._made.name))
        except (BaseError, CCompilerError) as error:
            do = "install a C++17 compiler and Python's headers, and install hosim again"
            self.app.display_warning(f"hosim: its replay is not compiled ({error}). It runs, but slower; {do}.")
            return None


class Build(build_ext):
    """Takes the options of the compiler that was found."""

    def build_extension(self, ext: Extension) -> None:
        """Compile and link."""
        ext.extra_compile_args = MSVC if self.compiler.compiler_type == "msvc" else UNIX
        super().build_extension(ext)


def compiled(room: Path, folder: Path) -> Path:
    """Compile the sources in a folder into another one.

    The module says by `sources` what it was made of, so that nobody takes an old one for new sources.
    """
    sources = sorted(room.glob("*.cpp"))
    made_of = sha256(b"".join(path.read_bytes() for path in sorted(room.glob("*.[ch]pp")))).hexdigest()
    macros = [("Py_LIMITED_API", LIMITED_API), ("HOSIM_SOURCES", f'"{made_of}"')]
    extension = Extension("_replay", [*map(str, sources)], define_macros=macros, py_limited_api=True, language="c++")
    build = Build(Distribution({"ext_modules": [extension]}))
    build.build_lib, build.build_temp = str(folder), str(folder / "objects")
    build.ensure_finalized()
    build.run()
    return folder / build.get_ext_filename("_replay")
