"""The command as a process of its own: what it prints, what it leaves behind, and which processes are left of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

BEGIN = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})"
"""What finds the simulator beside these tests from any folder, and whatever the environment says."""
HOSIM = [sys.executable, "-c", f"{BEGIN}; from simulator.__main__ import main; main()"]


def outcome(process: subprocess.Popen[str], within_s: float) -> tuple[int, str, str]:
    """The exit code of a leader of a session, and what was printed, once nobody holds its output any more.

    How far it is, which it tells where it takes long, is left out.

    What it started is stopped if that takes too long; then this fails.
    """
    try:
        stdout, stderr = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, stdout, stderr and without_progress(stderr)


def without_progress(stderr: str) -> str:
    """What a command says on any machine: not how far it is every half a minute, and how long a sweep will take."""
    progress = r"^hosim: (after [\d,]+ s: |[\d,]+ points, [\d,]+ of them kept|about .* for the other ).*\n"
    return re.sub(progress, "", stderr, flags=re.MULTILINE)


def tree(folder: Path) -> dict[str, bytes]:
    """All files of a folder, by their names in it."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def session(number: int) -> list[str]:
    """The commands of the processes of a session that are alive, as /proc says: who is ending has none any more."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            of = int(stat.read_text().rpartition(")")[2].split()[3])
            command = stat.with_name("cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if of == number and command:
            found.append(f"{stat.parent.name}: {command}")
    return found
