"""Holds a trace against the laws: rank by rank, and then what ranks do together.

What happens on a single rank is cut into parts: steps in issue order, as soon as all of them have ended. Rows come in
the order in which things happen; spans and waits of steps behind the cut wait for their part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simulator.draws import Draws
from simulator.errors import PlanError
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.plan import DETACH, SYNC, Plan
from simulator.referee.facts import Earlier, Facts, broken
from simulator.referee.findings import Findings, Look, merged
from simulator.referee.op_columns import ProgramColumns
from simulator.referee.place_laws import check_places, check_workspace
from simulator.referee.plan_laws import PlanWalk
from simulator.referee.room_laws import TierRoom, check_addresses, check_stored_once, stored_once
from simulator.referee.start_laws import (
    NEVER_NS,
    RoomRequests,
    check_all_ran,
    check_durations,
    check_issued,
    check_starts,
    check_tracks,
)
from simulator.referee.traffic_laws import Bandwidth, check_meetings, check_peers, meetings
from simulator.referee.wait_laws import check_waits
from simulator.scenario import AllocatorKind, Switches
from simulator.trace import ISSUED, RESIDENCIES, SPANS, WAITS, Block, Table, Trace, pick, turns


class Drawn(NamedTuple):
    """A plan with what dynamic reads choose on the rank that ran it, how places get addresses there, and what stays."""

    plan: Plan
    draws: Draws | None
    allocator: AllocatorKind = "ideal"
    pinned: Collection[int] = ()


def check_trace(
    job: Job | Graph,
    hardware: Hardware,
    plans: Sequence[Plan | Drawn],
    trace: Trace,
    budget_bytes: int | float | None = None,
    switches: Switches | None = None,
) -> Findings:
    """Check a trace against the laws, from its rows alone.

    Parameters
    ----------
    job, hardware
        What ran, where; a graph that all ranks run is a job, too.
    plans
        What was decided, for each rank; with draws, what its dynamic reads choose. Without, all candidates are read.
    trace
        What happened.
    budget_bytes
        What may be used of the compute tier [B]; default: its capacity less what is reserved.
    switches
        Readings of the machine that were chosen; default: copies wait for a start, kernels are not slowed down.

    Returns
    -------
    Findings
        Remarks that are no breach.

    Raises
    ------
    InvariantError
        If a law is broken: the law, the row and the numbers.
    PlanError
        If a reactive plan issued a step that breaks a rule.
    """
    if budget_bytes is None:
        budget_bytes = hardware.tiers[hardware.compute_tier].usable_bytes
    job = Job.of(job, len(plans)) if isinstance(job, Graph) else job
    ran = [one if isinstance(one, Drawn) else Drawn(one, None) for one in plans]
    _check_status(len(ran), trace)
    _check_folded(job, hardware, [one.plan for one in ran], trace)
    watch = Watch(job, hardware, ran, budget_bytes, switches, trace.stands_in)
    tables = {name: getattr(trace, name).whole() for name in ("spans", "waits", "residencies")}
    watch.take(tables, [issued.whole() for issued in trace.issued], least_steps=NEVER_NS)
    return watch.finish(trace)


def _check_status(ranks: int, trace: Trace) -> None:
    right = trace.status in {"ok", "blocked"} and (trace.status == "blocked") == bool(trace.blocked)
    if not right or len(trace.issued) != ranks or len(trace.stands_in) != ranks:
        must = "a trace is ok, or blocked with the reasons, and has what each rank issued"
        found = f"{trace.status!r} with {len(trace.blocked)} reasons and {len(trace.issued)} of {ranks} ranks"
        raise broken("trace", must, found)


def _check_folded(job: Job, hardware: Hardware, plans: Sequence[Plan], trace: Trace) -> None:
    """Check that a rank that stands for another runs the same, and that the ranks beside both are alike."""
    stands_in, each = trace.stands_in, hardware.topology.devices_per_node
    if stands_in == tuple(range(len(plans))):
        return
    company: dict[int, Counter[int]] = {}
    for rank, other in enumerate(stands_in):
        company.setdefault(rank // each, Counter())[other] += 1
    for rank, other in enumerate(stands_in):
        same = stands_in[other] == other and job.graph_of[other] == job.graph_of[rank]
        same = same and (plans[other] is plans[rank] or plans[other] == plans[rank])
        if not same or company[rank // each] != company[other // each]:
            must = "a rank that stands for another runs the same, in the same company"
            raise broken("trace", must, f"rank {other} for rank {rank}")


LEAST_STEPS = 1 << 13
"""So many steps are a part, unless others are said: parts of 2^10 steps cost a third more processor time, and of 2^16
twice the memory."""

_PART = {
    "issued": ISSUED,
    "spans": (*SPANS, "row"),
    "waits": (*WAITS, "row"),
    "residencies": (*RESIDENCIES, "row", "is_explained"),
}
"""Tables and columns that a part is made of."""


class RankWatch:
    """Checks one rank against the laws that concern it alone, part by part.

    Parameters
    ----------
    program, drawn, rank
        What it ran, as decided and drawn; which rank.
    switches
        Readings of the machine.

    Attributes
    ----------
    look
        Notices what is no breach.
    """

    def __init__(self, program: ProgramColumns, drawn: Drawn, rank: int, switches: Switches) -> None:
        self.look, self._earlier = Look(program), Earlier.of(program)
        self._program, self._rank, self._switches, self._wanted = program, rank, switches, 0
        self._waiting, self._is_noted = {name: Table(columns) for name, columns in _PART.items()}, False
        self._has_addresses, self._walk = drawn.allocator != "ideal", None
        if drawn.plan.fixed is None:
            self._walk = PlanWalk(program.graph, program.hardware, drawn.plan, drawn.pinned, drawn.draws)
        self._refused: PlanError | None = None

    def take(self, happened: Mapping[str, Block]) -> None:
        """Take what happened since the last time, by table, with the numbers of the rows."""
        for name, table in self._waiting.items():
            table.add(happened[name])
        self._is_noted = self._is_noted or len(happened["issued"]["kind"]) > 0

    def ended(self, least_steps: int) -> tuple[Facts, RoomRequests] | None:
        """Check all actions that have ended, and all before them, as one part, if there are at least so many."""
        spans = self._waiting["spans"]
        if len(spans) < max(self._wanted, least_steps):
            return None
        codes = self._codes(int(spans.whole()["issue"].max()) + 1)
        count = self._count_ended(codes)
        enough = count >= least_steps
        checked = self._check(pick(codes, np.arange(count)), complete=True, is_last=False) if enough else None
        self._wanted = 2 * len(spans)
        return checked

    def rest(self, *, complete: bool) -> tuple[Facts, RoomRequests]:
        """Check all that is left, as the last part."""
        return self._check(self._codes(self._program.planned_steps or 0), complete=complete, is_last=True)

    def _codes(self, last: int) -> Block:
        """The codes of the actions not checked yet: as recorded, or those of a fixed plan up to an issue number."""
        if not self._is_noted:
            return self._program.planned(self._earlier.steps, min(last, self._program.planned_steps or 0))
        return self._waiting["issued"].whole()

    def _count_ended(self, codes: Block) -> int:
        """How many actions have ended with all before them; a k-th detach of a place has once it was freed k times."""
        has_ended, tiers = codes["kind"] == SYNC, self._program.tiers
        at = self._waiting["spans"].whole()["issue"] - self._earlier.steps
        has_ended[at[(at >= 0) & (at < len(has_ended))]] = True
        rows, detaches = self._waiting["residencies"].whole(), np.flatnonzero(codes["kind"] == DETACH)
        freed = pick(rows, (rows["tensor"] >= 0) & (rows["delta_bytes"] < 0))
        frees = np.bincount(freed["tensor"] * tiers + freed["tier"], minlength=len(self._program.sizes) * tiers)
        place = codes["a"][detaches] * tiers + codes["b"][detaches]
        has_ended[detaches] = (turns(place) < frees[place]) | (self._program.sizes[place // tiers] == 0)
        return int(np.argmin(np.append(has_ended, False)))

    def _check(self, issued: Block, *, complete: bool, is_last: bool) -> tuple[Facts, RoomRequests]:
        """Check a part against one law after another; return it, and the actions that only room kept waiting."""
        count, waiting = len(issued["kind"]), self._waiting
        last = NEVER_NS if is_last else self._earlier.steps + count
        waiting["issued"].pull(np.arange(len(waiting["issued"])) < count)
        part = {name: waiting[name].pull(waiting[name].whole()["issue"] < last) for name in ("spans", "waits")}
        residencies = waiting["residencies"].pull(np.ones(len(waiting["residencies"]), bool))
        part |= {"issued": issued, "residencies": residencies}
        facts = Facts(self._program, part, self._earlier, self._rank, complete=complete, is_last=is_last)
        self._follow(facts)
        check_issued(facts)
        check_tracks(facts)
        check_durations(facts, self._switches)
        held = check_places(facts)
        check_workspace(facts)
        requests, ready = check_starts(facts, held, self._switches, has_addresses=self._has_addresses)
        check_waits(facts, ready)
        self.look.take(facts, held)
        facts.close()
        check_all_ran(facts)
        waiting["residencies"].add(pick(facts.residencies, facts.residencies["stays"] == 1))
        return facts, requests

    def _follow(self, facts: Facts) -> None:
        """Walk what a reactive plan issued; what is wrong there is raised only if the run completes."""
        is_over = facts.is_last and facts.complete
        if self._walk is not None and self._refused is None:
            try:
                columns = (column.tolist() for column in (facts.kind, facts.a, facts.b, facts.c))
                self._walk.take(zip(*columns, strict=True))
                if is_over:
                    self._walk.finish(facts.program.graph.steps)
            except PlanError as error:
                self._refused = error
        if self._refused is not None and is_over:
            raise self._refused


class Watch:
    """Checks a run against the laws while it goes on, and forgets what happened once it is checked.

    It checks what `check_trace` checks, and raises the same.

    Parameters
    ----------
    job, hardware, ran
        What runs, where; as decided, with what dynamic reads choose, for each rank.
    budget_bytes, switches
        As for `check_trace`.
    stands_in
        For each rank the one that is simulated in its place.
    """

    def __init__(
        self,
        job: Job,
        hardware: Hardware,
        ran: Sequence[Drawn],
        budget_bytes: int | float,
        switches: Switches | None = None,
        stands_in: Sequence[int] = (0,),
    ) -> None:
        self._job, self._hardware, self._ran, self._budget_bytes = job, hardware, ran, budget_bytes
        self._switches, self._stands_in = switches or Switches(), stands_in
        self._spare = stored_once(job, hardware, [one.plan for one in ran])
        self._room = TierRoom(hardware, stands_in, budget_bytes, self._spare)
        self._bandwidth = Bandwidth(hardware, stands_in, self._switches)
        self._counted = Counter[str]()
        self._ranks: dict[int, RankWatch] = {}
        programs: dict[tuple[int, int], ProgramColumns] = {}
        for rank in sorted(set(stands_in)):
            drawn, key = ran[rank], (job.graph_of[rank], id(ran[rank].plan))
            if key not in programs:
                programs[key] = ProgramColumns(job.graph(rank), hardware, drawn.plan)
            program = programs[key].with_draws(drawn.draws)
            self._ranks[rank] = RankWatch(program, drawn, rank, self._switches)

    def take(
        self,
        happened: Mapping[str, Block],
        issued: Sequence[Block] | None = None,
        *,
        least_steps: int = LEAST_STEPS,
    ) -> None:
        """Take what happened since the last time.

        Parameters
        ----------
        happened
            Rows by table of the trace; of a single rank ``issued`` for what a reactive plan issued.
        issued
            Of several ranks, what each has issued.
        least_steps
            So many steps are checked at a time, or more.
        """
        self._room.take(happened["residencies"])
        tables = {name: self._by_rank(name, happened[name]) for name in ("spans", "waits", "residencies")}
        for rank, watch in self._ranks.items():
            codes = happened["issued"] if issued is None else issued[rank]
            watch.take({"issued": codes, **{name: rows[rank] for name, rows in tables.items()}})
            if (checked := watch.ended(least_steps)) is not None:
                self._bandwidth.check(self._check_room([checked]), None)

    def _by_rank(self, name: str, rows: Block) -> list[Block]:
        """Split the rows of a table by rank, each with its number there, and as explained by nothing yet."""
        first, ranks = self._counted[name], len(self._stands_in)
        self._counted[name] += len(rows["rank"])
        rows = {**rows, "row": np.arange(first, self._counted[name]), "is_explained": np.zeros_like(rows["rank"])}
        order = np.argsort(rows["rank"], kind="stable")
        ends = np.searchsorted(rows["rank"][order], np.arange(ranks + 1))
        return [rows] if ranks == 1 else [pick(rows, mine) for mine in np.split(order, ends)[1:-1]]

    def _check_room(self, checked: Sequence[tuple[Facts, RoomRequests]]) -> list[Facts]:
        """Check the lines for room as far as these parts of all ranks are known."""
        for facts, requests in checked:
            self._room.wait(facts.rank, requests)
        every = [facts for facts, _ in checked]
        self._room.check_lines(min(NEVER_NS if facts.is_last else facts.settled_ns for facts in every))
        return every

    def finish(self, trace: Trace) -> Findings:
        """Check what is left, and say what was noticed.

        Parameters
        ----------
        trace
            How the run ended; of several ranks, or where places have addresses, all that happened.
        """
        _check_status(len(self._ran), trace)
        check_stored_once(self._hardware, trace, self._spare)
        is_ok = trace.status == "ok"
        every = self._check_room([watch.rest(complete=is_ok) for watch in self._ranks.values()])
        for facts in every:
            check_addresses(facts, trace, self._ran[facts.rank].allocator, self._budget_bytes)
        if (met := meetings(self._job, self._stands_in, every)) is not None:
            check_meetings(self._hardware, met, complete=is_ok, contended=self._switches.hbm_contention)
            if is_ok:
                check_peers(met, every, self._stands_in)
        self._bandwidth.check(every, met)
        found = {rank: watch.look.found() for rank, watch in self._ranks.items()}
        return merged([found[rank] for rank in self._stands_in])
