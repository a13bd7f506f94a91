"""Killed at any moment: nobody works on, nothing stands half written, nothing is lost, and the next run succeeds."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import monotonic
from typing import NamedTuple

import chain
import pytest
from apart import BEGIN, HOSIM, outcome, session, tree
from examples import PROFILE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]

KILLS = [*range(24)] if PROFILE != "laws" else [2 * which + which % 2 for which in range(12)]
"""Each command with each signal, by what it touches and by time; by default one of the two, in turn."""
CLAIM = """\
claim: {sentence: a step takes 1.5 ms, source: a paper}
expect:
  - {row: static, printed: 1.5 ms, within: 0.01, figure: step, why: the step}
"""
EARLIER = "run inputs/scenario.yaml --no-what-if --policy reactive --out out"
COMMANDS = (
    "run inputs/scenario.yaml --no-what-if --out out",
    "validate inputs/scenario.yaml inputs/second.yaml --workers 2 --out out",
    "sweep inputs/scenario.yaml --plans once --jitter 1%,5% --workers 2 --draws 2 --no-cache --out out",
)
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOPPED = "hosim: stopped; {}\n"

TOUCHING = f"""
{BEGIN}
import os
last, number, told, *sys.argv = sys.argv[1:]
process, here, count = os.getpid(), os.getcwd(), 0
files = "os.mkdir os.rename os.remove os.rmdir os.scandir fcntl.flock tempfile.mkdtemp os.fork".split()
def touched(name, arguments):
    global count
    if os.getpid() != process or not (
        name in files
        or (name == "open" and isinstance(arguments[0], str) and os.path.abspath(arguments[0]).startswith(here))
    ):
        return
    count += 1
    if count == int(last):
        os.kill(process, int(number))
sys.addaudithook(touched)
from simulator.__main__ import main
try:
    main()
finally:
    if os.getpid() == process:
        with open(told, "w") as file:
            file.write(str(count))
"""
"""A command that is sent a signal just before the n-th time that it touches a file of these or starts a process."""


class Whole(NamedTuple):
    """A command that nobody kills."""

    written: dict[str, bytes]
    touches: int
    took_s: float


def _start(folder: Path, command: list[str]) -> subprocess.Popen[str]:
    """In a session of its own, by which its processes are found."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def _done(folder: Path, command: list[str]) -> tuple[int, str]:
    code, _, stderr = outcome(_start(folder, command), 120)
    return code, stderr


def _touching(touch: int, sent: int, command: str) -> list[str]:
    return [sys.executable, "-c", TOUCHING, str(touch), str(int(sent)), "touches", "hosim", *command.split()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands read."""
    folder = tmp_path_factory.mktemp("kills")
    (folder / "inputs").mkdir()
    chain.write(folder / "inputs", scenario=chain.SCENARIO + CLAIM)
    second = (chain.SCENARIO + CLAIM).replace("name: chain", "name: second")
    (folder / "inputs" / "second.yaml").write_text(second)
    return folder


@pytest.fixture(scope="module")
def whole(place: Path) -> dict[str, Whole]:
    """What each command writes, how often it touches something, and how long it takes; the earlier result is kept."""
    found = {}
    for command in (EARLIER, *COMMANDS):
        began_s = monotonic()
        assert _done(place, _touching(0, 0, command)) == (0, "")
        took_s = monotonic() - began_s
        found[command] = Whole(tree(place / "out"), int((place / "touches").read_text()), took_s)
        if command == EARLIER:
            (place / "out").rename(place / "earlier")
        else:
            shutil.rmtree(place / "out")
        shutil.copytree(place / "earlier", place / "out")
    (place / "touches").unlink()
    shutil.rmtree(place / "out")
    return found


@pytest.fixture
def out(place: Path, whole: dict[str, Whole]) -> Iterator[Path]:
    """The folder of results, with an earlier one in it."""
    shutil.copytree(place / "earlier", place / "out")
    yield place / "out"
    for path in place.iterdir():
        if path.name not in ("inputs", "earlier"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _moment(number: int) -> tuple[str, signal.Signals, bool, float]:
    """Which command gets which signal, and when: by what it touches, or by time; as a share of all.

    Moments of a signal, and of a command, are spread over the whole run.
    """
    which, by_touch = divmod(number, 2)
    share = (which * 5 % 12 + Random(number).random()) / 12
    return COMMANDS[which % 3], SIGNALS[which // 3], by_touch == 1, share


def _kill(place: Path, number: int, whole: Whole) -> tuple[int, str]:
    """Run the command and kill it; the exit code and what it said, once nobody holds its output any more."""
    command, sent, by_touch, share = _moment(number)
    if by_touch:
        process = _start(place, _touching(1 + int(share * whole.touches), sent, command))
    else:
        process = _start(place, [*HOSIM, *command.split()])
        try:
            process.wait(share * whole.took_s)
        except subprocess.TimeoutExpired:
            process.send_signal(sent)
    code, _, stderr = outcome(process, 60)
    assert session(process.pid) == []
    return code, stderr


@pytest.mark.parametrize("number", KILLS)
def test_what_a_kill_leaves(number: int, place: Path, out: Path, whole: dict[str, Whole]) -> None:
    command, sent, *_ = _moment(number)
    old, new = whole[EARLIER].written, whole[command].written
    code, stderr = _kill(place, number, whole[command])
    if code == 0:  # it had ended, or was about to
        assert (stderr, tree(out)) == ("", new)
    elif sent == signal.SIGKILL:
        assert (code, stderr) == (-signal.SIGKILL, "")
    else:
        is_starting = code == -sent and not stderr  # Python itself still was
        assert is_starting or code in (130, -signal.SIGINT)
        assert is_starting or stderr == STOPPED.format(
            f"{out} is complete" if tree(out) == new else "nothing was written"
        )
    left = list(place.glob(".out.partial-*"))
    if sent != signal.SIGKILL:
        assert left == []
    assert len(left) <= 1
    if out.exists():
        assert tree(out) in (old, new)
    else:
        assert tree(left[0] / "old") == old
    code, stderr = _done(place, [*HOSIM, *command.split()])
    assert (code, tree(out)) == (0, new), stderr
    assert stderr.splitlines() == [f"hosim: {path}: removed; a run that was killed had left it" for path in left]
    assert sorted(path.name for path in place.iterdir() if path.name != "touches") == ["earlier", "inputs", "out"]
