"""What the integer program describes; it refuses all else rather than be wrong about it."""

from __future__ import annotations

from simulator.errors import ScopeError
from simulator.hardware import asked_bytes_per_s
from simulator.policies.problem import Problem
from simulator.units import human


def check_scope(problem: Problem, most_ops: int) -> None:
    """Refuse what the program does not describe.

    Raises
    ------
    ScopeError
        If the solver is not installed; or the graph is too large or has collectives; or copies may slow each other
        down; or tensors go to several tiers; or the host's own time matters.
    """
    try:
        import ortools.sat.python.cp_model  # noqa: F401, PLC0415 - an extra
    except ImportError:
        raise _error("its solver is installed", "no ortools", 'pip install "hosim[solve]"') from None
    ops = len(problem.graph.ops)
    if ops > most_ops:
        raise _error(f"a graph has at most {most_ops} ops", f"{ops:,}", "use 'static' for large graphs")
    if problem.graph.meets:
        found = "a collective"
        raise _error("an op takes its time, whatever other ranks do", found, "use 'static' for several ranks")
    if problem.switches.copies_wait_for != "start" or problem.switches.hbm_contention:
        found = "other switches"
        raise _error("copies wait for the start of an op, and take no bandwidth from it", found, "leave them out")
    host = problem.hardware.host
    if host.fixed.step_ns or host.queue_depth < ops:
        found = f"{host.fixed.step_ns} ns a step and a queue of {host.queue_depth}"
        raise _error("a fixed plan's steps cost nothing, and all ops can be issued ahead", found, "change the host")
    _check_tiers(problem)


def _check_tiers(problem: Problem) -> None:
    moving = [t for t in range(len(problem.sizes)) if problem.away(t)]
    tiers = {problem.away(t)[0] for t in moving}
    if len(tiers) > 1:
        names = ", ".join(problem.tiers[tier] for tier in sorted(tiers))
        raise _error("all that moves goes to one tier", names, "give all tensors the same home below")
    for away in tiers:
        here = problem.compute_tier
        for hop in ((here, away), (away, here)):
            _check_link(problem, hop)
        _check_capacity(problem, away)


def _check_link(problem: Problem, hop: tuple[int, int]) -> None:
    names = f"{problem.tiers[hop[0]]} to {problem.tiers[hop[1]]}"
    if hop not in problem.links:
        raise _error("a link joins the tiers directly", f"none from {names}", "add one")
    link = problem.links[hop]
    if link.channels > 1:
        raise _error("a link serves one copy at a time", f"{link.channels} channels from {names}", "set channels to 1")
    name = problem.link_names[hop]
    if any(name in queue and len(queue) > 1 for queue in problem.hardware.queues):
        raise _error("a link has a copy queue of its own", f"{name!r} in a shared one", "remove copy_queues")
    if len(problem.hardware.passing((name,))) > 1 or link.via:
        raise _error("no other link slows copies down", f"{name!r}, whose way another shares", "remove the staged link")
    for bus_name, bus in problem.hardware.buses.items():
        asked = asked_bytes_per_s(problem.hardware, bus)
        if name in bus.links and asked > bus.bandwidth_bytes_per_s:
            found = f"bus {bus_name!r}, of {_rate(bus.bandwidth_bytes_per_s)}, under links of {_rate(asked)} together"
            do = f"plan with 'static', or give the bus what its links ask for: --set buses.{bus_name}.bandwidth=inf"
            raise _error("no bus slows copies down", found, do)


def _check_capacity(problem: Problem, away: int) -> None:
    demand, room = sum(problem.sizes), problem.capacities[away]
    if demand > room:
        found = f"{demand:,} B of tensors and {room:,} B of room"
        raise _error(f"{problem.tiers[away]} has room for all tensors", found, "raise its capacity")


def _rate(bytes_per_s: int | float) -> str:
    return human(bytes_per_s, "B/s")


def _error(must: str, found: str, do: str) -> ScopeError:
    return ScopeError("policy 'optimal'", must, found, do)
