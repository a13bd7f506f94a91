"""A trace told bit by bit, as an engine does that keeps none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.plan import Plan
from simulator.referee import Drawn, Findings, Watch
from simulator.trace import Block, Trace

MOMENTS = {"spans": "end_ns", "waits": "end_ns", "residencies": "time_ns"}
"""By table, when a row is there."""


def bits(trace: Trace, moments_ns: Sequence[int]) -> Iterator[dict[str, Block]]:
    """What has happened up to each of these moments, and then the rest; what is issued is told at once."""
    left = {name: getattr(trace, name).whole() for name in MOMENTS}
    issued = trace.issued[0].whole()
    for moment in (*sorted(moments_ns), None):
        found = {"issued": issued}
        issued = {name: column[:0] for name, column in issued.items()}
        for name, rows in left.items():
            late = rows[MOMENTS[name]] > (np.iinfo(np.int64).max if moment is None else moment)
            found[name] = {column: values[~late] for column, values in rows.items()}
            left[name] = {column: values[late] for column, values in rows.items()}
        yield found


def check_in_parts(
    graph: Graph,
    hardware: Hardware,
    drawn: Drawn | Plan,
    trace: Trace,
    budget_bytes: float,
    switches=None,
    *,
    least_steps: int = 1,
    moments_ns: Sequence[int] | None = None,
) -> Findings:
    """What the referee finds if it is told bit by bit; at every moment, unless some are said."""
    drawn = drawn if isinstance(drawn, Drawn) else Drawn(drawn, None)
    watch = Watch(Job.of(graph, 1), hardware, [drawn], budget_bytes, switches)
    if moments_ns is None:
        ends = (trace.residencies.whole()["time_ns"], trace.spans.whole()["end_ns"])
        moments_ns = np.unique(np.concatenate(ends)).tolist()
    for happened in bits(trace, moments_ns):
        watch.take(happened, least_steps=least_steps)
    return watch.finish(trace)
