"""Whether requests come faster than they are served, as far as that shows while they come.

Looked at is the second half of the arrivals: from the request in the middle to the last one. Requests come faster if in
every iteration of that time somebody was left waiting, so that nothing else than the server was short, if fewer were
admitted in it than came, and if the last one waited for longer than the one in the middle. Nothing is said of a crowd
that comes at once, which has no rate; nor of what would be if more came.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.run.serving.story import Story


class Pace(NamedTuple):
    """Of requests that come faster than they are served, in the second half of the arrivals.

    Attributes
    ----------
    come_per_s, admitted_per_s
        How many came, and were admitted, in a second.
    growth
        How much longer who comes a second later waits to be admitted [s]; None if the last one never was.
    """

    come_per_s: float
    admitted_per_s: float
    growth: float | None


def outpaced(story: Story) -> Pace | None:
    """How much faster requests come than they are served; None if that does not show.

    Parameters
    ----------
    story
        What happened to them.
    """
    half = story.served[(len(story.served) - 1) // 2 :]
    start, end = half[0].request.arrival_ns, half[-1].request.arrival_ns
    waited = [one.about["waiting"] for one in story.ran if start <= one.start_ns < end]
    if start == end or not waited or min(waited) == 0:
        return None
    admitted = sum(one.admitted_ns is not None and start < one.admitted_ns <= end for one in story.served)
    growth = None
    if half[0].admitted_ns is not None and half[-1].admitted_ns is not None:
        growth = (half[-1].admitted_ns - end - half[0].admitted_ns + start) / (end - start)
    if admitted >= len(half) - 1 or (growth is not None and growth <= 0):
        return None
    per_s = 10**9 / (end - start)
    return Pace((len(half) - 1) * per_s, admitted * per_s, growth)
