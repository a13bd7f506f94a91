"""One row: requests come, iterations follow one another until all have been served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.serving.asked import Rooms
from simulator.serving.replays import Replayed, Replays, Way
from simulator.serving.scheduler import Scheduler, Served, Tiers, Work
from simulator.workload import Request, Requests


@dataclass(frozen=True, slots=True)
class Ran:
    """An iteration that ran.

    Attributes
    ----------
    start_ns
        When it began [ns].
    work
        Who ran; counted before it ended.
    about
        Columns of the table of iterations.
    replayed
        What it took.
    """

    start_ns: int
    about: dict[str, Any]
    replayed: Replayed


@dataclass(slots=True)
class Story:
    """What happened to the requests under one policy.

    Attributes
    ----------
    policy, tiers
        The row, and the tiers that keep KV blocks.
    served, ran
        The requests, and the iterations.
    status
        ``ok``; ``overloaded``: requests come faster than they can be served; ``unfinished``: more iterations are
        needed, or would have to be replayed, than may be; else why an iteration cannot run.
    end_ns
        When it ended [ns].
    waiting_at_last
        How many waited when the last one came.
    replayed
        How many iterations were replayed; others were like one of them.
    why
        What is in the way; of what is unfinished, what to do.
    left
        Stores that have not begun: from where to where, and how many tokens of a layer, all layers together.
    """

    policy: str
    tiers: tuple[str, ...]
    served: list[Served]
    ran: list[Ran] = field(default_factory=list)
    status: str = "ok"
    end_ns: int = 0
    waiting_at_last: int = 0
    replayed: int = 0
    why: str = ""
    left: Counter[Way] = field(default_factory=Counter)


def _blocks(left: Counter[Way], tokens: int) -> Counter[Way]:
    """How many blocks have a part that was left, of so many tokens of a layer each."""
    return Counter({way: -(-number // tokens) for way, number in left.items()})


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
    tiers = Tiers(rooms.names, rooms.blocks, keeps=rooms.keeps)
    scheduler = Scheduler(tiers, asked)
    story = Story(policy, rooms.names, [Served(number, one) for number, one in enumerate(requests)])
    come = left = 0
    while True:
        before = come
        while come < len(requests) and requests[come].arrival_ns <= story.end_ns:
            scheduler.waiting.append(story.served[come])
            come += 1
        work = scheduler.next(story.end_ns)
        if before < come == len(requests):
            story.waiting_at_last = len(scheduler.waiting)
            if left and story.waiting_at_last > max(asked.max_sequences, len(requests) - story.waiting_at_last):
                story.status = "overloaded"
                break
        following = requests[come].arrival_ns if come < len(requests) else None
        if not (work.decoding or work.parts or work.stores or story.left):
            if following is None:
                break
            story.end_ns = following
            continue
        left_blocks = _blocks(story.left, replays.layers * asked.block)
        parts = work.in_room(rooms.names[0], rooms.blocks[0], left_blocks)
        if not all(_run(story, scheduler, replays, part, asked.block, following) for part in parts):
            break
        left += len(scheduler.ended(work, story.end_ns))
        progress(f"{policy} at iteration {len(story.ran):,}", left, len(requests))
    story.replayed = len(replays)
    return story


def _run(
    story: Story, scheduler: Scheduler, replays: Replays, work: Work, block: int, following_ns: int | None
) -> bool:
    """Run an iteration with blocks of so many tokens; whether it could. If nobody runs, who comes next may end it."""
    done = replays.of(work.iteration(block)._replace(left=tuple(sorted(story.left.items()))))
    if done.status != "ok":
        story.status, story.why = done.status, done.why
        return False
    leaving = _blocks(story.left, replays.layers * block) + Counter(dict(work.stores))
    story.left = Counter()
    ends_ns = done.ops_ns
    if not (work.decoding or work.parts):
        ends_ns = done.ns if following_ns is None else following_ns - story.end_ns
    if not scheduler.tiers.needs(leaving, [tier for tier, _ in work.loads]):
        done, story.left = done.until(ends_ns)
    about = {
        "decoding": len(work.decoding),
        "prompt_tokens": sum(new for _, new in work.parts),
        "waiting": len(scheduler.waiting),
        "held_blocks": scheduler.tiers.held,
        **{f"used_{name}_blocks": scheduler.tiers.used(tier) for tier, name in enumerate(story.tiers)},
    }
    story.ran.append(Ran(story.end_ns, about, done))
    story.end_ns += done.ns
    return True
