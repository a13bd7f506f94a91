"""Whether requests come faster than they are served, as far as that shows while they come.

Looked at is the second half of the arrivals: from the request in the middle to the last one. Requests come faster if in
every iteration of that time somebody was left waiting, so that nothing else than the server was short, if fewer were
admitted in it than came, and if the last one waited for longer than the one in the middle. Nothing is said of a crowd
that comes at once, which has no rate; nor of what would be if more came.

They are admitted later than they come, so the rate at which they are is taken from when the one in the middle is
admitted to when the last one is. What a rate lacks to that of coming is then what waiting grows by; in the time of the
arrivals, sequences may begin side by side of which the next one has to wait for the end.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.serving.story import Story


class Pace(NamedTuple):
    """Of requests that come faster than they are served, in the second half of the arrivals.

    Attributes
    ----------
    come_per_s, admitted_per_s
        How many came in a second, and how many of them were admitted in a second; if the last one never was, how many
        were admitted in a second while they came.
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
    came = len(half) - 1
    come_per_s = came * 10**9 / (end - start)
    admitted = sum(one.admitted_ns is not None and start < one.admitted_ns <= end for one in story.served)
    if admitted >= came:
        return None
    first_ns, last_ns = half[0].admitted_ns, half[-1].admitted_ns
    if first_ns is None or last_ns is None:
        return Pace(come_per_s, admitted * 10**9 / (end - start), None)
    growth = (last_ns - first_ns) / (end - start) - 1
    return Pace(come_per_s, came * 10**9 / (last_ns - first_ns), growth) if growth > 0 else None
