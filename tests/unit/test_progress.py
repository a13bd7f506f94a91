"""Progress where there is no terminal: lines now and then, on stderr alone."""

from __future__ import annotations

import threading

import pytest

from simulator import engine
from simulator.engine import choice, replay
from simulator.report import tables
from simulator.run import sweep


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set; the compiled engine is there."""
    monkeypatch.setattr(replay, "is_built", lambda: True)
    now = [100.0]
    monkeypatch.setattr(tables, "monotonic", lambda: now[0])
    return now


def test_a_line_now_and_then_tells_how_far_a_run_is(clock, capsys):
    with tables.ProgressBar() as tell:
        for at, done in ((101, 5), (129, 50), (130, 1_500), (131, 1_600), (161, 0), (162, 0)):
            clock[0] = at
            tell("static", done, 2_000 if done else 0)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "hosim: after 30 s: static, 1,500 of 2,000\nhosim: after 61 s: static\n"


def test_what_is_soon_done_says_nothing(clock, capsys):
    with tables.ProgressBar() as tell:
        tell("static", 0, 10)
        clock[0] += tables.SELDOM_S - 1
        tell("static", 10, 10)
    assert capsys.readouterr() == ("", "")


def test_what_took_long_says_if_it_could_be_quicker(clock, capsys, monkeypatch):
    monkeypatch.setattr(replay, "is_built", lambda: False)
    monkeypatch.setattr(choice, "is_stale", lambda: False)
    for seconds, name in ((29, "auto"), (31, "auto"), (31, "simpy")):
        with engine.using(name), tables.ProgressBar():
            clock[0] += seconds
    assert capsys.readouterr().err == (
        "hosim: its compiled engine, which is quicker, is not built; for it install a C++17 compiler and Python's "
        "headers, then hosim again\n"
    )


def test_the_bar_of_a_terminal_has_no_thread_and_is_drawn_now_and_then(clock, capsys, monkeypatch):
    monkeypatch.setattr(tables.sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    before = threading.active_count()
    with tables.ProgressBar() as tell:
        assert threading.active_count() == before
        for at, label in ((100.01, "first"), (101, "static"), (101.05, "hidden"), (102, "reactive")):
            clock[0] = at
            tell(label, 1, 2)
    drawn = capsys.readouterr().err
    assert [label for label in ("first", "static", "hidden", "reactive") if label in drawn] == [
        "first",
        "static",
        "reactive",
    ]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_is_a_line_of_its_own_is_said_at_once(clock, capsys, monkeypatch, is_terminal):
    monkeypatch.setattr(tables.sys.stderr, "isatty", lambda: is_terminal)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with tables.ProgressBar() as tell:
        tell("56 points", 0, -1)
    assert capsys.readouterr().err.count("hosim: 56 points\n") == 1


@pytest.mark.parametrize(("by_line", "said"), [(True, ["9 points, 2 of them kept from before"]), (False, [])])
def test_points_are_counted_before_any_is_measured_and_timed_without_the_start(monkeypatch, by_line, said):
    """Two at a time: both begin with 25 s of what they share, and each point takes 10 s. After 45 s four are left."""
    now, told = [100.0], []
    monkeypatch.setattr(sweep, "monotonic", lambda: now[0])
    own = sweep.Pace(lambda *one: told.append(one), 2, by_line=by_line)
    own.expect(9, 7)
    assert told == [(one, 0, -1) for one in said]
    for at in (135, 135, 145, 145, 155, 155, 165):
        now[0] = at
        own.tell()
    lines = [label for label, _, total in told if total < 0]
    assert lines == said + ["about 20.0 s for the other 4"] * by_line
    assert told[-1] == ("0.2 points a second, 0 ns left", 9, 9)
