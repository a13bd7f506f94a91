"""Laws of reads in place: what a compute loads over links, from where it is valid as issued, and how fast."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.cost import load_ns, loaded_bytes
from simulator.plan import COMPUTE
from simulator.referee.facts import Facts
from simulator.trace import NONE, Block, Ints

_SHOWN = ("issue", "link", "size_bytes")


class Loads(NamedTuple):
    """What computes load in place, as columns: a row for each compute and link.

    Attributes
    ----------
    issue, link
        The compute, and the link that it loads over.
    size
        What crosses the link [B].
    away
        The size of the tensors, whose traffic the compute tier is spared [B].
    """

    issue: Ints
    link: Ints
    size: Ints
    away: Ints


def loads_of(facts: Facts) -> Loads:
    """Find what each compute that ran loads, from what was issued alone."""
    program, accesses = facts.program, facts.accesses
    tensor, tier = np.divmod(accesses.place, program.tiers)
    is_compute = (accesses.kind == COMPUTE) & (facts.row[accesses.issue] != NONE)
    is_away = is_compute & (tier != program.tier_of[np.where(is_compute, facts.a[accesses.issue], 0)])
    key, row = np.unique(accesses.issue[is_away] * program.tiers + tier[is_away], return_inverse=True)
    issue, source = np.divmod(key, program.tiers)
    away = np.bincount(row, program.sizes[tensor[is_away]], len(key)).astype(np.int64)
    ops = [program.graph.ops[op] for op in facts.a[issue].tolist()]
    size = [loaded_bytes(op, total) for op, total in zip(ops, away.tolist(), strict=True)]
    link = [program.loads[of] for of in source.tolist()]
    return Loads(issue, np.array(link, np.int64), np.array(size, np.int64), away)


def check_loads(facts: Facts, loads: Loads, rows: Block) -> None:
    """Check that the trace says what each compute loads, within the compute, and no faster than kernels load alone."""
    order = np.lexsort((rows["link"], rows["issue"]))
    told = {name: column[order] for name, column in rows.items()}
    by_link = np.lexsort((loads.link, loads.issue))
    expected = (loads.issue[by_link], loads.link[by_link], loads.size[by_link])
    if not all(np.array_equal(told[name], column) for name, column in zip(_SHOWN, expected, strict=True)):
        found = f"{len(order):,} rows for {len(by_link):,}, or others"
        raise facts.broken("a compute loads in place what is valid elsewhere alone, all of it", "loads", found)
    inside = (told["start_ns"] >= facts.start_ns[told["issue"]]) & (told["end_ns"] <= facts.end_ns[told["issue"]])
    facts.check(inside, "a compute loads while it runs", "loads", told, *_SHOWN, "start_ns", "end_ns")
    links = [*facts.program.hardware.links.values()]
    ops = [facts.program.graph.ops[op] for op in told["op"].tolist()]
    sizes = zip(ops, told["link"].tolist(), told["size_bytes"].tolist(), strict=True)
    alone = np.array([load_ns(op, size, links[link], facts.program.hardware) for op, link, size in sizes], np.int64)
    took = facts.end_ns[told["issue"]] - facts.start_ns[told["issue"]]
    law = "a compute that loads takes its launch, the latency of the link, and its bytes over the rate of loads"
    facts.check_actions(told["issue"], took >= alone, law, ("takes ns", took), ("alone ns", alone))
