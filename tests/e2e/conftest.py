"""The command line in this process: quick, with exit code, output and messages."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import chain
import pytest

from simulator.cli import main
from simulator.report import tables
from simulator.run import grid, run, what_if

CODE_KEY = grid.code_key()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in the background of a script; processes that the tests start and interrupt would ignore it as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """The rows that a sweep keeps are those of one test: none comes from an earlier run."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(scope="module", autouse=True)
def one_core():
    """A sweep runs in the process of its test, unless that asks for workers: each of them imports all anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 1)
        yield


@pytest.fixture(scope="session")
def drawn():
    """How pictures are written."""
    from simulator.report.drawing import Picture

    return Picture, Picture.write


@pytest.fixture(scope="session")
def blank(drawn):
    """A context in which pictures are files, but blank."""

    def write(_, path, kind="png"):
        (path.write if hasattr(path, "write") else Path(path).write_bytes)(kind.encode())

    @contextmanager
    def pictures():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(drawn[0], "write", write)
            yield

    return pictures


@pytest.fixture
def pictures_are_blank(blank):
    """Pictures are most of the time of a folder: what looks at none asks for this."""
    with blank():
        yield


@pytest.fixture(scope="session")
def ran(tmp_path_factory, drawn, quickly):
    """The folder of one run of the chain, for all that only read it; as quick as other runs of tests."""
    inputs = tmp_path_factory.mktemp("inputs")
    out = tmp_path_factory.mktemp("outputs") / "results" / "chain"
    with quickly(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(what_if, "_SEARCHED", frozenset())
        patch.setattr(drawn[0], "write", drawn[1])
        run(chain.write(inputs)).write(out)
    return out


@pytest.fixture(scope="module", autouse=True)
def commands_plan_quickly(quickly):
    """Commands do the same with any plan. Modules that compare with pages override this, for the whole search."""
    with quickly():
        yield


@pytest.fixture(scope="module", autouse=True)
def runs_end_with_their_rows():
    """A run searches what would make it free only if it is asked to. Modules that are about that override this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(what_if, "_SEARCHED", frozenset())
        yield


@pytest.fixture(scope="module", autouse=True)
def slow_machines_say_no_more():
    """No line of progress, which a run of half a minute prints; tests that are about that set it themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "SELDOM_S", float("inf"))
        yield


@pytest.fixture(scope="module", autouse=True)
def code_is_read_once():
    """Rows are kept by a digest of all files of the program, which no test changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "code_key", lambda: CODE_KEY)
        yield


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def hosim(capsys, monkeypatch) -> Callable[..., Outcome]:
    """Run the command line."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Outcome(ended.value.code, captured.out, captured.err)

    return call


@pytest.fixture
def scenario(tmp_path):
    """Path of the chain's scenario, with its files beside it."""
    folder = tmp_path / "inputs"
    folder.mkdir()
    return chain.write(folder)
