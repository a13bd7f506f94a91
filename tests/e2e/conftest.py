"""The command line in this process: quick, with exit code, output and messages."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

import chain
import pytest

from simulator.cli import main

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in the background of a script; processes that the tests start and interrupt would ignore it as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """The rows that a sweep keeps are those of one test: none comes from an earlier run."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    """A sweep runs in the process of its test, unless that asks for workers: each of them imports all anew."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)


@pytest.fixture(autouse=True)
def commands_plan_quickly(quick_plans):
    """Commands do the same with any plan. Modules that compare with pages override this, for the whole search."""


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
