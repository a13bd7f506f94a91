"""Serving for people: the table, what a person would say of latency, hits and waits, and curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from simulator.metrics.figures import LATENCIES
from simulator.report.rows import listed, percent, present, quantity, shown
from simulator.report.tables import Column, figures, occurring
from simulator.report.views import Panel, Section, SweepView
from simulator.serving.story import PERCENTS, Story, quantile
from simulator.trace import CAUSES
from simulator.units import counted

Row = Mapping[str, Any]
Rows = Sequence[Row]

_LONG = 0.1
"""A queue of this share of all requests when the last one comes is told."""
_POINTS = 100
"""So many points of a curve can be told apart."""
_TOLD = (50, 90, 99)
"""Of so many of 100 requests latencies are shown; the summary has more."""
_NS_PER_S, _NS_PER_MS = 10**9, 10**6


def view(title: str, rows: Rows, stories: Sequence[Story]) -> SweepView:
    """Show latency; what was found and moved; how long prompts are read by what was found, and queues.

    Parameters
    ----------
    title
        What was served.
    rows, stories
        See `simulator.serving.story`.
    """
    latency = {name: [f"{name}_p{p}_ns" for p in _TOLD] for name in LATENCIES}
    known = ("goodput_per_s", "goodput_fraction", "tflops", "mfu")
    rates = ["tokens_per_s", *(column for column in known if any(present(row[column]) for row in rows))]
    hits = [f"hit_{tier}_fraction" for tier in _between(rows, "hit_", "_fraction")]
    moved = occurring(rows, (f"moved_{link}_bytes" for link in _between(rows, "moved_", "_bytes")))
    reading = [_read(share) for share in _read_shares(rows)]
    blocks = [
        [
            *figures(rows, ("status",)),
            Column.texts("finished", (f"{row['finished']:,} of {row['requests']:,}" for row in rows), left=False),
            *figures(rows, (*latency["ttft"], *latency["tpot"])),
        ],
        figures(rows, (*latency["e2e"], *rates, "stall_fraction")),
        figures(rows, ("computed_fraction", *hits, *moved)),
        [*figures(rows, reading), *figures(rows, ("most_waiting", "iterations", "replayed"))],
    ]
    (name,) = figures(rows, ("policy",))
    return SweepView(title, [Section(columns=[name, *block]) for block in blocks], sentences(rows), _panels(stories))


def _between(rows: Rows, start: str, end: str) -> list[str]:
    return [key[len(start) : -len(end)] for key in rows[0] if key.startswith(start) and key.endswith(end)]


def _read(share: str) -> str:
    return f"read_{share}_hit_p50_ns"


def _read_shares(rows: Rows) -> list[str]:
    """How much of prompts was found, in per cent, where times to read them can be told apart by that."""
    shares = _between(rows, "read_", "_hit_p50_ns")
    told = [share for share in shares if any(present(row[_read(share)]) for row in rows)]
    return told if len(told) > 1 else []


def sentences(rows: Rows) -> list[str]:
    """Say for each policy how long people wait, what was found where, what is waited for, and what is in the way.

    Parameters
    ----------
    rows
        See `simulator.serving.story.summary`.
    """
    said = [text for row in rows for text in _told(row)]
    if left_out := rows[0]["unanswered"]:
        which = counted(left_out, "request")
        said.insert(0, f"{which} of the file have no prompt or no output token, and are left out.")
    few = min((row["finished"] for row in rows if row["finished"]), default=100)
    if slowest := {f"p{share}": f"{100 // (100 - share)}" for share in PERCENTS if few * (100 - share) < 100}:
        them = f"{listed([*slowest])} {'is' if len(slowest) == 1 else 'are'} the slowest"
        said.append(f"Of {counted(few, 'request')} {them}; it takes {listed([*slowest.values()])} to tell more.")
    ran = [row for row in rows if row["status"] == "ok" and row["finished"]]
    if len(ran) > 1:
        ordered = sorted(ran, key=itemgetter("ttft_mean_ns"))
        means = [f"{quantity(row['ttft_mean_ns'], 'ns')} under {row['policy']}" for row in ordered]
        said.append(f"On average, first tokens come after {listed(means)}.")
    return said


def _told(row: Row) -> Iterator[str]:
    policy = row["policy"]
    if row["status"] != "ok":
        yield f"{policy} is {row['status']}: {row['why']}."
    if not present(row["ttft_p50_ns"]):
        return
    first, late, more = (quantity(row[column], "ns") for column in ("ttft_p50_ns", "ttft_p95_ns", "tpot_p50_ns"))
    yield (
        f"{policy}: half of the requests have their first token within {first} of sending, 95 % within {late}; "
        f"a further token takes {more}, {shown('tokens_per_s', row['tokens_per_s'])} tokens come out in a second."
    )
    tiers = {tier: row[f"hit_{tier}_fraction"] for tier in _between([row], "hit_", "_fraction")}
    there = listed([f"{percent(share)} in {tier}" for tier, share in tiers.items() if share]) or "nothing"
    yield f"{policy} finds of all prompt tokens {there}; {percent(row['computed_fraction'])} are computed."
    if shares := _read_shares([row]):
        times = listed([f"{quantity(row[_read(share)], 'ns')} if {share} % of it was found" for share in shares])
        even = quantity(row["even_bytes_per_s"] and round(row["even_bytes_per_s"]), "B/s")
        yield f"{policy} reads a prompt in {times}; at {even} copying takes as long as computing."
    spent = {f"wait_{cause}_ns": cause for cause in CAUSES} | {"drain_ns": "stores"}
    most = max(spent, key=lambda column: row[column])
    most_of_it = f", most for {spent[most]}" if row[most] else ""
    yield f"{policy} waits for {percent(row['stall_fraction'])} of the time of its iterations{most_of_it}."
    if present(row["goodput_fraction"]):
        yield (
            f"{policy}: {percent(row['goodput_fraction'])} of the requests meet every objective, "
            f"{shown('goodput_per_s', row['goodput_per_s'])} in a second."
        )
    if row["waiting_at_last"] >= _LONG * row["requests"]:
        rates = " and ".join(f"{shown(f'{what}_per_s', row[f'{what}_per_s'])} {what}" for what in ("offered", "served"))
        yield (
            f"{policy}: {row['waiting_at_last']:,} of {row['requests']:,} requests waited when the last one came "
            f"(in a second {rates}), so that the latencies tell how many came."
        )


def _parts(rows: Rows, number: int) -> Iterator[Rows]:
    """Rows one after another, so many at once."""
    return (rows[start : start + number] for start in range(0, len(rows), max(1, number)))


def _panels(stories: Sequence[Story]) -> list[Panel]:
    """Curves: the share of requests by their latencies; over time who waits, who decodes, and where blocks lie.

    Over time, a point is the most of a part of the iterations.
    """
    panels = []
    for name in ("ttft", "tpot"):
        known = ((one.policy, (row[f"{name}_ns"] for row in one.requests)) for one in stories)
        times = {policy: sorted(filter(present, own)) for policy, own in known}
        points = [
            {"policy": policy, "within_ms": (quantile(own, share) or 0) / _NS_PER_MS, "share": share / 100}
            for policy, own in times.items()
            for share in (range(1, 101) if own else ())
        ]
        title = f"share of requests by {name.upper()}"
        panels.append(Panel(title, "within [ms]", "%", points, "within_ms", "share", dense="log"))
    tiers = stories[0].tiers if stories else ()
    over_time = {"waiting": "requests that wait", "decoding": "sequences that decode"}
    over_time |= {f"used_{tier}_blocks": f"KV blocks in {tier}" for tier in tiers}
    for column, title in over_time.items():
        rows = [
            {"policy": one.policy, "time_s": part[0]["start_ns"] / _NS_PER_S, column: max(row[column] for row in part)}
            for one in stories
            for part in _parts(one.iterations, -(-len(one.iterations) // _POINTS))
        ]
        panels.append(Panel(title, "time [s]", "", rows, "time_s", column, dense="linear"))
    return panels
