"""Builds the machine for a list of programs, runs it to the end, and checks that everything completed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

from simulator import garbage
from simulator.engine import folding
from simulator.engine.program import Program
from simulator.engine.rank import Rank
from simulator.engine.recorder import Forward
from simulator.engine.supernode import Machine
from simulator.errors import ConfigError
from simulator.hardware import Hardware
from simulator.plan import COMPUTE
from simulator.scenario import Switches
from simulator.trace import Trace

Progress = Callable[[int, int], None]
"""Called now and then with the computes that are done, and those that there are in all."""


def run(  # noqa: PLR0913 (a machine, what runs there, and by name what is seldom said)
    programs: Sequence[Program],
    hardware: Hardware,
    *,
    budget_bytes: int | float | None = None,
    switches: Switches | None = None,
    progress: Progress | None = None,
    fold: Literal["auto", "never", "always"] = "never",
    forward: Forward | None = None,
) -> Trace:
    """Replay one program per rank.

    Parameters
    ----------
    programs
        A graph with its plan for each rank.
    hardware
        The machine.
    budget_bytes
        What may be used of the compute tier [B]; default: its capacity less what is reserved.
    switches
        Modelling choices about the machine.
    progress
        Called now and then.
    fold
        Whether ranks with the same program may stand for one another, which changes no time (see
        `simulator.engine.folding`): ``never``; ``auto``: if nothing tells them apart; ``always``: an error if not.
    forward
        Of a run of one rank, called now and then with what has happened since; the trace then has empty tables.

    Returns
    -------
    Trace
        What happened; its status is ``blocked`` if some step could not move.

    Raises
    ------
    PlanError
        If a reactive plan issues a step that cannot act, or a copy has no link.
    CapacityError
        If the homes alone exceed a tier.
    ConfigError
        If ranks must be folded and cannot be.
    """
    stands_in = _stands_in(programs, hardware, fold)
    machine = Machine(hardware, budget_bytes, switches or Switches(), stands_in, forward)
    machine.store_once(programs)

    def checkpoint() -> None:
        machine.recorder.flush()
        if progress is not None:
            progress(sum(rank.ended for rank in ranks), sum(rank.computes for rank in ranks))

    with garbage.kept():
        simulated = [(rank, program) for rank, program in enumerate(programs) if stands_in[rank] == rank]
        ranks = [Rank(machine, rank, program, checkpoint) for rank, program in simulated]
        for rank in ranks:
            rank.begin()
        machine.rounds.run()
        checkpoint()
        told = [rank.blocked() for rank in ranks]
        blocked = chain(*(own for own, _ in told), *(peers for _, peers in told))
        trace = machine.recorder.trace(tuple(blocked), stands_in)
    once = tuple((*place, size) for place, size in machine.stored_once.items())
    begin_together = len({program.starts_ns for _, program in simulated}) == 1
    return replace(trace, until_ns=None if begin_together else _until_ns(trace), stored_once=once)


def _stands_in(programs: Sequence[Program], hardware: Hardware, fold: str) -> tuple[int, ...]:
    """For each rank the one that is simulated in its place."""
    if fold == "never":
        return tuple(range(len(programs)))
    reason = folding.obstacle(programs, hardware) or (fold == "always" and folding.drawn_apart(programs))
    if reason and fold == "always":
        must, do = "ranks stand for one another only if nothing tells them apart", "write fold: auto, or never"
        raise ConfigError("fold", must, reason, do)
    return tuple(range(len(programs))) if reason else folding.classes(programs)


def _until_ns(trace: Trace) -> int:
    """When the first rank has ended its last compute [ns]."""
    last, spans = Counter[int](), trace.spans.whole()
    computes = spans["kind"] == COMPUTE
    for rank, end in zip(spans["rank"][computes].tolist(), spans["end_ns"][computes].tolist(), strict=True):
        last[rank] = max(last[rank], end)
    return min(last.values(), default=0)
