"""What is wrong with a step that no run can issue, whatever has happened before it."""

from __future__ import annotations

from simulator.errors import PlanError


def unknown_stream(step: int, stream: int, streams: int) -> PlanError:
    """A compute names a stream that there is not.

    Parameters
    ----------
    step, stream
        Number of the step, and what it names.
    streams
        How many there are.
    """
    must, do = f"a reactive plan uses compute streams 0 to {streams - 1}", "issue it on stream 0, or make a fixed plan"
    return PlanError(f"step {step} (compute)", must, f"stream {stream}", do)


def no_link(step: int, source: str, target: str) -> PlanError:
    """A copy names two tiers that no link joins.

    Parameters
    ----------
    step
        Its number.
    source, target
        The tiers.
    """
    do = "copy along the links of the hardware profile, or add the link"
    return PlanError(f"step {step} (copy {source} -> {target})", "a link joins the two tiers", "none", do)
