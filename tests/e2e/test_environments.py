"""Odd environments: the table and the files of a plain one, or one clear message; never a traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import chain
import pytest
from apart import BEGIN, outcome, tree
from markupsafe import escape
from odd import ENVIRONMENTS, NOTHING, TOOLS, Odd

pytestmark = pytest.mark.slow

NOT_HERE = 77


class Done(NamedTuple):
    """What came of a command."""

    code: int
    stdout: str
    stderr: str
    written: dict[str, bytes] | None


def _become(odd: Odd, command: list[str]) -> list[str]:
    """A process that prepares itself, and becomes the command."""
    within = f"{BEGIN}; import os; {odd.within}\nfrom simulator.__main__ import main\nmain()"
    python = [sys.executable, *odd.flags, "-c", within, *command]
    return [sys.executable, "-c", f"{TOOLS}\n{odd.prepare}\nos.execve({sys.executable!r}, {python!r}, os.environ)"]


def _run(odd: Odd, folder: Path) -> Done:
    out = folder / odd.out
    changed = {"COLUMNS": "100", **odd.env}
    env = {name: value.format(here=folder) for name, value in changed.items() if value is not None}
    env |= {name: value for name, value in os.environ.items() if name not in changed and "PYTHON" not in name}
    terminal, shown = os.openpty() if odd.output == "terminal" else (None, subprocess.PIPE)
    process = subprocess.Popen(
        _become(odd, ["run", str(folder / "inputs" / "scenario.yaml"), "--policy", "reactive", "--out", str(out)]),
        cwd=folder, env=env, encoding="utf-8", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=shown, stderr=subprocess.PIPE if terminal is None else shown,
    )  # fmt: skip
    seen = ""
    if terminal is not None:
        os.close(shown)
        seen = _read(terminal)
    code, stdout, stderr = outcome(process, 120)
    written = tree(out) if out.exists() else None
    if written and "report.html" in written:  # its last command has the name of the folder
        name = str(escape(shlex.quote(out.name))).encode()
        written["report.html"] = written["report.html"].replace(b"--out " + name, b"--out out")
    return Done(code, (stdout or seen).replace(str(out), "OUT"), stderr or "", written)


def _read(terminal: int) -> str:
    """All that is shown on it; at its end Linux has an error."""
    seen = b""
    with suppress(OSError):
        while more := os.read(terminal, 65536):
            seen += more
    os.close(terminal)
    return seen.decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What is read lies in `inputs`."""
    (tmp_path / "inputs").mkdir()
    chain.write(tmp_path / "inputs")
    return tmp_path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """What comes of it in a plain environment."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "inputs").mkdir()
    chain.write(folder / "inputs")
    done = _run(Odd(), folder)
    assert (done.code, done.stderr) == (0, "")
    assert done.written is not None
    return done


def test_so_many() -> None:
    assert len(ENVIRONMENTS) == 51


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_table_or_one_message(name: str, folder: Path, plain: Done) -> None:
    odd = ENVIRONMENTS[name]
    done = _run(odd, folder)
    if done.code == NOT_HERE:
        pytest.skip("this system has no such environment")
    assert "Traceback" not in done.stdout + done.stderr
    assert done.written in (None, plain.written)
    assert not list(folder.rglob(".*partial*"))
    if odd.says and not (odd.depends and done.code == 0):
        assert done.code != 0
        said = [line for line in done.stderr.splitlines() if line.startswith("hosim: ")]
        assert len(said) == len(done.stderr.splitlines()) == (odd.says != NOTHING)
        assert odd.says in ("".join(said) or NOTHING)
        return
    assert (done.code, done.stderr) == (0, "")
    assert done.written == plain.written
    if odd.output == "pipe":
        assert done.stdout == plain.stdout


@pytest.mark.parametrize("mib", range(124, 225, 4))
def test_who_runs_out_of_memory_leaves_nothing(folder: Path, plain: Done, mib: int) -> None:
    """From the first imports to the last picture; where a library ends the process itself, the next run clears up."""
    done = _run(Odd(f"limit(resource.RLIMIT_AS, {mib} << 20)"), folder)
    assert done.written == (plain.written if done.code == 0 else None)
    assert "--out" not in done.stderr
    if "OpenBLAS error" in done.stderr or done.code < 0:
        assert _run(Odd(), folder).code == 0
    assert not list(folder.rglob(".*partial*"))
