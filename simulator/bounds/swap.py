"""What persistent tensors that have no room together take: a copy in holds room before anything is read from it.

Let ``Q`` be persistent tensors that may leave the compute tier and are *kept*: the first op of a step that uses one
reads it, and so does each op that writes it, so that its value is needed at all times. Let the smallest of them have
``s`` bytes. They and what is pinned have ``x`` bytes more than the budget. In the window of `step_time`, from the start
of the last op to its start a step later, links carry into the compute tier at least ``x + s`` bytes; or else ``x``
bytes, and all of these after one of ``Q`` was copied out.

*Proof.* Between two steps each persistent tensor is at home and nowhere else. Let ``A`` be those of ``Q`` whose homes
are other tiers, and ``N`` the others. ``N`` and what is pinned have room in the compute tier, so that ``A`` has at
least ``x`` bytes. Each of ``A`` is read in the step, so that a copy of it lies in the window. Say the copies of ``Q``
that lie there have less than ``x + s`` bytes. Then they are one of each of ``A``, and no other: another one would
bring ``s`` bytes. Let the first of them start at ``t``: it takes its place then, of ``s`` bytes at least. Were all of
``N`` in their places, too, ``A`` would have ``x + s`` bytes, and it has not. So at ``t`` some ``b`` of ``N`` has no
place. It is read in the step. If a copy in of ``b`` issued in the step before had not started at ``t``, it would lie
in the window, which it cannot. So ``b`` was there when the window began, and has left since. Its value is needed, and
was nowhere else between the steps: so a copy of ``b`` out, issued in this step, has ended at ``t``. The copies of
``A``, of ``x`` bytes or more, follow.

It holds of any ``Q``. Of all tensors of at least some size, each size is tried.

*Premises.* All ops are on one stream and no ranks meet, as the window is simple then. Ops run once. What late reads may
choose, and no op writes, is left out: copies of it may outlast a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.bounds.critical_path import Timing
from simulator.bounds.cuts import time_ns
from simulator.bounds.idle import Demand
from simulator.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Swap:
    """What may have to take turns in the compute tier.

    Attributes
    ----------
    pinned_bytes
        What stays there because it is its home [B].
    sizes
        ``(size, count)`` of tensors that may leave and are kept, the largest first [B].
    """

    pinned_bytes: int = 0
    sizes: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, timing: Timing, hardware: Hardware, homes: Sequence[int], demand: Demand) -> Swap:
        """Find it for a graph.

        Parameters
        ----------
        timing, hardware, homes, demand
            As for `simulator.bounds.step_time.Limits`; what must be held while each op runs.
        """
        graph, here = timing.precedence.graph, hardware.tier_names.index(hardware.compute_tier)
        if not timing.precedence.in_line or graph.meets or demand.may_repeat:
            return cls()
        pinned_bytes, sizes, staying = 0, Counter[int](), timing.staying
        for t, tensor in enumerate(graph.tensors):
            if tensor.persistent and homes[t] == here:
                pinned_bytes += tensor.size_bytes
            elif tensor.persistent and tensor.size_bytes and t not in staying and _is_kept(demand, t):
                sizes[tensor.size_bytes] += 1
        return cls(pinned_bytes, tuple(sorted(sizes.items(), reverse=True)))

    def ns(self, budget_bytes: int | float, into: int | float, out_of: int | float) -> int:
        """What a step takes because of it at least [ns].

        Parameters
        ----------
        budget_bytes
            What may be used of the compute tier [B].
        into, out_of
            Bandwidths of all links into the compute tier, and out of it [B/s].
        """
        held_bytes, longest_ns = self.pinned_bytes, 0
        for size, count in self.sizes:
            held_bytes += size * count
            if held_bytes > budget_bytes:
                excess = int(held_bytes - budget_bytes)
                first_out_ns = time_ns(size, out_of) + time_ns(excess, into)
                longest_ns = max(longest_ns, min(time_ns(excess + size, into), first_out_ns))
        return longest_ns


def _is_kept(demand: Demand, tensor: int) -> bool:
    """Whether a tensor is read in each step, and its value is never overwritten unread."""
    ops, found = demand.precedence.graph.ops, demand.lifetimes
    read_first = found.uses[tensor][:1]
    return bool(read_first) and all(tensor in ops[op].reads for op in (*read_first, *found.writes[tensor]))
