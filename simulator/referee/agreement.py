"""Checks a job before anything is decided: whoever comes to a collective is met there, by members who do the same.

What no plan could mend is refused here, with the names of ranks and ops. Whether ranks also come in an order in which
they meet depends on their plans (`rendezvous`); what else can keep one from coming only shows when it runs.
"""

from __future__ import annotations

from collections import Counter

from simulator.errors import ConfigError
from simulator.graph import Call, Group, Job, Roles
from simulator.hardware import Hardware
from simulator.units import counted

_ORDINALS = {1: "first", 2: "second", 3: "third"}


def check_job(job: Job, hardware: Hardware) -> None:
    """Check what all ranks run, before it is planned.

    Parameters
    ----------
    job
        What all ranks run.
    hardware
        Where.

    Raises
    ------
    ConfigError
        If there are more ranks than devices; the members of a group cannot meet; a rank comes to a collective of which
        it is no member; or members disagree on the kind, the size, the algorithm or the number of their collectives.
    """
    devices = hardware.topology.devices
    if job.ranks > devices:
        must, found = "each rank has a device of its own", f"{counted(job.ranks, 'rank')} for {devices:,}"
        do = "raise topology.nodes or topology.devices_per_node, or run fewer ranks"
        raise ConfigError(f"hardware {hardware.name!r}, topology", must, found, do)
    _Check(job).run()


class _Check:
    """One walk over the calls of all ranks.

    Parameters
    ----------
    job
        What all ranks run.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._roles = [Roles(graph) for graph in job.graphs]
        self._alike: set[tuple[int, Call, int]] = set()

    def run(self) -> None:
        """Check the groups of each graph, then each call of each rank against those whom it meets."""
        for roles in self._roles:
            for group in roles.graph.groups:
                self._check_group(group, {call.role for call in roles.ops if call.group == group.name})
        for rank, number in enumerate(self._job.graph_of):
            for call in self._roles[number].ops:
                self._check_call(rank, number, call)

    def _check_group(self, group: Group, roles: set[str]) -> None:
        where = f"job {self._job.name!r}, group {group.name!r}"
        for members in group.members:
            if not all(0 <= rank < self._job.ranks for rank in members) or len(set(members)) < len(members):
                must = f"members are different ranks of the job (0 to {self._job.ranks - 1:,})"
                raise ConfigError(where, must, str(list(members)), "correct its members")
        if "" in roles and len(roles) > 1:
            must = "a group is for messages (send, recv) or for collectives of all its members"
            raise ConfigError(where, must, "both", "give the messages a group of their own")
        odd = next((members for members in group.members if len(members) != 2), None)
        if roles - {""} and odd is not None:
            raise ConfigError(where, "those who send and receive are pairs (from, to)", str(list(odd)), "name pairs")
        for role in sorted(roles):
            ends = {"send": slice(0, 1), "recv": slice(1, 2), "": slice(None)}[role]
            often = Counter(rank for members in group.members for rank in members[ends])
            rank, times = max(often.items(), key=lambda item: item[1], default=(0, 0))
            if times > 1:
                what = f"to {role}" if role else "for a collective"
                found = f"rank {rank} {times} times"
                raise ConfigError(where, f"a rank is there once {what}", found, "correct its members")

    def _check_call(self, rank: int, number: int, call: Call) -> None:
        roles = self._roles[number]
        if rank not in roles.members[call]:
            must = f"a rank that {'sends' if call.role == 'send' else 'receives' if call.role else 'meets'} is a member"
            found = f"{self._op(rank, roles, roles.ops[call][0])}, which is in none of its members"
            raise ConfigError(self._where(call), must, found, "add the rank to the group, or remove the op")
        for other in roles.others(call, rank):
            self._check_members(rank, call, other)
            pair = (number, call, self._job.graph_of[other])
            if pair not in self._alike:
                self._check_alike(rank, call, other)
                self._alike.add(pair)

    def _check_members(self, rank: int, call: Call, other: int) -> None:
        """Check that two ranks that meet name the same ones."""
        mine = self._roles[self._job.graph_of[rank]].members[call][rank]
        theirs = self._roles[self._job.graph_of[other]].members.get(call.answer, {}).get(other, mine)
        if mine != theirs:
            must = "members name the same ranks, in the same order"
            found = f"{list(mine)} in the graph of rank {rank}, {list(theirs)} in that of rank {other}"
            raise ConfigError(self._where(call), must, found, "correct the members of one")

    def _check_alike(self, rank: int, call: Call, other: int) -> None:
        """Compare the collectives of two ranks that meet there, one after another."""
        mine, theirs = self._roles[self._job.graph_of[rank]], self._roles[self._job.graph_of[other]]
        one, two = mine.ops[call], theirs.ops.get(call.answer, [])
        if mine is theirs and not call.role:
            return
        for at, (a, b) in enumerate(zip(one, two, strict=False), 1):
            first, second = mine.graph.ops[a].collective, theirs.graph.ops[b].collective
            if first is None or second is None:
                continue
            same_kind = call.role != "" or first.kind == second.kind
            if not same_kind or (first.size_bytes, first.algorithm) != (second.size_bytes, second.algorithm):
                must = "members that meet agree on kind, size and algorithm"
                found = f"{self._op(rank, mine, a)} and {self._op(other, theirs, b)} as their {_ordinal(at)} there"
                raise ConfigError(self._where(call), must, found, "make them agree, or give one another group")
        often = mine.graph.steps, theirs.graph.steps
        if len(one) != len(two):
            self._refuse_lonely((rank, call, mine), (other, call.answer, theirs))
        elif often[0] != often[1]:
            found = f"{counted(often[0], 'step')} of rank {rank} and {counted(often[1], 'step')} of rank {other}"
            raise ConfigError(self._where(call), "members run as many steps", found, "give all graphs the same steps")

    def _refuse_lonely(self, *sides: tuple[int, Call, Roles]) -> None:
        """Refuse a collective to which nobody comes: say who would wait for whom."""
        (few, answer, fewer), (rank, call, roles) = sorted(sides, key=lambda side: len(side[2].ops.get(side[1], [])))
        comes = len(fewer.ops.get(answer, []))
        often = f"comes {counted(comes, 'time')}" if comes else "never comes"
        raise ConfigError(
            self._where(call),
            "members meet as often as one another",
            f"{self._op(rank, roles, roles.ops[call][comes])} as the {_ordinal(comes + 1)} there of rank {rank}, which "
            f"would wait for rank {few} for ever: that one {often}",
            f"add the {answer.role or 'collective'} to rank {few}, or remove the op",
        )

    def _where(self, call: Call) -> str:
        return f"job {self._job.name!r}, group {call.group!r}"

    def _op(self, rank: int, roles: Roles, op: int) -> str:
        """Name an op with its rank and what it is: ``op 'sum' of rank 0 (all_reduce of 40 B, auto)``."""
        what = roles.graph.ops[op]
        about = what.collective
        said = f" ({about.kind} of {about.size_bytes:,} B, {about.algorithm})" if about is not None else ""
        return f"op {what.name!r} of rank {rank}{said}"


def _ordinal(number: int) -> str:
    return _ORDINALS.get(number, f"{number}th")
