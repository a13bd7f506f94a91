"""Counts what happened: a row of the summary, the table of requests, the table of iterations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from simulator.catalog import Loaded
from simulator.serving.asked import asked_of
from simulator.serving.scheduler import Served
from simulator.serving.story import Story
from simulator.trace import CAUSES
from simulator.workload import Arriving

_NOT = (None, None, None)
_SHARES = 4
"""Prompts are told apart by how many quarters of them were found."""


def summary(story: Story, loaded: Loaded, come: Arriving, token_bytes: int) -> dict[str, Any]:
    """Count a row.

    Parameters
    ----------
    story
        What happened.
    loaded, come
        The scenario, and who comes.
    token_bytes
        What a token takes in the KV cache [B].

    Returns
    -------
    dict
        ``policy``, ``status``, ``why``
            The row; ``ok``, ``overloaded``, ``unfinished``, ``infeasible``, ``blocked`` or ``refused``; and what is in
            the way.
        ``requests``, ``finished``
            How many came, and how many had their last token.
        ``ttft_p50_ns``, ``ttft_p95_ns``
            From when a request was sent, which is its arrival, to the end of the iteration that gives its first token,
            so that it has waited in the queue as well: of 100 requests, the 50th and the 95th by time (nearest rank).
        ``tpot_p50_ns``, ``tpot_p95_ns``
            From the first token to the last one, by the tokens after the first; of requests with several.
        ``ttft_mean_ns``, ``tpot_mean_ns``
            The means of these.
        ``waited_p50_ns``
            From arrival to admission.
        ``tokens_per_s``
            Tokens added until the end of the run.
        ``prompt_tokens``, ``computed_fraction``, ``hit_<tier>_fraction``
            Of all that were admitted; the shares that were computed, and that were found in each tier, add up to 1.
        ``read_<n>_hit_p50_ns``
            From admission to the first token, for prompts of which 0, 25, 50, 75 or 100 % were found (the nearest of
            these).
        ``even_bytes_per_s``
            Rate at which the KV cache of the prompts of which nothing was found takes as long to copy as it took from
            their admission to their first token.
        ``moved_<link>_bytes``
            Bytes copied.
        ``stall_fraction``, ``wait_<cause>_ns``, ``drain_ns``
            What of the time of iterations no op ran; that compute waited, and for what; and that an iteration lasted on
            for its stores after its last op. The latter two add up to the former.
        ``busy_ns``, ``end_ns``
            Time of iterations in which some sequence runs (blocks that are stored while nobody does hold nobody up),
            and end of the last iteration.
        ``iterations``, ``replayed``
            How many there were, and how many of them were replayed.
        ``most_waiting``, ``waiting_at_last``
            The most requests that waited after an iteration had begun, and how many when the last one came.
        ``offered_per_s``, ``served_per_s``
            Requests that came, by the time in which they came; and that left, by the busy time.
        ``outpaced_come_per_s``, ``outpaced_admitted_per_s``, ``outpaced_growth``
            If requests come faster than they are served (`outpaced`): of the second half of
            the arrivals, how many came, and how many were admitted, in a second, and how much longer who comes a second
            later waits [s]; else None.
        ``unanswered``
            Requests of the file that add no token, and are left out.
        ``block_tokens``, ``most_shared_tokens``
            Tokens of a block; and the most of any prompt that others may have left. Found are whole blocks of these.
    """
    left = [one for one in story.served if one.end_ns is not None]
    ran = [one for one in story.ran if one.about["held_blocks"]]
    busy, drain = sum(one.replayed.ns for one in ran), sum(one.replayed.drain_ns for one in ran)
    stall = drain + sum(one.replayed.stall_ns for one in ran)
    span = story.served[-1].request.arrival_ns
    waits = {cause: sum(one.replayed.waits_ns.get(cause, 0) for one in ran) for cause in CAUSES}
    moved = {
        link: sum(one.replayed.moved_bytes.get(link, 0) for one in story.ran) for link in loaded.hardware.link_names
    }
    return {
        "policy": story.policy,
        "status": story.status,
        "why": story.why,
        "requests": len(story.served),
        "finished": len(left),
        **_latencies(story.served),
        "tokens_per_s": _ratio(sum(one.made for one in story.served) * 10**9, story.end_ns),
        **_hits(story),
        "even_bytes_per_s": _even(story.served, token_bytes),
        **{f"moved_{link}_bytes": size for link, size in moved.items()},
        "stall_fraction": _ratio(stall, busy),
        **{f"wait_{cause}_ns": ns for cause, ns in waits.items()},
        "drain_ns": drain,
        "busy_ns": busy,
        "end_ns": story.end_ns,
        "iterations": len(story.ran),
        "replayed": story.replayed,
        "most_waiting": max((one.about["waiting"] for one in story.ran), default=0),
        "waiting_at_last": story.waiting_at_last,
        "offered_per_s": _ratio((len(story.served) - 1) * 10**9, span),
        "served_per_s": _ratio(len(left) * 10**9, busy),
        **{f"outpaced_{name}": value for name, value in zip(Pace._fields, outpaced(story) or _NOT, strict=True)},
        "unanswered": come.unanswered,
        "block_tokens": asked_of(loaded).block,
        "most_shared_tokens": max(one.shared for one in come.requests),
    }


def quantile(values: Iterable[int], percent: int) -> int | None:
    """The least value that so many per cent of all do not exceed; None of none."""
    ordered = sorted(values)
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else None


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _latencies(served: Sequence[Served]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("ttft", "tpot"):
        there = [ns for one in served if (ns := getattr(one, f"{name}_ns")) is not None]
        found |= {f"{name}_p{percent}_ns": quantile(there, percent) for percent in (50, 95)}
        found[f"{name}_mean_ns"] = round(sum(there) / len(there)) if there else None
    found["waited_p50_ns"] = quantile((one.waited_ns for one in served if one.waited_ns is not None), 50)
    groups: dict[int, list[int]] = {}
    for one in served:
        if one.reading_ns is not None:
            share = round(sum(one.hit) * _SHARES / one.request.prompt)
            groups.setdefault(share, []).append(one.reading_ns)
    shares = {f"read_{100 * share // _SHARES}_hit_p50_ns": groups.get(share, ()) for share in range(_SHARES + 1)}
    return found | {name: quantile(values, 50) for name, values in shares.items()}


def _even(served: Sequence[Served], token_bytes: int) -> float | None:
    read = [(one.request.prompt, one.reading_ns) for one in served if one.reading_ns is not None and not any(one.hit)]
    return _ratio(sum(tokens for tokens, _ in read) * token_bytes * 10**9, sum(ns for _, ns in read))


def _hits(story: Story) -> dict[str, Any]:
    admitted = [one for one in story.served if one.admitted_ns is not None]
    prompts = sum(one.request.prompt for one in admitted)
    hits = [sum(one.hit[tier] for one in admitted) for tier in range(len(story.tiers))]
    found = {f"hit_{name}_fraction": _ratio(tokens, prompts) for name, tokens in zip(story.tiers, hits, strict=True)}
    return {"prompt_tokens": prompts, "computed_fraction": _ratio(prompts - sum(hits), prompts), **found}


def requests_of(story: Story) -> list[dict[str, Any]]:
    """One line per request; times are from the first arrival on [ns]."""
    return [
        {
            "policy": story.policy,
            "request": one.number,
            "arrival_ns": one.request.arrival_ns,
            "admitted_ns": one.admitted_ns,
            "first_token_ns": one.first_ns,
            "end_ns": one.end_ns,
            "prompt_tokens": one.request.prompt,
            "output_tokens": one.request.output,
            **{f"hit_{name}_tokens": one.hit[tier] if one.hit else None for tier, name in enumerate(story.tiers)},
            "ttft_ns": one.ttft_ns,
            "tpot_ns": one.tpot_ns,
        }
        for one in story.served
    ]


def iterations_of(story: Story) -> list[dict[str, Any]]:
    """One line per iteration: who ran, blocks when it began, what it took, waits by cause, and bytes by link."""
    return [
        {
            "policy": story.policy,
            "iteration": number,
            "start_ns": one.start_ns,
            "took_ns": one.replayed.ns,
            **one.about,
            "stall_ns": one.replayed.stall_ns,
            "drain_ns": one.replayed.drain_ns,
            **{f"wait_{cause}_ns": ns for cause, ns in one.replayed.waits_ns.items()},
            **{f"moved_{link}_bytes": size for link, size in one.replayed.moved_bytes.items()},
        }
        for number, one in enumerate(story.ran)
    ]


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
    """How much faster requests come than they are served, as far as that shows while they come; None if it does not.

    Looked at is the second half of the arrivals: from the request in the middle to the last one. Requests come faster
    if in every iteration of that time somebody was left waiting, so that nothing else than the server was short, if
    fewer were admitted in it than came, and if the last one waited for longer than the one in the middle. Nothing is
    said of a crowd that comes at once, which has no rate; nor of what would be if more came.

    They are admitted later than they come, so the rate at which they are is taken from when the one in the middle is
    admitted to when the last one is. What a rate lacks to that of coming is then what waiting grows by; in the time of
    the arrivals, sequences may begin side by side of which the next one has to wait for the end.

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
