"""The figures of a row, each registered once: its column, unit, heading and meaning, and which way is worse.

Tables, CSV, JSON, expectations, `hosim diff` and the report ask this registry; no other module spells a column's unit.
``<>`` in a column stands for a place: a cause of a wait, or a tier, a link, a bus or the compute tier of the machine. A
table whose columns are no figures of a row brings figures of its own; no unit is guessed from a name.

Symbols of the meanings: ``n`` steps; ``E_k`` the end of the last compute of step ``k`` on the main stream (the stream
whose last compute ends last; stream 0 where ranks meet, or ops name streams), ``E_0 = 0``; ``M`` the last end of
anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Literal, get_args

from simulator.errors import InvariantError, insist
from simulator.hardware import Hardware
from simulator.trace import CAUSES

Unit = Literal["ns", "B", "share", "times", "count", "per s", "text", "J", "USD", "years"]
Over = Literal[
    "", "cause", "tier", "link", "bus", "compute tier", "host", "field", "energy", "price", "worn tier", "process",
    "loads", "finite tier",
]  # fmt: skip
Of = Literal["run", "rank", "ranks", "chosen", "bound", "addresses", "table", "served", "cost", "real"]
OverRanks = Literal["slowest", "sum", "most"]
_ENDS: Mapping[str, Unit] = {"_ns": "ns", "_bytes": "B", "_fraction": "share"}
"""What the columns of registered figures of these units alone end in."""
_COLUMN = re.compile("[a-z][a-z0-9_]*(<>[a-z0-9_]*)?")
_ONE = ("", "host", "energy", "price")
"""What a figure is over that has no places, so that there is one column at most."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a row, or a column of another table.

    Attributes
    ----------
    column, unit, head
        Its column in a summary, its unit there (``share``: of 1; ``times``: a multiple), and its heading in tables.
    meaning
        Its definition, in a sentence; empty outside the registry.
    of
        Which rows have it: every ``run``; each ``rank``, and so each job, that ran to its end; jobs of several
        ``ranks``; rows whose dynamic reads have ``chosen``; rows whose ``bound`` is known; rows whose places have
        ``addresses``; rows of a ``table`` with others; what is ``served``; rows that ran on a machine that states a
        ``cost``; rows held against ``real`` steps.
    over
        The kind of thing with a figure for each; for ``energy``, ``price`` and the ``host``, one figure if the machine
        states any.
    worse
        Which change of it is worse, if any is.
    is_compared
        Whether `hosim diff` compares it, besides the step and what that is spent on.
    over_ranks
        The figure of a job of several ranks: that of the ``slowest``, the ``sum`` of all, or the ``most`` of any.
    """

    column: str
    unit: Unit
    head: str
    meaning: str = ""
    of: Of = "rank"
    over: Over = ""
    worse: Literal["", "more", "less"] = ""
    is_compared: bool = False
    over_ranks: OverRanks = "slowest"

    @cache  # noqa: B019 - figures are registered, and live as long as the process
    def at(self, place: str) -> Figure:
        """Return the figure of one place."""
        shown = place.replace("_", " ") if self.over == "cause" else place
        return replace(self, column=self.column.replace("<>", place), head=self.head.replace("<>", shown))

    def headed(self, head: str) -> Figure:
        """Return it with another heading."""
        return replace(self, head=head)

    def place_in(self, column: str) -> str | None:
        """Return the place in a column's name; empty if the figure has none, None if the column is another figure's."""
        before, has_place, after = self.column.partition("<>")
        if not has_place:
            return "" if column == self.column else None
        fits = column.startswith(before) and column.endswith(after) and len(column) > len(before) + len(after)
        place = column[len(before) : len(column) - len(after)]
        return place if fits and (self.over != "cause" or place in (*CAUSES, "<>")) else None


def registered(*figures: Figure) -> tuple[Figure, ...]:
    """Return figures for a registry, each of which its own column leads to.

    Raises
    ------
    InvariantError
        If a column ends in another unit than its figure's, an earlier figure has it, or one of another unit that it
        fits, or no place makes it a name.
    """
    for index, figure in enumerate(figures):
        column = figure.column
        if not _COLUMN.fullmatch(column) or ("<>" in column) == (figure.over in _ONE):
            must = "a column is a word in small letters, with one <> in it where a figure is over places, else none"
            raise InvariantError(
                repr(column), must, f"over {figure.over or 'nothing'}", "write for example moved_<>_bytes"
            )
        first = next(other for other in figures[: index + 1] if other.place_in(column) is not None)
        others = (other for other in figures[:index] if other.unit != figure.unit)
        first = next((other for other in others if figure.place_in(other.column) is not None), first)
        unit = next((unit for end, unit in _ENDS.items() if column.endswith(end)), figure.unit)
        found = f"one that {first.column} fits" if unit == figure.unit else f"a column of {figure.unit}"
        if first is not figure or unit != figure.unit:
            must, do = "a figure has a column of its own, which ends in no other unit", "rename the column"
            raise InvariantError(column, must, found, do)
    return figures


FIGURES = registered(
    Figure("status", "text", "status", "`ok`, or why the row did not run to its end.", of="run"),
    Figure("step_ns", "ns", "step", "`E_n - E_(n-1)`, or `M` of a run of one step.", of="run", worse="more"),
    Figure("tokens_per_s", "per s", "tokens/s", "Tokens that all ranks train on, read or add in a step, by `step_ns`.",
           worse="less"),
    Figure("samples_per_s", "per s", "samples/s", "Sequences that all ranks train on or read in a step, by `step_ns`.",
           worse="less"),
    Figure("tflops", "per s", "TFLOP/s", "Arithmetic of the model in a step by `step_ns`, of a rank on average. Each "
           "op of the accelerator counts once, elementwise ops and recompute not; attention as its kernels compute "
           "it. Of `hosim serve`: of all iterations, by the time in which some sequence runs."),
    Figure("mfu", "share", "MFU", "Model FLOPs utilisation: the time that this arithmetic takes at the device's peak "
           "for its data types, as a share of the step (PaLM, arXiv 2204.02311, appendix B)."),
    Figure("makespan_ns", "ns", "makespan", "`M`, the last end of anything.", of="run", worse="more"),
    Figure("warmup_ns", "ns", "warm-up", "`E_(n-1)`: the time before the measured step."),
    Figure("compute_ns", "ns", "compute", "First runs of ops on the main stream in the measured step."),
    Figure("recompute_ns", "ns", "recompute", "Further runs of ops on the main stream in the measured step."),
    Figure("delay_ns", "ns", "delay", "Delays on the main stream in the measured step: its ops that compute nothing."),
    Figure("stall_ns", "ns", "stall", "The sum of the waits of the main stream in the measured step."),
    Figure("wait_<>_ns", "ns", "<>", "Waits of the main stream with this root cause.", over="cause"),
    Figure("host_compute_ns", "ns", "on the host", "Time of the step with an op of the host of the main stream's rank "
           "under way.", over="host"),
    Figure("drain_ns", "ns", "drain", "`M - E_n` in a run of one step, which counts it; else 0."),
    Figure("transfer_ns", "ns", "transfer", "Time of the step with a transfer of the main stream's rank under way."),
    Figure("exposed_transfer_ns", "ns", "exposed", "The part of `transfer_ns` under a stall of any cause."),
    Figure("hidden_fraction", "share", "overlapped", "The share of `transfer_ns` under which compute runs."),
    Figure("busy_<>_ns", "ns", "busy <>", "Time of the step with a transfer of the rank on the link.", over="link"),
    Figure("exposed_<>_ns", "ns", "exposed <>", "The part of `busy_<link>_ns` under a stall.", over="link"),
    Figure("peak_reserved_<>_bytes", "B", "reserved <>", "The most that the allocator ever kept, in use or not.",
           of="addresses", over="compute tier", worse="more", is_compared=True, over_ranks="most"),
    Figure("peak_<>_bytes", "B", "peak <>", "The most that the fullest instance of the tier ever held.",
           of="run", over="tier", worse="more", is_compared=True),
    Figure("process_<>_bytes", "B", "process <>", "The peak as a driver shows it: `peak_<tier>_bytes` with losses "
           "beside it, or where places have addresses `peak_reserved_<tier>_bytes`; and reserved memory.", of="run",
           over="process", worse="more", over_ranks="most"),
    Figure("in_use_<>_fraction", "share", "in use <>", "Use of the tier, losses and reserved memory included, on "
           "average over the measured step and its instances, as a share of its capacity.", over="finite tier"),
    Figure("peak_in_use_<>_fraction", "share", "peak in use <>", "`peak_<tier>_bytes`, likewise as a share of the "
           "capacity.", over="finite tier"),
    Figure("moved_<>_bytes", "B", "moved <>", "Bytes of transfers issued in the measured step (staged ones on each "
           "link on their way) and of loads by kernels; of several ranks the sum.", over="link", is_compared=True,
           over_ranks="sum"),
    Figure("loaded_<>_bytes", "B", "loaded <>", "The part of this that kernels loaded, reading in place. A load is no "
           "transfer: it lengthens the compute.", over="loads", over_ranks="sum"),
    Figure("chosen_hit_fraction", "share", "hit of chosen", "Hit rate of dynamic reads, such as experts: the share of "
           "the tensors chosen in the step that were in the compute tier, or on their way, when the choice became "
           "known.", of="chosen"),
    Figure("bound_ns", "ns", "bound", "A lower bound on the step of every plan.", of="bound"),
    Figure("bounded_by", "text", "bounded by", "The reason of that bound.", of="bound"),
    Figure("order_bound_ns", "ns", "order bound", "A lower bound on the step with any order of the ops: the work of "
           "the busiest stream and, of a single step, the longest path. Of rows with `order: mpmd`.", of="bound"),
    Figure("gap_fraction", "share", "gap at most", "The most by which the step exceeds the best plan: `step_ns / "
           "bound_ns - 1`; for a bound of the mean step, `makespan_ns / (steps * bound_ns) - 1`.", of="bound"),
    Figure("paced_by", "text", "paced by", "The resource that is busy, or waited for, most of the step: it selects "
           "the published measurements of such steps. Kernels include issuing and meeting; for `measured kernels`, "
           "whose time the graph states, there are none.", of="real"),
    Figure("real_low_ns", "ns", "real step from", "`step_ns` times the first decile of the ratios of real to predicted "
           "time in published measurements of such steps, each record with the same weight.", of="real"),
    Figure("real_high_ns", "ns", "real step to", "The same with the ninth decile: 80 % of the measurements lie between "
           "the two.", of="real"),
    Figure("ranks", "count", "ranks", "The number of ranks.", of="ranks"),
    Figure("slowest_rank", "count", "slowest rank", "The rank with the longest step; of more than four steps, with the "
           "longest of what is the shortest in the last half; of equals the one that waits least for peers, as others "
           "wait for it. The times of the row are its own.", of="ranks"),
    Figure("least_step_ns", "ns", "least step", "The shortest step of the ranks that meet the slowest one, directly or "
           "over others, and run as many steps; of more than four, by the mean of the last half. The same as `step_ns` "
           "once they have settled.", of="ranks"),
    Figure("period", "count", "period", "The number of steps after which those of all ranks that meet repeat, where "
           "they alternate, and the run has two periods.", of="ranks"),
    Figure("period_ns", "ns", "time of a period", "The time of so many steps: so many times the mean.", of="ranks"),
    Figure("collective_ns", "ns", "collectives", "Time of the step with a collective of the rank under way.",
           of="ranks"),
    Figure("collective_fraction", "share", "share of collectives", "Masked or not: `collective_ns` by `step_ns`.",
           of="ranks"),
    Figure("communication_fraction", "share", "communication", "Communication that is not masked: waits of the "
           "slowest rank for peers and collectives (`wait_peer_ns`, `wait_collective_ns`) as a share of `step_ns`.",
           of="ranks"),
    Figure("masked_fraction", "share", "masked", "The share of `collective_ns`, over all ranks, under compute.",
           of="ranks"),
    Figure("utilisation", "share", "utilisation", "Compute over all ranks as a share of `ranks * step_ns`.",
           of="ranks"),
    Figure("bubble_fraction", "share", "bubble", "Waits for peers over all ranks as a share of `ranks * step_ns`.",
           of="ranks"),
    Figure("crowding_<>", "times", "crowding of <>", "The time of transfers over the link, by their time alone.",
           of="ranks", over="link"),
    Figure("pulling_<>", "count", "pulling on <>", "The most transfers at once on an instance of a shared bus.",
           of="ranks", over="bus"),
    Figure("demand_<>", "times", "asked of <>", "The most bandwidth that they asked for, as a multiple of the bus's.",
           of="ranks", over="bus"),
    Figure("compactions", "count", "compactions", "Compactions asked for in the measured step.",
           of="addresses", is_compared=True),
    Figure("least_peak_bytes", "B", "least peak", "A lower bound on the peak in the compute tier of every plan with a "
           "step as short.", of="bound"),
    Figure("energy_j", "J", "energy", "Energy of all ranks in a step: power while it lasts, and that of each operation "
           "and each byte.", of="cost", over="energy", worse="more", is_compared=True, over_ranks="sum"),
    Figure("energy_per_token_j", "J", "energy/token", "`energy_j` by the tokens of a step.", of="cost", over="energy"),
    Figure("step_usd", "USD", "cost", "The price of all devices, and of the memory held at the peak, while a step "
           "lasts.", of="cost", over="price", worse="more", is_compared=True),
    Figure("usd_per_million_tokens", "USD", "cost/1M tokens", "`step_usd` by the millions of tokens of a step.",
           of="cost", over="price"),
    Figure("life_<>_years", "years", "life of <>", "Life of the tier if such steps write to it one after another.",
           of="cost", over="worn tier", worse="less", is_compared=True),
    Figure("slowdown_vs_fastest", "times", "vs fastest", "`step_ns` by that of the fastest row.", of="table"),
    Figure("slowdown_vs_compute", "times", "vs compute", "`step_ns` by that of all computes and delays.", of="table"),
    Figure("short_bytes", "B", "short by", "The memory that the row lacks, if it does not fit.", of="table",
           is_compared=True),
    Figure("at_<>_slowdown", "times", "slowdown at <>", "`step_ns` there by that of the row that it is compared with.",
           of="table", over="field", is_compared=True),
    Figure("at_<>_step_ns", "ns", "step at <>", "`step_ns` there.", of="table", over="field"),
    Figure("at_<>_bytes", "B", "at <>", "The peak of the compute tier there: `at_<>_peak_<tier>_bytes`.", of="table",
           over="field"),
    Figure("largest_<>", "count", "largest <>", "The largest value of the field with which the row fits.",
           of="table", over="field", is_compared=True),
)  # fmt: skip
"""All figures, in the order of a summary."""


_AT = {
    "p50": "half of the requests", "p90": "90 of 100 requests", "p95": "95 of 100 requests",
    "p99": "99 of 100 requests",
}  # fmt: skip
LATENCIES = {
    "ttft": ("TTFT", "From the arrival, with the wait in the queue, to the end of the iteration of the first token"),
    "tpot": ("TPOT", "Time of each output token after the first, of requests with several"),
    "e2e": ("E2E", "End-to-end latency, from the arrival to the last token"),
}  # fmt: skip
"""The latencies of a request: heading and meaning."""
PREEMPTED = ("preemptions", "preempted_ns", "recomputed_tokens", "reloaded_tokens")
"""What interrupting requests takes, of each request and of all."""
SERVED = registered(
    Figure("requests", "count", "requests", "Requests that came.", of="served"),
    Figure("finished", "count", "finished", "Requests that had their last token.", of="served", worse="less"),
    *(Figure(f"{name}_{at}_ns", "ns", f"{head} {at}", f"{meaning}; {who} take at most this (nearest rank).",
             of="served", worse="more") for name, (head, meaning) in LATENCIES.items() for at, who in _AT.items()),
    *(Figure(f"{name}_mean_ns", "ns", f"{head} mean", f"{meaning}; the mean.", of="served", worse="more")
      for name, (head, meaning) in LATENCIES.items()),
    Figure("waited_p50_ns", "ns", "waited p50", "From arrival to admission; half of the requests take at most this.",
           of="served"),
    Figure("tokens_per_s", "per s", "tokens/s", "Output tokens by the time until the last one.", of="served",
           worse="less"),
    Figure("total_tokens_per_s", "per s", "all tokens/s", "Tokens of the prompts that were read or found, and output "
           "tokens, by the same time.", of="served", worse="less"),
    Figure("goodput_per_s", "per s", "goodput/s", "Requests that meet every objective of `slo`, by the same time; one "
           "with a single output token has no TPOT to meet.", of="served", worse="less"),
    Figure("goodput_fraction", "share", "goodput", "The share of all requests that meet every objective of `slo`.",
           of="served", worse="less"),
    Figure("prompt_tokens", "count", "prompt tokens", "Tokens of the prompts of admitted requests.", of="served"),
    Figure("computed_fraction", "share", "computed", "The share of prompt tokens that were computed; the others were "
           "found.", of="served"),
    Figure("hit_<>_fraction", "share", "hit in <>", "The share of prompt tokens that were found in the tier.",
           of="served", over="tier"),
    Figure("read_<>_hit_p50_ns", "ns", "read at <> %", "From admission to the first token, for prompts of which 0, 25, "
           "50, 75 or 100 % were found (the nearest of these).", of="served", over="field"),
    Figure("even_bytes_per_s", "count", "even at", "Rate [B/s] at which the KV cache of the prompts of which nothing "
           "was found takes as long to copy as it took from their admission to their first token.", of="served"),
    Figure("preemptions", "count", "preemptions", "How often requests were interrupted, as no KV block was left for an "
           "answer.", of="served", worse="more"),
    Figure("preempted_ns", "ns", "preempted", "Time from interruptions until the request was admitted again, in all.",
           of="served", worse="more"),
    Figure("recomputed_tokens", "count", "recomputed", "Tokens that were cached before an interruption and computed "
           "again.", of="served", worse="more"),
    Figure("reloaded_tokens", "count", "reloaded", "Tokens that were cached before an interruption and copied in again "
           "from a tier below.", of="served", worse="more"),
    Figure("stall_fraction", "share", "stall", "The share of the busy time that no op ran.", of="served", worse="more"),
    Figure("end_ns", "ns", "end", "End of the last iteration.", of="served"),
    Figure("iterations", "count", "iterations", "Iterations of the scheduler.", of="served"),
    Figure("replayed", "count", "replayed", "How many of them the engine replayed; the others were of their classes.",
           of="served"),
    Figure("most_waiting", "count", "most waiting", "The most requests that waited after an iteration had begun.",
           of="served"),
    Figure("waiting_at_last", "count", "waiting at last", "Requests that waited when the last one came.", of="served"),
    Figure("offered_per_s", "per s", "offered/s", "Requests that came, by the time in which they came.", of="served"),
    Figure("served_per_s", "per s", "served/s", "Requests that left, by the time of iterations in which some sequence "
           "runs.", of="served"),
    Figure("unanswered", "count", "unanswered", "Requests of the file without a prompt or an output token.",
           of="served"),
)  # fmt: skip
"""Figures of what `hosim serve` serves; `tflops`, `mfu`, waits, `drain_ns` and what links moved stand above."""


def local(**heads: Iterable[str]) -> dict[str, Figure]:
    """Return figures of a table of its own by column, by unit: the words of the heading, and the end of the unit."""
    ends, by_column = {unit: end for end, unit in _ENDS.items()}, dict[str, Figure]()
    for unit in get_args(Unit):
        for head in heads.get(unit, ()):
            column = head.replace(" ", "_") + ends.get(unit, "")
            by_column[column] = Figure(column, unit, head)
    return by_column


_OTHERS = (*SERVED, *local(text=("policy", "notes", "remarks", "short at")).values())
PLAIN: Mapping[str, Figure] = {
    figure.at(place).column: figure.at(place)
    for figure in reversed((*FIGURES, *_OTHERS))
    for place in {"": ("",), "cause": CAUSES}.get(figure.over if "<>" in figure.column else "", ())
}
"""Column -> its figure, of those that are the same on every machine."""


@cache
def figure_of(column: str) -> Figure:
    """Return the registered figure of a column of a row, whatever machine it ran on; of any other, a plain number."""
    places = ((figure, figure.place_in(column)) for figure in (*FIGURES, *_OTHERS))
    return next((figure.at(place) for figure, place in places if place is not None), Figure(column, "count", column))


def causes(hardware: Hardware) -> tuple[str, ...]:
    """Return the causes that a wait may have on a machine: none waits for a host that does not compute."""
    return tuple(cause for cause in CAUSES if hardware.host_compute or cause != "host_compute")


def columns(hardware: Hardware, of: Iterable[Of] = get_args(Of)) -> dict[str, Figure]:
    """Return the columns of a row on a machine with their figures, in the order of a summary.

    Parameters
    ----------
    hardware
        Its tiers, links and caps are the places of figures.
    of
        The kinds of figures.

    Raises
    ------
    ConfigError
        If a name of the machine gives two figures the same column.
    """
    places: Mapping[str, Iterable[str]] = {
        "": ("",),
        "cause": causes(hardware),
        "tier": hardware.tier_names,
        "link": hardware.link_names,
        "bus": hardware.caps,
        "compute tier": (hardware.compute_tier,),
        "host": ("",) if hardware.host_compute else (),
        "field": (),
        "energy": ("",) if hardware.states_energy else (),
        "price": ("",) if hardware.states_prices else (),
        "process": [name for name, tier in hardware.tiers.items() if tier.holds_more],
        "loads": [name for name, link in hardware.links.items() if link.loads_bytes_per_s is not None],
        "finite tier": [name for name, tier in hardware.tiers.items() if tier.capacity_bytes not in (0, inf)],
        "worn tier": [name for name, tier in hardware.tiers.items() if tier.endurance_bytes is not None],
    }
    by_column = dict[str, Figure]()
    must, do = "a name gives no two figures the same column", "rename it"
    for figure in [each for each in FIGURES if each.of in of]:
        for place in places[figure.over]:
            on, where = figure.at(place), f"{hardware.name}, {figure.over} {place!r}"
            insist(on.column not in by_column, where, must, f"{on.column} twice", do)
            by_column[on.column] = on
    return by_column


def asked(columns: Iterable[str]) -> dict[str, Figure]:
    """Return the figures of those columns that are about a field which was searched."""
    pairs = [(column, figure) for column in columns for figure in FIGURES if figure.over == "field"]
    places = ((column, figure, figure.place_in(column)) for column, figure in reversed(pairs))
    return {column: figure.at(place) for column, figure, place in places if place is not None}


def present(value: object) -> bool:
    """Tell whether there is a number (or text) to show: neither None nor NaN."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))
