"""Two engines, one rulebook: which of them replays programs.

``simpy`` runs everything. ``compiled`` runs the same rules in C++, where it is built, and knows less. ``auto`` takes it
where it can. Their traces are equal, so no number tells which one made it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import numpy as np

from simulator.engine import reference, replay
from simulator.engine.program import Program, classes, folding_obstacle, has_room, simulated_for
from simulator.engine.reference import Progress
from simulator.engine.replay.extension import is_stale
from simulator.engine.shared import Budget
from simulator.errors import ConfigError, insist
from simulator.hardware import Hardware
from simulator.plan import COMPUTE
from simulator.scenario import Switches
from simulator.trace import Trace, pick
from simulator.units import nearest

CHOICE = "HOSIM_ENGINE"
"""The environment variable that carries the choice, also to processes that are started."""
ENGINES = ("auto", "simpy", "compiled")
_BUILD = "install a C++17 compiler and Python's headers, then hosim again"
"""What to do to have the compiled engine."""


def run(
    programs: Sequence[Program],
    hardware: Hardware,
    *,
    budget_bytes: Budget = None,
    switches: Switches | None = None,
    progress: Progress | None = None,
    fold: Literal["auto", "never", "always"] = "never",
) -> Trace:
    """Replay one program per rank, by the engine that was chosen.

    Parameters
    ----------
    programs
        The program of each rank.
    hardware
        The machine.
    budget_bytes
        What may be used of the compute tier, by each rank or by all alike [B]; default: its capacity less what is
        reserved.
    switches
        Modelling choices about the machine.
    progress
        Called now and then.
    fold
        Whether ranks with the same program may stand for one another, which changes no time (see
        `simulator.engine.program`): ``never``; ``auto``: if nothing tells them apart, nor did in a run that folded them
        on trial; ``always``: an error if something may.

    Returns
    -------
    Trace
        What happened; its status is ``blocked`` if some action could never start.

    Raises
    ------
    PlanError
        If a reactive plan issues an action that cannot act, or a copy has no link.
    CapacityError
        If the homes alone exceed a tier.
    ConfigError
        If ranks must be folded and cannot be; or if the compiled engine must run what it does not cover.
    """
    stands_in, switches, name = simulated_for(programs, hardware, fold), switches or Switches(), chosen()
    on_trial, simulated = stands_in, len({*stands_in})
    if fold == "auto" and simulated > 1:  # fewer stand in for all if shared tiers turn out to have room
        folded = classes(programs)
        may_fold = simulated > len({*folded}) and not folding_obstacle(programs, hardware, is_tried=True)
        on_trial = folded if may_fold else stands_in
    for tried in (on_trial, stands_in):
        replayed: Trace | None = None
        if name != "simpy" and replay.is_built():
            replayed = replay.replay(programs, hardware, budget_bytes, switches, tried, progress)
            if replayed is None and name == "compiled":  # what blocks or fails is covered: the other one says why
                reason = replay.why_not(programs, hardware, switches)
                insist(not reason, CHOICE, "the compiled engine covers the run", reason, "choose auto")
        trace = replayed or reference.run(programs, hardware, budget_bytes, switches, tried, progress)
        if tried is stands_in or (trace.status == "ok" and has_room(hardware, trace)):
            break
    begin_together = len({program.starts_ns for program in programs}) == 1
    return trace if begin_together else replace(trace, until_ns=_until_ns(trace))


def _until_ns(trace: Trace) -> int:
    """Return when the first of the ranks with computes has ended its last compute [ns]."""
    spans = trace.spans.whole()
    computes, last_ns = pick(spans, spans["kind"] == COMPUTE), np.full(len(trace.issued), -1)
    np.maximum.at(last_ns, computes["rank"], computes["end_ns"])
    return int(min(last_ns[last_ns >= 0], default=0))


def chosen(name: str | None = None) -> str:
    """Return the engine that is named, else that of the environment, else ``auto``.

    Raises
    ------
    ConfigError
        If there is no such engine, or the compiled one must run and is not built.
    """
    where, name = "engine" if name else CHOICE, name or os.environ.get(CHOICE) or "auto"
    if name not in ENGINES:
        raise ConfigError(where, "an engine is one that hosim has", repr(name), nearest(name, ENGINES))
    must, do = "the compiled engine is built where it must run", f"{_BUILD}; or choose auto"
    insist(name != "compiled" or replay.is_built(), CHOICE, must, "none that is of this hosim", do)
    return name


@contextmanager
def using(name: str | None) -> Iterator[None]:
    """Within the block replay by this engine, here and in processes that are started; None changes nothing."""
    before = os.environ.get(CHOICE)
    os.environ[CHOICE] = chosen(name)
    try:
        yield
    finally:
        os.environ.pop(CHOICE)
        os.environ.update({} if before is None else {CHOICE: before})


def in_use() -> str:
    """Return the engine that runs what it can: ``simpy`` or ``compiled``."""
    return "compiled" if chosen() != "simpy" and replay.is_built() else "simpy"


def hint() -> str:
    """Say what to do for the compiled engine, if it would be used and is not built; else nothing."""
    if chosen() != "auto" or replay.is_built():
        return ""
    if is_stale():
        return "its compiled engine, which is quicker, was built of other sources; for it install hosim again"
    return f"its compiled engine, which is quicker, is not built; for it {_BUILD}"
