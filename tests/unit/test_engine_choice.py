"""Which engine replays: what is named, else the environment, else the compiled one where it can."""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from types import SimpleNamespace

import pytest
from stories import graph, machine, steps

import simulator as hosim
from simulator import engine
from simulator.engine import choice, replay
from simulator.engine.replay import extension
from simulator.errors import ConfigError
from simulator.plan import NOWHERE, Plan
from simulator.run import cluster, grid
from simulator.trace import Trace

NOT_BUILT = (
    "HOSIM_ENGINE: the compiled engine is built where it must run, found none that is of this hosim; "
    "install a C++17 compiler and Python's headers, then hosim again; or choose auto"
)


@pytest.fixture
def compiled(monkeypatch):
    """A compiled engine that is built, notes that it was asked, and answers what a test wants."""

    class Compiled:
        answer, reason, asked = None, "", 0

    def asked(*_, **__):
        Compiled.asked += 1
        return Compiled.answer

    monkeypatch.delenv("HOSIM_ENGINE", raising=False)
    monkeypatch.setattr(replay, "is_built", lambda: True)
    monkeypatch.setattr(replay, "replay", asked)
    monkeypatch.setattr(replay, "why_not", lambda *_: Compiled.reason)
    Compiled.asked = 0
    return Compiled


def run():
    """Replay a plan of one op."""
    hardware, g = machine("100 B"), graph("a 40", "f: -> a, 5 ns")
    plan = Plan("hand", hardware.tier_names, (NOWHERE,), steps(g, hardware, "compute f; detach a hbm"))
    return engine.run([engine.Program(g, plan, [5])], hardware)


def test_auto_takes_the_compiled_engine_and_else_the_other(compiled):
    compiled.answer = Trace("of the compiled one")
    assert run().status == "of the compiled one"
    compiled.answer = None
    assert run().status == "ok"
    assert compiled.asked == 2


def test_simpy_never_asks_the_compiled_engine(compiled, monkeypatch):
    monkeypatch.setenv("HOSIM_ENGINE", "simpy")
    assert run().status == "ok"
    assert compiled.asked == 0


def test_compiled_refuses_what_it_does_not_cover(compiled, monkeypatch):
    monkeypatch.setenv("HOSIM_ENGINE", "compiled")
    compiled.reason = "a plan that looks at the machine"
    with pytest.raises(ConfigError) as refused:
        run()
    assert str(refused.value) == (
        "HOSIM_ENGINE: the compiled engine covers the run, found a plan that looks at the machine; choose auto"
    )


def test_what_it_covers_and_leaves_is_explained_by_the_other(compiled, monkeypatch):
    """Such as what blocks: the other one says what is missing."""
    monkeypatch.setenv("HOSIM_ENGINE", "compiled")
    assert run().status == "ok"
    assert compiled.asked == 1


def test_what_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(replay, "is_built", lambda: False)
    for name, message in (("compiled", NOT_BUILT), ("simply", "found 'simply'; use one of auto, simpy, compiled")):
        monkeypatch.setenv("HOSIM_ENGINE", name)
        with pytest.raises(ConfigError) as refused:
            run()
        assert message in str(refused.value)


def test_a_name_counts_until_its_block_ends(compiled, monkeypatch):
    monkeypatch.setenv("HOSIM_ENGINE", "compiled")
    with engine.using("simpy"):
        assert (engine.in_use(), os.environ["HOSIM_ENGINE"]) == ("simpy", "simpy")  # what processes inherit
        with engine.using(None):
            assert engine.in_use() == "simpy"
    assert engine.in_use() == "compiled"
    monkeypatch.delenv("HOSIM_ENGINE")
    with engine.using(None):
        assert engine.in_use() == "compiled"
    assert "HOSIM_ENGINE" not in os.environ


def test_a_run_takes_a_name(compiled):
    hosim.run("tiny_train_910c", policies=["lookahead"], engine="simpy")
    assert compiled.asked == 0
    hosim.run("tiny_train_910c", policies=["lookahead"])
    assert compiled.asked


@pytest.mark.parametrize("sources", ["of these", "of others"])
def test_an_extension_of_other_sources_is_not_used(sources, monkeypatch, tmp_path):
    """As after a pull in a checkout; in a wheel there are none beside it."""
    module = SimpleNamespace(sources=sha256(b"headersource").hexdigest() if sources == "of these" else "0")
    monkeypatch.setitem(sys.modules, "simulator.engine.replay._replay", module)
    monkeypatch.setattr(extension, "__file__", str(tmp_path / "extension.py"))
    assert extension.loaded() is module
    (tmp_path / "a.hpp").write_bytes(b"header")
    (tmp_path / "b.cpp").write_bytes(b"source")
    assert extension.loaded() is (module if sources == "of these" else None)


def test_one_who_would_gain_is_told(compiled, monkeypatch):
    assert engine.hint() == ""
    monkeypatch.setattr(replay, "is_built", lambda: False)
    monkeypatch.setattr(choice, "is_stale", lambda: True)
    assert engine.hint().endswith("was built of other sources; for it install hosim again")
    monkeypatch.setattr(choice, "is_stale", lambda: False)
    assert engine.hint() == (
        "its compiled engine, which is quicker, is not built; for it install a C++17 compiler and Python's headers, "
        "then hosim again"
    )
    monkeypatch.setenv("HOSIM_ENGINE", "simpy")
    assert engine.hint() == ""


def test_rows_are_kept_for_each_engine(compiled, monkeypatch, tmp_path):
    """So that a sweep by the other engine runs, and shows whether its rows are the same."""
    measured = []
    monkeypatch.setattr(grid, "rows_of", lambda *_, **__: measured.append(engine.in_use()) or [])
    for name in ("auto", "simpy", "compiled", "simpy"):
        with engine.using(name):
            hosim.sweep("tiny_train_910c", {"links.*.bandwidth": ["20 GB/s"]}, workers=1, cache=tmp_path)
    assert measured == ["compiled", "simpy"]


def test_a_worker_of_a_cluster_takes_the_engine_of_who_asks(compiled, monkeypatch):
    monkeypatch.setattr(cluster, "_made", {b"shared": lambda task: (task, engine.in_use())})
    assert [cluster._done(b"shared", name, 7) for name in ("simpy", "auto")] == [(7, "simpy"), (7, "compiled")]
