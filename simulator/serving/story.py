"""One row of serving: run iterations until all requests have been served, and summarise what happened."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any

from simulator.builders import CachedLayers
from simulator.catalog import Loaded
from simulator.hardware import ServingHost
from simulator.metrics import causes, flop_rates
from simulator.metrics.figures import LATENCIES, PREEMPTED
from simulator.scenario import Slo
from simulator.serving.blocks import Rooms, Tiers
from simulator.serving.data_ranks import DataRanks
from simulator.serving.replays import Replays
from simulator.serving.scheduler import Loads, Scheduler, Served, Work
from simulator.workload import Arriving, Clients, Requests

PERCENTS = (50, 90, 95, 99)
"""Percentiles of latencies in the summary."""
_SHARES = 4
"""The share of a prompt that was found is rounded to a multiple of one in this many: quarters."""


@dataclass(slots=True)
class Story:
    """The course of the requests under one policy.

    Attributes
    ----------
    policy, tiers
        The row, and the tiers that keep KV blocks.
    iterations
        For each: its sequences, the blocks when it began, its time, waits by cause, and bytes by link.
    loads
        For each load before an admission: its time, and bytes by link.
    status, why
        ``ok``; ``overloaded``: requests come faster than they can be served; or the status of an iteration that cannot
        run; and the reason.
    end_ns, host_ns
        End of the last iteration; and of the engine's work on its host for that one [ns].
    waiting_at_last
        Requests that waited when the last one arrived.
    replayed
        Number of iterations that were replayed; the others are similar to one of these.
    """

    policy: str
    tiers: tuple[str, ...]
    served: list[Served]
    iterations: list[dict[str, Any]] = field(default_factory=list)
    loads: list[dict[str, Any]] = field(default_factory=list)
    status: str = "ok"
    why: str = ""
    end_ns: int = 0
    host_ns: int = 0
    waiting_at_last: int = 0
    replayed: int = 0

    @property
    def requests(self) -> list[dict[str, Any]]:
        """One row per request; times count from the first arrival [ns]."""
        return [{"policy": self.policy, **self._request(served)} for served in self.served]

    def _request(self, served: Served) -> dict[str, Any]:
        request, first, last, more = served.request, served.first_ns, served.end_ns, served.request.output - 1
        adding_ns = None if first is None or last is None else last - first
        line: dict[str, Any] = {
            "request": served.number,
            "arrival_ns": request.arrival_ns,
            "admitted_ns": served.admitted_ns,
        }
        line |= {"first_token_ns": first, "end_ns": last}
        line |= {"prompt_tokens": request.prompt, "output_tokens": request.output}
        hit: Sequence[int | None] = served.hit or [None] * len(self.tiers)
        line |= {f"hit_{name}_tokens": tokens for name, tokens in zip(self.tiers, hit, strict=True)}
        line |= {"hit_fraction": _ratio(sum(served.hit), request.prompt) if served.hit else None}
        line |= {"preemptions": served.preemptions, "preempted_ns": served.preempted_ns}
        line |= {"recomputed_tokens": served.recomputed, "reloaded_tokens": served.reloaded}
        line |= {"ttft_ns": None if first is None else first - request.arrival_ns}
        line |= {"tpot_ns": None if adding_ns is None or not more else round(adding_ns / more)}
        return line | {"e2e_ns": None if last is None else last - request.arrival_ns}


class _Senders:
    """Who sends requests: a trace, at the times that it says; or clients, each its next one once one was answered.

    Parameters
    ----------
    served
        The requests: of a trace in order of arrival; of clients round by round.
    clients
        The clients; None: a trace.
    seed
        Seed of a random order.

    Attributes
    ----------
    due, left
        A heap: when requests come next, unless as many are in flight as may be, and their numbers. And how many have
        not come yet.
    """

    def __init__(self, served: Sequence[Served], clients: Clients | None, seed: int) -> None:
        self._served, self._clients, self._freed_ns, self.left = served, clients, 0, len(served)
        self._free = self._open = inf if clients is None else clients.in_flight or clients.number
        self.due = [(each.request.arrival_ns, each.number) for each in served[: clients.number if clients else None]]
        self._draw = Random(seed) if clients and clients.order == "random" else None
        self._ready, self._held = deque[tuple[int, int]](), list[int]()

    def send(self, now_ns: int) -> Iterator[Served]:
        """Yield the requests that have come by now; those for which no place was open came when one became free."""
        while self.due and self.due[0][0] <= now_ns:
            self._ready.append(heappop(self.due))
        while self._ready and self._free:
            if self._draw:
                self._ready.rotate(self._draw.randrange(len(self._ready)))
            due_ns, index = self._ready.popleft()
            if self._clients:
                arrival_ns = due_ns if self._open > 0 else max(due_ns, self._freed_ns)
                self._served[index].request = self._served[index].request._replace(arrival_ns=arrival_ns)
            self.left, self._free, self._open = self.left - 1, self._free - 1, self._open - 1
            yield self._served[index]
        self._open = self._free

    def answered(self, served: Sequence[Served], now_ns: int) -> None:
        """Let clients go on that have their answers now."""
        if self._clients and served:
            self._free, self._freed_ns = self._free + len(served), now_ns
            self._held += [each.number + self._clients.number for each in served]
            if not self._clients.barrier or len(self._held) == self._clients.number:
                for index in self._held:
                    if index < len(self._served):
                        heappush(self.due, (now_ns + self._clients.think_ns, index))
                self._held.clear()


def serve_row(
    policy: str,
    replays: Replays,
    rooms: Rooms,
    asked: Requests,
    arrivals: Arriving,
    progress: Callable[[str, int, int], None],
) -> Story:
    """Serve requests under one policy.

    Serving ends early, as ``overloaded``, if some requests have left, but when the last one arrives more wait than were
    admitted so far and than may run together: requests then arrive more than twice as fast as they can be served, and
    latencies would only measure the length of the run.

    Parameters
    ----------
    policy, replays
        The row, and its replays of iterations.
    rooms, asked, arrivals
        Room for blocks, limits of the scheduler, and the requests.
    progress
        Called after each iteration with the number of requests that have left.
    """
    story = Story(policy, rooms.names, [Served(*numbered) for numbered in enumerate(arrivals.requests)])
    senders, left, count = _Senders(story.served, asked.clients, arrivals.seed), 0, len(arrivals.requests)

    def replayed(works: Sequence[Work]) -> dict[str, Any]:
        took = replays.of(*(work.iteration(asked.block, len(rooms.groups), replays.reaches) for work in works))
        if took["status"] != "ok":
            story.status, story.why = took["status"], took["why"]
        return took

    def load_ns(loads: Loads) -> int:
        ways = {((tier, rooms.names[0]), group): count for (tier, group), count in loads.items()}
        took = replayed([Work(stores=ways), *[Work()] * (replays.data - 1)])
        story.loads += [took] if story.status == "ok" else []
        return int(took.get("took_ns", 0))

    schedulers = [Scheduler(Tiers(rooms, asked.block), asked, rooms.groups, load_ns) for _ in range(replays.data)]
    ranks = DataRanks(schedulers, asked.clients.number if asked.clients else 0)
    while story.status == "ok":
        before = senders.left
        ranks.send(senders.send(story.end_ns))
        works = ranks.next(story.end_ns)
        if before > senders.left == 0:
            story.waiting_at_last = waiting = ranks.waiting
            if left and waiting > max(asked.max_sequences * replays.data, count - waiting):
                story.status, story.why = "overloaded", f"{waiting:,} requests waited when the last one came"
                break
        if not works:
            later_ns = [ns for ns, _ in senders.due[:1] if ns > story.end_ns] + ranks.loading(story.end_ns)
            if not later_ns:
                break
            story.end_ns = story.host_ns = min(later_ns)
        for each in works:
            took = replayed(each)
            if story.status != "ok":
                break
            _add(story, ranks, each, took, _host_wait_ns(story, replays.engine, each))
            ended = ranks.ended(each, story.end_ns)
            senders.answered(ended, story.end_ns)
            left += len(ended)
            progress(f"{policy} at iteration {len(story.iterations):,}", left, count)
    story.replayed = len(replays)
    return story


def _host_wait_ns(story: Story, costs: ServingHost, works: Sequence[Work]) -> int:
    """Return how long an iteration waits for the engine's host, which begins when the one before began, or ended.

    Data ranks have a host each, and all wait for the one with most to do.
    """
    if not any(work.decoding or work.parts for work in works):
        return 0
    admitted = max(sum(served.cached == sum(served.hit) for served, _ in work.parts) for work in works)
    begin_ns = story.host_ns if costs.ahead else story.end_ns
    story.host_ns = max(story.end_ns, begin_ns + costs.iteration_ns + costs.request_ns * admitted)
    return story.host_ns - story.end_ns


def _add(story: Story, ranks: DataRanks, works: Sequence[Work], took: dict[str, Any], wait_ns: int) -> None:
    """Add an iteration to a story, after its wait for the engine's host."""
    tiers = [scheduler.tiers for scheduler in ranks.schedulers]
    took = {**took, **{column: took[column] + wait_ns for column in ("took_ns", "stall_ns", "wait_host_ns")}}
    about = {
        "policy": story.policy,
        "iteration": len(story.iterations),
        "start_ns": story.end_ns,
        "decoding": sum(len(work.decoding) for work in works),
        "prompt_tokens": sum(new for work in works for _, new in work.parts),
        "waiting": ranks.waiting + len(ranks.loading(story.end_ns)),
        "held_blocks": sum(of_rank.held for of_rank in tiers),
        **{f"used_{name}_blocks": sum(of.used(tier) for of in tiers) for tier, name in enumerate(story.tiers)},
    }
    story.iterations.append(about | {column: took[column] for column in took if column not in ("status", "why")})
    story.end_ns += took["took_ns"]


def summary(story: Story, loaded: Loaded, arrivals: Arriving, rooms: Rooms) -> dict[str, Any]:
    """Summarise a row.

    Parameters
    ----------
    story
        The row's requests and iterations.
    loaded, arrivals
        The scenario, and its requests.
    rooms
        The tiers with KV blocks, and the groups of layers.

    Returns
    -------
    dict
        ``policy``, ``status``, ``why``
            The row; one of `simulator.errors.STATUSES`, or ``overloaded``; and the reason.
        ``<column>``
            Each of `simulator.metrics.figures.SERVED`.
        ``moved_<link>_bytes``, ``wait_<cause>_ns``, ``drain_ns``
            Bytes copied; waits of compute by cause; and time for which iterations went on after their last op, for
            their stores. The latter two add up to `stall_fraction` times `busy_ns`.
        ``busy_ns``
            Time of iterations in which some sequence runs: storing blocks while none runs delays nobody.
        ``tflops``, ``mfu``
            The arithmetic of these iterations per second, and as a share of the device's peak.
    """
    ran = [row for row in story.iterations if row["held_blocks"]]
    waits = [f"wait_{cause}_ns" for cause in causes(loaded.hardware)]
    spent = {column: sum(row[column] for row in ran) for column in (*waits, "drain_ns")}
    flops, moved = sum(row["flops"] for row in ran), [f"moved_{link}_bytes" for link in loaded.hardware.link_names]
    busy, finished = sum(row["took_ns"] for row in ran), sum(served.end_ns is not None for served in story.served)
    return {
        "policy": story.policy,
        "status": story.status,
        "why": story.why,
        "requests": len(story.served),
        "finished": finished,
        **_latencies(story.requests),
        **_throughput(story, loaded.scenario.slo),
        **flop_rates([({loaded.work.dtypes.compute: flops}, loaded.work.ranks)], loaded.hardware, busy),
        **_hits(story, rooms.groups),
        **{column: sum(row[column] for row in story.requests) for column in PREEMPTED},
        **{column: sum(row[column] for row in (*story.iterations, *story.loads)) for column in moved},
        "stall_fraction": _ratio(sum(row["stall_ns"] for row in ran) + spent["drain_ns"], busy),
        **spent,
        "busy_ns": busy,
        "end_ns": story.end_ns,
        "iterations": len(story.iterations),
        "replayed": story.replayed,
        "most_waiting": max((row["waiting"] for row in story.iterations), default=0),
        "waiting_at_last": story.waiting_at_last,
        "offered_per_s": _ratio(
            (len(story.served) - 1) * 10**9, max(served.request.arrival_ns for served in story.served)
        ),
        "served_per_s": _ratio(finished * 10**9, busy),
        "unanswered": arrivals.unanswered,
    }


def quantile(values: Iterable[int], percent: int) -> int | None:
    """Return the least value that `percent` per cent of all do not exceed; None if there are none."""
    ordered = sorted(values)
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else None


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _latencies(requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return percentiles and means of the latencies, and the median of the wait before admission."""
    times = {name: [row[f"{name}_ns"] for row in requests if row[f"{name}_ns"] is not None] for name in LATENCIES}
    waited = [row["admitted_ns"] - row["arrival_ns"] for row in requests if row["admitted_ns"] is not None]
    columns = {f"{name}_p{percent}_ns": quantile(ns, percent) for name, ns in times.items() for percent in PERCENTS}
    columns |= {f"{name}_mean_ns": round(sum(ns) / len(ns)) if ns else None for name, ns in times.items()}
    return columns | {"waited_p50_ns": quantile(waited, 50)}


def _throughput(story: Story, slo: Slo | None) -> dict[str, Any]:
    """Return rates per second: of tokens, and of requests that meet every objective for their latency."""
    made = sum(served.made for served in story.served)
    read = sum(served.request.prompt for served in story.served if served.first_ns is not None)
    met = None if slo is None else sum(map(slo.is_met, story.requests))
    counts = {"tokens_per_s": made, "total_tokens_per_s": made + read, "goodput_per_s": met}
    rates = {column: None if count is None else _ratio(count * 10**9, story.end_ns) for column, count in counts.items()}
    return rates | {"goodput_fraction": None if met is None else _ratio(met, len(story.served))}


def _hits(story: Story, groups: Sequence[CachedLayers]) -> dict[str, Any]:
    """Return the share of prompt tokens found in each tier, and the time to read a prompt by the share found."""
    admitted = [served for served in story.served if served.admitted_ns is not None]
    prompts = sum(served.request.prompt for served in admitted)
    hits = [sum(served.hit[tier] for served in admitted) for tier in range(len(story.tiers))]
    reading: list[list[int]] = [[] for _ in range(_SHARES + 1)]
    computed_bytes = computed_ns = 0
    for served in admitted:
        if served.first_ns is not None:
            took_ns, prompt = served.first_ns - (served.admitted_ns or 0), served.request.prompt
            reading[round(sum(served.hit) * _SHARES / prompt)].append(took_ns)
            of_tokens = [group for group in groups if not group.reach.block and not any(served.hit)]
            computed_bytes += sum(group.token_bytes * group.reach.cached(prompt) for group in of_tokens)
            computed_ns += 0 if any(served.hit) else took_ns
    return {
        "prompt_tokens": prompts,
        "computed_fraction": _ratio(prompts - sum(hits), prompts),
        **{f"hit_{name}_fraction": _ratio(tokens, prompts) for name, tokens in zip(story.tiers, hits, strict=True)},
        **{f"read_{100 * share // _SHARES}_hit_p50_ns": quantile(times, 50) for share, times in enumerate(reading)},
        "even_bytes_per_s": _ratio(computed_bytes * 10**9, computed_ns),
    }
