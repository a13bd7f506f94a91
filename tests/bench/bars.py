"""What must hold of how fast hosim is, tried as a whole before a release.

    python tests/bench/bars.py

Each of these programs has bars. It says which of them it misses, and then ends with 1; so does this one, once all have
run. An aim that is printed beside a bar is no bar.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PROGRAMS = (
    "engine.py",
    "astra.py",
    "ranks.py",
    "planning.py",
    "planning.py --recompute",
    "layouts.py",
    "offsets.py",
    "optimum.py",
    "acceptance.py --traces acceptance",
    "executing.py",
    "executed.py",
)
NONE: Mapping[str, float] = {}


def missed(
    found: Mapping[str, float], *, least: Mapping[str, float] = NONE, most: Mapping[str, float] = NONE
) -> list[str]:
    """Each figure that is below its least or above its most, with that; every bar has a figure."""
    below = [f"{name} {found[name]:.3g} (must be at least {bar:g})" for name, bar in least.items() if found[name] < bar]
    above = [f"{name} {found[name]:.3g} (must be at most {bar:g})" for name, bar in most.items() if found[name] > bar]
    return below + above


def told(misses: list[str]) -> str:
    """The last line that a program prints."""
    return f"missed: {'; '.join(misses)}" if misses else "every bar is met"


def main() -> int:
    """Run all; 1 if one of them misses a bar, or fails."""
    failed = []
    for program in PROGRAMS:
        print(f"\n{program}", flush=True)
        file, *options = program.split()
        if subprocess.run([sys.executable, str(Path(__file__).with_name(file)), *options], check=False).returncode:
            failed.append(program)
    print(f"\n{told(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
