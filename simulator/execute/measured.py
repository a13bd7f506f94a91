"""What was measured of a step, as a trace: it is counted, drawn and written as what was predicted."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from simulator import metrics
from simulator.execute.held import BELOW, HELD, IN, OUT, ROOM
from simulator.execute.mode import PlannedStep
from simulator.plan import COMPUTE, COPY
from simulator.run.results import Result
from simulator.trace import CAUSES, ISSUED, NONE, RESIDENCIES, SPANS, WAITS, Table, Trace

_CAPACITY, _TRANSFER = CAUSES.index("capacity"), CAUSES.index("transfer")
LINKS = {OUT: "d2h", IN: "h2d"}
"""Way of a copy -> its link."""
Numbers = tuple[int, ...]


def trace_of(mode: PlannedStep) -> Trace:
    """Make the trace of a step that ran under its plan, and whose memory has kept notes.

    The time from the end of an op to that of the next is compute, but for waits. A wait has the cause that it had when
    it began. When a copy was issued is not known: it counts as issued when it began.
    """
    planning, memory = mode.planning, mode.memory
    row, tier, codes = planning.result, planning.compute_tier, planning.codes
    tensor_of = {id(block): tensor for tensor, block in mode.blocks.items()}
    links = {way: row.hardware.link_names.index(name) for way, name in LINKS.items()}
    tiers, seconds = {HELD: tier, BELOW: 1 - tier}, memory.device.seconds
    begun_s = seconds(mode.ended[0][0])

    def ns(moment: Any) -> int:
        return max(0, round((seconds(moment) - begun_s) * 1e9))

    waited, copies = list[Numbers](), list[Numbers]()
    below = planning.below
    held = [(0, 0, tiers[BELOW if t in below else HELD], t, block.size_bytes) for t, block in mode.lasting.items()]
    for kind, block, began, ended, size_bytes in memory.notes or ():
        tensor, since, until = tensor_of.get(id(block), NONE), ns(began), ns(ended)
        if kind in tiers and size_bytes and tensor != NONE:  # what is in no op of the graph lies beside the budget
            held.append((until, 0, tiers[kind], tensor, size_bytes))
        elif kind in links and size_bytes:
            copies.append((tensor, links[kind], since, until))
        elif kind not in tiers:
            why = (_CAPACITY, tensor, tier) if kind == ROOM else (_TRANSFER, tensor, links[kind])
            waited.append((since, until, *why, NONE))
    spans, waits = _computes(codes, [ns(ended) for ended, _ in mode.ended], waited)
    spans += _copies(codes, copies, tier, links[OUT])
    held.sort(key=lambda change: change[0])
    laid = _table(SPANS, spans), _table(WAITS, waits), _table(RESIDENCIES, held)
    return Trace("ok", *laid, issued=(_table(ISSUED, codes),), laps=(len(codes),))


def _computes(
    codes: Sequence[Numbers], ends: Sequence[int], waited: Sequence[Numbers]
) -> tuple[list[Numbers], list[Numbers]]:
    """Return spans and waits of the ops, which together fill the time until the last has ended."""
    issues = [issue for issue, code in enumerate(codes) if code[0] == COMPUTE]
    spans, waits, left = list[Numbers](), list[Numbers](), deque(waited)
    for issue, (begin, end) in zip(issues, pairwise(ends), strict=True):
        op, since = codes[issue][1], begin
        while left and left[0][1] <= end:
            waited_from, until, *why = left.popleft()
            spans.append((0, COMPUTE, op, 0, 0, issue, since, since, waited_from))
            waits.append((0, 0, op, issue, waited_from, until, *why))
            since = until
        spans.append((0, COMPUTE, op, 0, 0, issue, since, since, end))
    return spans, waits


def _copies(codes: Sequence[Numbers], copies: Iterable[Numbers], tier: int, out: int) -> Iterator[Numbers]:
    """Yield the spans of copies; one that brings something back when the step ends is issued behind all."""
    issues: defaultdict[Numbers, deque[int]] = defaultdict(deque)
    for issue, (kind, tensor, source, _) in enumerate(codes):
        if kind == COPY:
            issues[tensor, source == tier].append(issue)
    for tensor, link, begin, end in copies:
        left = issues[tensor, link == out]
        yield (0, COPY, tensor, link, 0, left.popleft() if left else len(codes), begin, begin, end)


def _table(columns: tuple[str, ...], rows: Sequence[Numbers]) -> Table:
    return Table(columns, np.array(rows, np.int64).reshape(-1, len(columns)))


def measured_row(row: Result, trace: Trace, step_ns: int) -> Result:
    """Make the row of a measured step: its figures are counted from its trace.

    Parameters
    ----------
    row, trace, step_ns
        What was predicted, what was measured, and the time until all was home again [ns].
    """
    counts, label = metrics.summarise(row.job, row.hardware, trace), f"{row.label}, measured"
    drain_ns = counts["drain_ns"] + step_ns - counts["step_ns"]
    counts |= {"policy": label, "step_ns": step_ns, "makespan_ns": step_ns, "drain_ns": drain_ns}
    return replace(row, label=label, summary={"policy": label, **counts}, trace=trace, remarks=())
