"""Report of serving: the table, sentences on latency, hits and waits, and curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from simulator import catalog
from simulator.metrics import figure_of, interval
from simulator.metrics.figures import LATENCIES, PREEMPTED, present
from simulator.report.tables import Column, figures, occurring
from simulator.report.views import Panel, Section, SweepView
from simulator.report.words import ENDS, percent, quantity, ratio, shown
from simulator.serving.story import PERCENTS, Story, quantile
from simulator.trace import CAUSES
from simulator.units import counted, listed

Row = Mapping[str, Any]
Rows = Sequence[Row]

_LONG = 0.1
"""A queue with this share of all requests, when the last one arrives, is long: latencies then say little about the
machine."""
_POINTS = 100
"""Points of a curve: more could not be told apart."""
_SHOWN = (50, 90, 99)
"""Percentiles of latencies in the table; the summary has more."""
_NS_PER_S, _NS_PER_MS = 10**9, 10**6


def view(title: str, rows: Rows, stories: Sequence[Story]) -> SweepView:
    """Show latencies, hits and bytes moved, times to read a prompt by the share that was found in a cache, and queues.

    Parameters
    ----------
    title
        Title of the scenario.
    rows, stories
        See `simulator.serving.story`.
    """
    latency = {name: [f"{name}_p{p}_ns" for p in _SHOWN] for name in LATENCIES}
    asked = ("goodput_per_s", "goodput_fraction", "tflops", "mfu")
    rates = ["tokens_per_s", *(column for column in asked if any(present(row[column]) for row in rows))]
    hits = [column for column in rows[0] if column.startswith("hit_")]
    moved = occurring(rows, (column for column in rows[0] if column.startswith("moved_")))
    reading = _reading(rows).values()
    blocks = [
        [
            *figures(rows, ("status",)),
            Column("finished", (f"{row['finished']:,} of {row['requests']:,}" for row in rows), left=False),
            *figures(rows, (*latency["ttft"], *latency["tpot"])),
        ],
        figures(rows, (*latency["e2e"], *rates, "stall_fraction")),
        figures(rows, ("computed_fraction", *map(figure_of, (*hits, *moved)))),
        figures(
            rows, (*map(figure_of, reading), "most_waiting", *occurring(rows, PREEMPTED), "iterations", "replayed")
        ),
    ]
    (name,) = figures(rows, ("policy",))
    return SweepView(title, [Section(columns=[name, *block]) for block in blocks], sentences(rows), _panels(stories))


def _reading(rows: Rows) -> dict[str, str]:
    """Return share found [%] -> column of the time to read a prompt; nothing if fewer than two shares occur."""
    columns = {column.split("_")[1]: column for column in rows[0] if column.startswith("read_")}
    shown = {share: column for share, column in columns.items() if any(present(row[column]) for row in rows)}
    return shown if len(shown) > 1 else {}


def sentences(rows: Rows) -> list[str]:
    """Say for each policy its latencies, the tiers of found prompt tokens, and the stalls of iterations.

    Parameters
    ----------
    rows
        See `simulator.serving.story.summary`.
    """
    lines = [sentence for row in rows for sentence in _sentences_of(row)]
    if left_out := rows[0]["unanswered"]:
        which = counted(left_out, "request")
        lines.insert(0, f"{which} of the file have no prompt or no output token, and are left out.")
    few = min((row["finished"] for row in rows if row["finished"]), default=100)
    if slowest := {f"p{share}": f"{100 // (100 - share)}" for share in PERCENTS if few * (100 - share) < 100}:
        them = f"{listed([*slowest])} {'is' if len(slowest) == 1 else 'are'} the slowest"
        lines.append(f"With {counted(few, 'request')} {them}; {listed([*slowest.values()])} would tell more.")
    ran = [row for row in rows if row["status"] == "ok" and row["finished"]]
    if len(ran) > 1:
        ordered = sorted(ran, key=itemgetter("ttft_mean_ns"))
        means = [f"{quantity(row['ttft_mean_ns'], 'ns')} under {row['policy']}" for row in ordered]
        lines.append(f"On average, first tokens come after {listed(means)}.")
    return lines


def real(*, is_engine: bool) -> list[str]:
    """Say how long requests took that engines served, beside what was predicted; nothing of other software."""
    factors = interval(catalog.measured_ratios(), ["serving engine"])
    low, high = map(ratio, factors or (None, None))
    text = f"Published served requests took {low} to {high} as long as predicted (80 % of them)."
    return [text] if is_engine else []


def _sentences_of(row: Row) -> Iterator[str]:
    """Say how long requests wait under one policy, and why."""
    policy = row["policy"]
    if row["status"] != "ok":
        yield f"{policy} {ENDS[row['status']]}: {row['why']}."
    if not present(row["ttft_p50_ns"]):
        return
    first, late, more = (quantity(row[column], "ns") for column in ("ttft_p50_ns", "ttft_p95_ns", "tpot_p50_ns"))
    more = f"a further token takes {more}, " if present(row["tpot_p50_ns"]) else ""
    yield (
        f"{policy}: half of the requests have their first token within {first} of sending, 95 % within {late}; "
        f"{more}{shown('tokens_per_s', row['tokens_per_s'])} tokens/s come out."
    )
    hits = {column[len("hit_") : -len("_fraction")]: row[column] for column in row if column.startswith("hit_")}
    shares = listed([f"{percent(share)} in {tier}" for tier, share in hits.items() if share]) or "nothing"
    yield f"Of all prompt tokens {policy} finds {shares}, and computes {percent(row['computed_fraction'])}."
    if columns := _reading([row]):
        times = listed(
            [f"{quantity(row[column], 'ns')} if {share} % of it was found" for share, column in columns.items()]
        )
        even = quantity(row["even_bytes_per_s"] and round(row["even_bytes_per_s"]), "B/s")
        yield f"{policy} reads a prompt in {times}; at {even} copying takes as long as computing."
    spent = {f"wait_{cause}_ns": cause for cause in CAUSES} | {"drain_ns": "stores"}
    most = max(spent, key=lambda column: row.get(column, 0))
    most_of_it = f", mostly for {spent[most]}" if row[most] else ""
    yield f"{policy} stalls for {percent(row['stall_fraction'])} of the time of its iterations{most_of_it}."
    if present(row["goodput_fraction"]):
        yield (
            f"{policy}: {percent(row['goodput_fraction'])} of the requests meet every objective, "
            f"{shown('goodput_per_s', row['goodput_per_s'])} requests/s."
        )
    if row["waiting_at_last"] >= _LONG * row["requests"]:
        rates = " and ".join(f"{shown(f'{way}_per_s', row[f'{way}_per_s'])} {way}" for way in ("offered", "served"))
        yield (
            f"{policy}: {row['waiting_at_last']:,} of {row['requests']:,} requests waited when the last one came "
            f"(in a second {rates}), so the latencies grow with the number of requests."
        )


def _parts(rows: Rows) -> Iterator[Rows]:
    """Cut rows into at most `_POINTS` parts, one for each point of a curve."""
    size = max(1, -(-len(rows) // _POINTS))
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _panels(stories: Sequence[Story]) -> list[Panel]:
    """Draw the share of requests by latency; and, over time, waiting requests, decoding sequences, and blocks.

    Over time, a point is the maximum over a part of the iterations.
    """
    panels = []
    for name in ("ttft", "tpot"):
        points = []
        for story in stories:
            times_ns = sorted(row[f"{name}_ns"] for row in story.requests if present(row[f"{name}_ns"]))
            for share in range(1, 101) if times_ns else ():
                within_ms = (quantile(times_ns, share) or 0) / _NS_PER_MS
                points.append({"policy": story.policy, "within_ms": within_ms, "share": share / 100})
        title = f"share of requests by {name.upper()}"
        panels.append(Panel(title, "within [ms]", "%", points, "within_ms", "share", dense="log"))
    tiers = stories[0].tiers if stories else ()
    over_time = {"waiting": "waiting requests", "decoding": "decoding sequences"}
    over_time |= {f"used_{tier}_blocks": f"KV blocks in {tier}" for tier in tiers}
    parts = [part for story in stories for part in _parts(story.iterations)]
    starts = [{"policy": part[0]["policy"], "time_s": part[0]["start_ns"] / _NS_PER_S} for part in parts]
    for column, title in over_time.items():
        rows = [{**start, column: max(row[column] for row in part)} for start, part in zip(starts, parts, strict=True)]
        panels.append(Panel(title, "time [s]", "", rows, "time_s", column, dense="linear"))
    return panels
