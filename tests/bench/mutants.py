"""Breaks the program in many places, one at a time, and says which test sees it; what none sees survives.

    python tests/bench/mutants.py                 all of `mutants.toml`; takes minutes
    python tests/bench/mutants.py serving TPOT    those whose file or name has one of these words

A mutant is a line or two of the program as it is, and as it would be if it were wrong. Each is written into a copy of
the tree, never in place, and its tests run there until the first fails. The exit code is 1 if a mutant survives. A text
that is no longer there once, or tests that fail before anything is broken, end the program: renew the entry.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LONGEST_S = 600
"""Tests that run longer wait for what a mutant never does."""


class Mutant(NamedTuple):
    """What is broken, in which file of `simulator`, by which text in place of which; and the tests that see it."""

    broken: str
    file: str
    old: str
    new: str
    tests: list[str]


def mutants(words: list[str]) -> list[Mutant]:
    """The mutants with one of these words, or all; each text is where it should be, once."""
    with (ROOT / "tests" / "bench" / "mutants.toml").open("rb") as file:
        areas = tomllib.load(file)
    listed = [Mutant(**{"tests": area["tests"], **entry}) for area in areas.values() for entry in area["mutants"]]
    for mutant in listed:
        times = (ROOT / "simulator" / mutant.file).read_text(encoding="utf-8").count(mutant.old)
        if times != 1 or mutant.new == mutant.old:
            sys.exit(f"mutants.toml, {mutant.broken!r}: {mutant.file} has {mutant.old!r} {times} times, not once")
    return [mutant for mutant in listed if not words or any(f"{mutant.file} {mutant.broken}".count(w) for w in words)]


def copied(folder: Path) -> Path:
    """Copy what git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def failing(folder: Path, tests: list[str]) -> str | None:
    """The first test that fails in a copy of the tree; None if all pass."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-x", "--no-header", "--tb=no", "-rfE"]
    command += [f"tests/{test}" for test in tests]
    about = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "1000"}
    try:
        done = subprocess.run(
            command, check=False, cwd=folder, env=about, capture_output=True, text=True, timeout=LONGEST_S
        )
    except subprocess.TimeoutExpired:
        return f"a test that does not end within {LONGEST_S} s"
    found = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1) or bool(done.returncode) != bool(found):
        sys.exit(f"pytest ends with {done.returncode}, which says nothing:\n{done.stdout}{done.stderr}")
    return found[1].partition("[")[0] if found else None


def seen(folder: Path, asked: list[Mutant]) -> Iterator[tuple[Mutant, str | None]]:
    """Each mutant with the test that sees it; before the first of some tests, these pass."""
    passing = list[list[str]]()
    for mutant in asked:
        if mutant.tests not in passing:
            if (failed := failing(folder, mutant.tests)) is not None:
                sys.exit(f"{failed} fails before anything is broken")
            passing.append(mutant.tests)
        path = folder / "simulator" / mutant.file
        sound = path.read_text(encoding="utf-8")
        for text in (sound.replace(mutant.old, mutant.new), sound):
            path.write_text(text, encoding="utf-8")
            Path(cache_from_source(str(path))).unlink(missing_ok=True)  # of the same second, and often of the same size
            if text != sound:
                yield mutant, failing(folder, mutant.tests)


def main(words: list[str]) -> int:
    """Print, file by file, what was broken and who saw it, as each mutant is done; and how many survived."""
    asked, alive, file = mutants(words), 0, ""
    with tempfile.TemporaryDirectory() as folder:
        for mutant, test in seen(copied(Path(folder)), asked):
            if mutant.file != file:
                file = mutant.file
                print(f"\n{file}")
            print(f"  {mutant.broken:60} {test or 'NOBODY'}", flush=True)
            alive += test is None
    print(f"\n{len(asked)} places were broken, one at a time; {alive} of them no test saw.")
    return int(alive > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
