"""Serving for people: the table, and what a person would say of latency, hits and waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.report.rows import ABSENT, listed, percent, present, quantity, ratio
from simulator.report.text import Column, aligned
from simulator.trace import CAUSES
from simulator.units import counted, human

Rows = Sequence[Mapping[str, Any]]
_HIT, _SHARE = ("hit_", "_fraction"), ("read_", "_hit_p50_ns")


def table(rows: Rows) -> str:
    """Write three blocks: latency; what was found and moved; how long prompts are read by what was found, and queues.

    Parameters
    ----------
    rows
        See `simulator.serving.counts.summary`.
    """
    name = Column.texts("policy", (row["policy"] for row in rows))
    latency = {f"{key}_p{p}_ns": f"{short} p{p}" for short, key in (("first token", "ttft"), ("next", "tpot"))
               for p in (50, 95)}  # fmt: skip
    hits = {f"hit_{tier}_fraction": f"hit in {tier}" for tier in _between(rows, _HIT)}
    moved = [f"moved_{link}_bytes" for link in _between(rows, ("moved_", "_bytes"))]
    shares = _shares(rows)
    reading = {f"read_{share}_hit_p50_ns": f"read at {share} %" for share in (shares if len(shares) > 1 else ())}
    return aligned(
        [
            [
                name,
                Column.texts("status", (row["status"] for row in rows)),
                Column("finished", tuple(f"{row['finished']:,} of {row['requests']:,}" for row in rows)),
                *_figures(rows, latency),
                Column("tokens/s", tuple(_rate(row["tokens_per_s"]) for row in rows)),
                *_figures(rows, {"stall_fraction": "stall"}),
            ],
            [
                name,
                *_figures(rows, {"computed_fraction": "computed", **hits}),
                *_figures(rows, dict.fromkeys((key for key in moved if any(row[key] for row in rows)), "")),
            ],
            [name, *_figures(rows, reading | dict.fromkeys(("most_waiting", "iterations", "replayed"), ""))],
        ]
    )


def _figures(rows: Rows, heads: Mapping[str, str]) -> list[Column]:
    return [Column.figure(rows, column, head) for column, head in heads.items()]


def _between(rows: Rows, ends: tuple[str, str]) -> list[str]:
    keys = [key for key in rows[0] if key.startswith(ends[0]) and key.endswith(ends[1])]
    return [key[len(ends[0]) : -len(ends[1])] for key in keys]


def _shares(rows: Rows) -> list[str]:
    return [share for share in _between(rows, _SHARE) if any(present(row[f"read_{share}_hit_p50_ns"]) for row in rows)]


def _rate(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def sentences(rows: Rows) -> list[str]:
    """Say for each policy how long people wait, what was found where and what that saved, and what is in the way.

    Parameters
    ----------
    rows
        See `simulator.serving.counts.summary`.
    """
    found = [_unanswered(rows[0])] if rows[0]["unanswered"] else []
    for row in rows:
        if row["status"] not in ("ok", *_ENDED):
            found.append(f"{row['policy']} cannot serve: {row['why']}.")
            continue
        if row["status"] in _ENDED:
            found.append(_ENDED[row["status"]](row))
        found += [said for said in (_latency(row), _hits(row), _waits(row), _queue(row)) if said]
    return [*found, *_compared([row for row in rows if row["status"] == "ok" and row["finished"]])]


def _overloaded(row: Mapping[str, Any]) -> str:
    served = f", and {_rate(row['served_per_s'])} are served" if row["served_per_s"] else ""
    return (
        f"{row['policy']} is overloaded: {_rate(row['offered_per_s'])} requests come in a second{served}; "
        f"{row['waiting_at_last']:,} of {row['requests']:,} waited when the last one came, and the run ends there."
    )


def _unfinished(row: Mapping[str, Any]) -> str:
    return (
        f"{row['policy']} is unfinished: {row['finished']:,} of {row['requests']:,} requests were served when the run "
        f"ended: {row['why']}."
    )


_ENDED = {"overloaded": _overloaded, "unfinished": _unfinished}
"""Rows that end before all requests are served: what is told is of those that were."""


def _unanswered(row: Mapping[str, Any]) -> str:
    return f"left out, as without an output token: {counted(row['unanswered'], 'request')} of the file."


def _latency(row: Mapping[str, Any]) -> str:
    if not present(row["ttft_p50_ns"]):
        return ""
    first, late = (quantity(row[f"ttft_p{p}_ns"], "ns") for p in (50, 95))
    said = f"{row['policy']}: half of the requests have their first token within {first} of sending, 95 % within {late}"
    if present(row["tpot_p50_ns"]):
        said += f"; a further token takes {quantity(row['tpot_p50_ns'], 'ns')}"
    return f"{said}, {_rate(row['tokens_per_s'])} tokens come out in a second."


def _hits(row: Mapping[str, Any]) -> str:
    tiers = [(tier, row[f"hit_{tier}_fraction"]) for tier in _between([row], _HIT)]
    there = [f"{percent(share)} in {tier}" for tier, share in tiers if share]
    if not there:
        return f"{row['policy']} finds nothing of any prompt{_no_block(row)}; all of it is computed."
    said = f"{row['policy']} finds {percent(1 - row['computed_fraction'])} of all prompt tokens: {listed(there)}"
    shares = [share for share in _between([row], _SHARE) if present(row[f"read_{share}_hit_p50_ns"])]
    if len(shares) < 2:
        return f"{said}."
    none, most = (row[f"read_{share}_hit_p50_ns"] for share in (shares[0], shares[-1]))
    times = f"{ratio(none / most)} as fast" if none >= most else f"{ratio(most / none)} as slowly"
    kinds = f"a prompt of which {shares[-1]} % were found is read {times} as one of which {shares[0]} % were"
    said = f"{said}; {kinds} ({human(most, 'ns')} and {human(none, 'ns')})"
    if row["even_bytes_per_s"]:
        said += f"; at {human(round(row['even_bytes_per_s']), 'B/s')} copying takes as long as computing"
    return f"{said}."


def _no_block(row: Mapping[str, Any]) -> str:
    """Why nothing can be found, if that is so whatever the tiers keep."""
    block, most = row["block_tokens"], row["most_shared_tokens"]
    if not most:
        return ", as prompts have no prefix in common"
    if most < block:
        return f", as a block has {block:,} tokens, and of no prompt more than {most:,} are shared"
    return ""


def _waits(row: Mapping[str, Any]) -> str:
    if not row["stall_fraction"] or row["stall_fraction"] < _SMALL:
        return f"{row['policy']} waits for less than 1 % of the time of its iterations."
    spent = {_NAMES[cause]: row[f"wait_{cause}_ns"] for cause in CAUSES} | {"stores": row["drain_ns"]}
    share, cause = percent(row["stall_fraction"]), max(spent, key=lambda cause: spent[cause])
    return f"{row['policy']} waits for {share} of the time of its iterations, most for {cause}."


_SMALL = 0.01
_NAMES = {
    **{cause: cause for cause in CAUSES},
    "capacity": "room",
    "transfer": "transfers",
    "host": "the host",
    "order": "what its plan put later",
}


def _queue(row: Mapping[str, Any]) -> str:
    if row["status"] == "ok" and row["outpaced_growth"] is not None:
        come, admitted = (_rate(row[f"outpaced_{name}_per_s"]) for name in ("come", "admitted"))
        longer = human(round(row["outpaced_growth"] * 10**9), "ns")
        return (
            f"under {row['policy']} requests come faster than they are served: of the second half of the arrivals "
            f"{come} come in a second and {admitted} are admitted, somebody always waits, and who comes a second later "
            f"waits {longer} longer, so that the latencies tell how many came."
        )
    if row["status"] != "ok" or row["waiting_at_last"] < _LONG * row["requests"]:
        return ""
    if row["offered_per_s"] is None:
        return f"all requests come at once, so that the latencies under {row['policy']} tell how many they are."
    waited = counted(row["waiting_at_last"], "request")
    return f"{row['policy']} falls behind: {waited} of {row['requests']:,} waited when the last one came."


_LONG = 0.1
"""A queue of this share of all requests when the last one comes is told."""


def _compared(rows: Rows) -> list[str]:
    """Say how much later the others are than the first, on average."""
    if len(rows) < 2:
        return []
    best = min(rows, key=lambda row: row["ttft_mean_ns"])
    others = [row for row in rows if row["ttft_mean_ns"] > best["ttft_mean_ns"] * (1 + _SMALL)]
    if not others:
        return [
            f"on average, first tokens come within 1 % as soon under {listed([str(row['policy']) for row in rows])}."
        ]
    later = [f"{ratio(row['ttft_mean_ns'] / best['ttft_mean_ns'])} under {row['policy']}" for row in others]
    soonest = f"first tokens come soonest under {best['policy']}, after {human(best['ttft_mean_ns'], 'ns')} on average"
    return [f"{soonest}; {listed(later)}."]
