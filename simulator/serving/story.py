"""One row: requests come, iterations follow one another until all have been served, and what happened is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.builders import CachedLayers, Iteration
from simulator.catalog import Loaded
from simulator.metrics import achieved
from simulator.metrics.figures import LATENCIES
from simulator.scenario import Slo
from simulator.serving.blocks import Rooms, Tiers
from simulator.serving.replays import Replays
from simulator.serving.scheduler import Scheduler, Served
from simulator.trace import CAUSES
from simulator.workload import Arriving, Request, Requests

PERCENTS = (50, 90, 95, 99)
"""So many of 100 requests have a latency of at most what is told."""
_SHARES = 4
"""Prompts are told apart by how many quarters of them were found."""


@dataclass(slots=True)
class Story:
    """What happened to the requests under one policy.

    Attributes
    ----------
    policy, tiers
        The row, and the tiers that keep KV blocks.
    served
        The requests.
    iterations
        Of each: who ran, blocks when it began, what it took, waits by cause, and bytes by link.
    status, why
        ``ok``; ``overloaded``: requests come faster than they can be served; else why an iteration cannot run. And what
        is in the way.
    end_ns
        When it ended [ns].
    waiting_at_last
        How many waited when the last one came.
    replayed
        How many iterations were replayed; others were like one of them.
    """

    policy: str
    tiers: tuple[str, ...]
    served: list[Served]
    iterations: list[dict[str, Any]] = field(default_factory=list)
    status: str = "ok"
    why: str = ""
    end_ns: int = 0
    waiting_at_last: int = 0
    replayed: int = 0

    @property
    def requests(self) -> list[dict[str, Any]]:
        """One line per request; times are from the first arrival on [ns]."""
        return [{"policy": self.policy, **self._request(served)} for served in self.served]

    def _request(self, served: Served) -> dict[str, Any]:
        about, first, last, more = served.request, served.first_ns, served.end_ns, served.request.output - 1
        adding_ns = None if first is None or last is None else last - first
        line = {"request": served.number, "arrival_ns": about.arrival_ns, "admitted_ns": served.admitted_ns}
        line |= {"first_token_ns": first, "end_ns": last, "prompt_tokens": about.prompt, "output_tokens": about.output}
        hit: Sequence[int | None] = served.hit or [None] * len(self.tiers)
        line |= {f"hit_{name}_tokens": tokens for name, tokens in zip(self.tiers, hit, strict=True)}
        line |= {"ttft_ns": None if first is None else first - about.arrival_ns}
        line |= {"tpot_ns": None if adding_ns is None or not more else round(adding_ns / more)}
        return line | {"e2e_ns": None if last is None else last - about.arrival_ns}


def serve_row(
    policy: str,
    replays: Replays,
    rooms: Rooms,
    asked: Requests,
    requests: Sequence[Request],
    progress: Callable[[str, int, int], None],
) -> Story:
    """Serve requests under one policy.

    It ends early, as ``overloaded``, if more requests wait when the last one comes than were admitted until then, and
    than may run together, although some had already left: those that come are more than twice as many as those that can
    be served, and what is measured of latency would be the length of the run.

    Parameters
    ----------
    policy, replays
        The row, and what iterations take under it.
    rooms, asked, requests
        Room for blocks, limits of the scheduler, and who comes.
    progress
        Called now and then with the requests that have left.
    """
    tiers = Tiers(rooms.names, rooms.room_bytes, rooms.sizes(asked.block), keeps=rooms.keeps)
    scheduler, further = Scheduler(tiers, asked, rooms.groups), replays.further
    story = Story(policy, rooms.names, [Served(number, one) for number, one in enumerate(requests)])
    come = left = 0
    while story.status == "ok":
        before = come
        while come < len(requests) and requests[come].arrival_ns <= story.end_ns:
            scheduler.waiting.append(story.served[come])
            come += 1
        works = scheduler.next(story.end_ns)
        if before < come == len(requests):
            story.waiting_at_last = waiting = len(scheduler.waiting)
            if left and waiting > max(asked.max_sequences, len(requests) - waiting):
                story.status, story.why = "overloaded", f"{waiting:,} requests waited when the last one came"
                break
        if not works and come == len(requests):
            break
        if not works:
            story.end_ns = requests[come].arrival_ns
        for work in works:
            if not _run(story, scheduler, replays, work.iteration(asked.block, len(rooms.groups), further)):
                break
            left += len(scheduler.ended(work, story.end_ns))
            progress(f"{policy} at iteration {len(story.iterations):,}", left, len(requests))
    story.replayed = len(replays)
    return story


def _run(story: Story, scheduler: Scheduler, replays: Replays, work: Iteration) -> bool:
    """Run an iteration; whether it could."""
    took = replays.of(work)
    if took["status"] != "ok":
        story.status, story.why = took["status"], took["why"]
        return False
    tiers = scheduler.tiers
    about = {
        "policy": story.policy,
        "iteration": len(story.iterations),
        "start_ns": story.end_ns,
        "decoding": work.decoding,
        "prompt_tokens": work.reading,
        "waiting": len(scheduler.waiting),
        "held_blocks": tiers.held,
        **{f"used_{name}_blocks": tiers.used(tier) for tier, name in enumerate(story.tiers)},
    }
    story.iterations.append(about | {column: took[column] for column in took if column not in ("status", "why")})
    story.end_ns += took["took_ns"]
    return True


def summary(story: Story, loaded: Loaded, come: Arriving, rooms: Rooms) -> dict[str, Any]:
    """Count a row.

    Parameters
    ----------
    story
        What happened.
    loaded, come
        The scenario, and who comes.
    rooms
        Where KV blocks lie, and what layers keep of a sequence.

    Returns
    -------
    dict
        ``policy``, ``status``, ``why``
            The row; ``ok``, ``overloaded``, ``infeasible``, ``blocked`` or ``refused``; and what is in the way.
        ``<column>``
            Each of `simulator.metrics.figures.SERVED`.
        ``moved_<link>_bytes``, ``wait_<cause>_ns``, ``drain_ns``
            Bytes copied; that compute waited, and for what; and that an iteration lasted on for its stores after its
            last op. The latter two add up to `stall_fraction` of `busy_ns`.
        ``busy_ns``
            Time of iterations in which some sequence runs: blocks stored while nobody does hold nobody up.
        ``tflops``, ``mfu``
            The arithmetic of these by that time, and as a share of the device's peak.
    """
    ran = [one for one in story.iterations if one["held_blocks"]]
    waits = [f"wait_{cause}_ns" for cause in CAUSES]
    spent = {column: sum(one[column] for one in ran) for column in (*waits, "drain_ns")}
    moved = [f"moved_{link}_bytes" for link in loaded.hardware.link_names]
    busy, left = sum(one["took_ns"] for one in ran), [one for one in story.served if one.end_ns is not None]
    return {
        "policy": story.policy,
        "status": story.status,
        "why": story.why,
        "requests": len(story.served),
        "finished": len(left),
        **_latencies(story.requests),
        **_throughput(story, loaded.scenario.slo),
        **achieved([({loaded.workload.dtypes.compute: sum(one["flops"] for one in ran)}, 1)], loaded.hardware, busy),
        **_hits(story, rooms.groups),
        **{column: sum(one[column] for one in story.iterations) for column in moved},
        "stall_fraction": _ratio(sum(one["stall_ns"] for one in ran) + spent["drain_ns"], busy),
        **spent,
        "busy_ns": busy,
        "end_ns": story.end_ns,
        "iterations": len(story.iterations),
        "replayed": story.replayed,
        "most_waiting": max((one["waiting"] for one in story.iterations), default=0),
        "waiting_at_last": story.waiting_at_last,
        "offered_per_s": _ratio((len(story.served) - 1) * 10**9, story.served[-1].request.arrival_ns),
        "served_per_s": _ratio(len(left) * 10**9, busy),
        "unanswered": come.unanswered,
    }


def quantile(values: Iterable[int], percent: int) -> int | None:
    """The least value that so many per cent of all do not exceed; None of none."""
    ordered = sorted(values)
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else None


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _latencies(requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    times = {name: [ns for one in requests if (ns := one[f"{name}_ns"]) is not None] for name in LATENCIES}
    waited = [one["admitted_ns"] - one["arrival_ns"] for one in requests if one["admitted_ns"] is not None]
    found = {f"{name}_p{percent}_ns": quantile(ns, percent) for name, ns in times.items() for percent in PERCENTS}
    found |= {f"{name}_mean_ns": round(sum(ns) / len(ns)) if ns else None for name, ns in times.items()}
    return found | {"waited_p50_ns": quantile(waited, 50)}


def _throughput(story: Story, slo: Slo | None) -> dict[str, Any]:
    """What came out in a second: tokens, and requests that meet what is asked of their latencies."""
    made = sum(one.made for one in story.served)
    read = sum(one.request.prompt for one in story.served if one.first_ns is not None)
    found = {"tokens_per_s": made, "total_tokens_per_s": made + read}
    met = None if slo is None else sum(map(slo.is_met, story.requests))
    rates = {column: _ratio(number * 10**9, story.end_ns) for column, number in found.items()}
    rates["goodput_per_s"] = None if met is None else _ratio(met * 10**9, story.end_ns)
    return rates | {"goodput_fraction": None if met is None else _ratio(met, len(story.served))}


def _hits(story: Story, groups: Sequence[CachedLayers]) -> dict[str, Any]:
    """What of prompts was found where, and how long they took by how much was."""
    admitted = [one for one in story.served if one.admitted_ns is not None]
    prompts = sum(one.request.prompt for one in admitted)
    hits = [sum(one.hit[tier] for one in admitted) for tier in range(len(story.tiers))]
    reading: list[list[int]] = [[] for _ in range(_SHARES + 1)]
    computed_bytes = computed_ns = 0
    for one in admitted:
        if one.first_ns is not None:
            took_ns = one.first_ns - (one.admitted_ns or 0)
            reading[round(sum(one.hit) * _SHARES / one.request.prompt)].append(took_ns)
            computed_bytes += 0 if any(one.hit) else sum(group.copied_bytes(one.request.prompt) for group in groups)
            computed_ns += 0 if any(one.hit) else took_ns
    return {
        "prompt_tokens": prompts,
        "computed_fraction": _ratio(prompts - sum(hits), prompts),
        **{f"hit_{name}_fraction": _ratio(tokens, prompts) for name, tokens in zip(story.tiers, hits, strict=True)},
        **{f"read_{100 * share // _SHARES}_hit_p50_ns": quantile(times, 50) for share, times in enumerate(reading)},
        "even_bytes_per_s": _ratio(computed_bytes * 10**9, computed_ns),
    }
