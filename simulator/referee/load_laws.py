"""Laws of reads in place: what a compute loads over links, from where it is valid as issued, and how fast."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from simulator.cost import load_ns, loaded_bytes
from simulator.plan import COMPUTE
from simulator.referee.facts import Facts
from simulator.trace import NONE, Block, Ints


class Loads(NamedTuple):
    """What computes load in place, as columns: a row for each compute and link, with the bytes that cross it [B]."""

    issue: Ints
    link: Ints
    size: Ints


def check_loads(facts: Facts, rows: Block) -> Loads:
    """Check that the trace says what each compute loads, within the compute, and no faster than kernels load alone.

    What each compute that ran loads, which is returned, follows from what was issued alone.
    """
    program, (issue, kind, place, *_), sizes = facts.program, facts.accesses, Counter[tuple[int, int]]()
    (tensor, tier), ran = np.divmod(place, program.tiers), (kind == COMPUTE) & (facts.row[issue] != NONE)
    away = np.flatnonzero(ran & (tier != program.tier_of[np.where(ran, facts.a[issue], 0)]))
    for compute, source, size in zip(issue[away], tier[away], program.sizes[tensor[away]], strict=True):
        sizes[int(compute), int(source)] += int(size)
    due = [
        (compute, program.loads[source], loaded_bytes(program.graph.ops[facts.a[compute]], size))
        for (compute, source), size in sizes.items()
    ]
    loads, shown = Loads(*np.array(sorted(due), np.int64).reshape(-1, 3).T), ("issue", "link", "size_bytes")
    order = np.lexsort((rows["link"], rows["issue"]))
    if not all(np.array_equal(rows[name][order], column) for name, column in zip(shown, loads, strict=True)):
        found = f"{len(order):,} rows for {len(loads.issue):,}, or others"
        raise facts.broken("a compute loads in place all of each tensor that is valid only elsewhere", "loads", found)
    issue, links, hardware = rows["issue"], [*program.hardware.links.values()], program.hardware
    inside = (rows["start_ns"] >= facts.start_ns[issue]) & (rows["end_ns"] <= facts.end_ns[issue])
    facts.check(inside, "a compute loads while it runs", "loads", rows, *shown, "start_ns", "end_ns")
    loaded = zip(facts.a[issue].tolist(), rows["size_bytes"].tolist(), rows["link"].tolist(), strict=True)
    ops = program.graph.ops
    alone = np.array([load_ns(ops[op], size, links[link], hardware) for op, size, link in loaded], np.int64)
    took = facts.end_ns[issue] - facts.start_ns[issue]
    law = "a compute that loads takes its launch, the latency of the link, and its bytes over the rate of loads"
    facts.check_actions(issue, took >= alone, law, ("takes ns", took), ("alone ns", alone))
    return loads
