"""Counts the row of figures of one rank's run, and the costs of its step in energy, money and wear.

*Costs.* Powers and prices are paid as long as the step lasts, whatever runs; energies of operations and bytes are paid
on top. A figure that the machine does not state costs nothing, and a kind of cost without any stated figure is not
counted. Steps are assumed to follow one another without a pause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from simulator.bounds import Bound
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.metrics.figures import causes, columns
from simulator.metrics.steps import RankRun, numbered
from simulator.plan import COMPUTE, COPY
from simulator.trace import CAUSES, Block, Bools, Ints, Trace, busy, pick, tuples

Stretches = tuple[Ints, Ints]
"""Starts and ends of stretches of time [ns]."""

_HOUR_NS = 3_600 * 10**9
_MONTH_NS = 730 * _HOUR_NS
"""A month of 730 h, a twelfth of a year of 365 days, as in price lists."""
_YEAR_NS = 8_766 * _HOUR_NS
"""A year of 365.25 days."""


def rank_figures(graph: Graph, hardware: Hardware, ran: RankRun, bound: Bound | None = None) -> dict[str, Any]:
    """Count the figures of the run of one rank.

    Parameters
    ----------
    graph, hardware, ran
        The graph, the machine and the run.
    bound
        The step that no plan can beat, if known.

    Returns
    -------
    dict
        The figures of a rank by column (`simulator.metrics.figures`); of a run that did not end, all but status,
        makespan and peaks are None. A collective on the main stream counts as a wait. If ranks begin in turn, step
        ``n`` is the last step that ended while all of them were at work. Exactly,
        ``compute_ns + recompute_ns + delay_ns + stall_ns + drain_ns = step_ns``.
    """
    trace, window = ran.trace, None
    row: dict[str, Any] = dict.fromkeys(columns(hardware, ("run", "rank")))
    row |= tried_figures(graph, hardware, ran)
    if trace.status == "ok":
        window = measured(graph, ran)
        row |= flop_rates([(graph.arithmetic, 1)], hardware, row["step_ns"])
        row |= _transfer_figures(hardware, trace, window) | _traffic_figures(graph, hardware, trace, window)
        if hardware.states_energy:
            spans = trace.spans.whole()
            computes = pick(spans, is_issued(spans, window) & (spans["kind"] == COMPUTE))
            row["energy_j"] = energy_j(graph, hardware, computes, row)
    return row | allocator_figures(hardware, trace, window) | bound_figures(row["step_ns"], bound)


def tried_figures(graph: Graph, hardware: Hardware, ran: RankRun) -> dict[str, Any]:
    """Count what a policy learns of a plan that it tries: its status, times, waits and peaks.

    Parameters
    ----------
    graph, hardware, ran
        As for `rank_figures`, of whose figures these are some.
    """
    trace = ran.trace
    row = {"status": trace.status, "makespan_ns": ran.makespan_ns, **peak_figures(hardware, ran.peaks_bytes)}
    if trace.status != "ok":
        return row | {"step_ns": None}
    window = measured(graph, ran)
    spans, waits = trace.spans.whole(), _waits(trace, window)
    took, again = spans["end_ns"] - spans["start_ns"], numbered(ran.starts, trace)[0]["run"] > 1
    meets, idles = is_collective(graph, trace), (spans["kind"] == COMPUTE) & np.isin(spans["item"], [*graph.delays])
    on_main_stream = (spans["kind"] == COMPUTE) & (spans["track"] == window.stream)
    on_main_stream &= (spans["start_ns"] >= window.start_ns) & (spans["end_ns"] <= window.end_ns)
    by_cause = np.zeros(len(CAUSES), np.int64)
    np.add.at(by_cause, waits["cause"], waits["end_ns"] - waits["start_ns"])
    by_cause[CAUSES.index("collective")] += took[on_main_stream & meets].sum()
    return row | {
        "step_ns": window.end_ns - window.start_ns,
        "warmup_ns": window.start_ns,
        "compute_ns": int(took[on_main_stream & ~meets & ~idles & ~again].sum()),
        "recompute_ns": int(took[on_main_stream & ~meets & ~idles & again].sum()),
        "delay_ns": int(took[on_main_stream & idles].sum()),
        "stall_ns": int(by_cause.sum()),
        **{f"wait_{cause}_ns": int(by_cause[CAUSES.index(cause)]) for cause in causes(hardware)},
        **({"host_compute_ns": union_ns(*_on_host(graph, spans), window[-2:])} if hardware.host_compute else {}),
        "drain_ns": window.end_ns - max(window.start_ns, int(spans["end_ns"][on_main_stream].max(initial=0))),
    }


def flop_rates(
    computed: Iterable[tuple[Mapping[str, int], int]], hardware: Hardware, step_ns: int
) -> dict[str, float | None]:
    """Compute the rate of a step's arithmetic, and its share of the peak.

    Parameters
    ----------
    computed
        For each graph its arithmetic by data type (`Graph.arithmetic`), and the number of its ranks.
    hardware
        The machine; each rank has one device.
    step_ns
        The step [ns].
    """
    flops, ranks = Counter[str](), 0
    for arithmetic, times in computed:
        ranks += times
        flops.update({dtype: times * flop for dtype, flop in arithmetic.items()})
    if not flops.total() or not step_ns:
        return {"tflops": None, "mfu": None}
    device_s, peaks = ranks * step_ns / 1e9, hardware.compute.peak_flops
    at_peak_s = sum(flop / peaks[dtype] for dtype, flop in flops.items()) if flops.keys() <= peaks.keys() else None
    return {"tflops": flops.total() / device_s / 1e12, "mfu": at_peak_s and at_peak_s / device_s}


def per_second(step_ns: int | None, **handled: int | None) -> dict[str, float | None]:
    """Compute rates from counts of a step: ``tokens_per_s`` from ``tokens``; None if the count is unknown.

    Parameters
    ----------
    step_ns
        The step [ns].
    handled
        By name, how many all ranks handle in a step.
    """
    return {f"{name}_per_s": count * 1e9 / step_ns if count and step_ns else None for name, count in handled.items()}


class Window(NamedTuple):
    """The measured step of the main stream.

    Attributes
    ----------
    first_issue, next_issue
        Issue numbers of its first action, and of the first one after it.
    start_ns, end_ns
        ``E_(n-1)``, and ``E_n`` (or ``M`` in a run of one step).
    """

    stream: int
    first_issue: int
    next_issue: int
    start_ns: int
    end_ns: int


_NEVER = 2**62
"""An issue number above all others."""


def measured(graph: Graph, ran: RankRun) -> Window:
    """Find the measured step of the main stream."""
    by_stream = ran.ends_ns
    if not by_stream:
        return Window(0, 0, _NEVER, 0, ran.makespan_ns)
    has_line = graph.meets or any(op.stream for op in graph.ops)
    main = min(by_stream) if has_line else max(by_stream, key=lambda stream: (by_stream[stream].max(), -stream))
    if graph.steps == 1:
        return Window(main, ran.starts[-1], _NEVER, 0, ran.makespan_ns)
    ends, until_ns = np.maximum.accumulate(by_stream[main]), ran.trace.until_ns
    # The last step after the first that ended while all ranks were at work; the last of all if none did.
    at_work = len(ends) if until_ns is None else int(np.searchsorted(ends, until_ns, "right"))
    last = (at_work if at_work > 1 else len(ends)) - 1
    after = ran.starts[last + 1] if last + 1 < len(ran.starts) else _NEVER
    return Window(main, ran.starts[last], after, int(ends[last - 1]), int(ends[last]))


def _on_host(graph: Graph, spans: Block) -> Stretches:
    """Return the starts and ends of the ops of the host [ns]."""
    on_host = (spans["kind"] == COMPUTE) & np.isin(spans["item"], list(graph.on_host))
    return spans["start_ns"][on_host], spans["end_ns"][on_host]


def _transfer_figures(hardware: Hardware, trace: Trace, window: Window) -> dict[str, Any]:
    """Count how long transfers are under way, on any link and on each, and how much of that is in stalls."""
    spans, waits, within = trace.spans.whole(), _waits(trace, window), (window.start_ns, window.end_ns)
    copies = (spans["kind"] == COPY) & (spans["end_ns"] > window.start_ns)

    def carried(flags: Bools) -> tuple[int, int]:
        stretches = spans["start_ns"][flags], spans["end_ns"][flags]
        return exposed_ns(stretches, (waits["start_ns"], waits["end_ns"]), within) if flags.any() else (0, 0)

    transfer, exposed = carried(copies)
    figures: dict[str, Any] = {"transfer_ns": transfer, "exposed_transfer_ns": exposed}
    figures["hidden_fraction"] = 1 - exposed / transfer if transfer else None
    for link, name in enumerate(hardware.link_names):
        figures[f"busy_{name}_ns"], figures[f"exposed_{name}_ns"] = carried(copies & (spans["track"] == link))
    return figures


def exposed_ns(carried: Stretches, waits: Stretches, window: tuple[int, int]) -> tuple[int, int]:
    """Count how long transfers are under way in a window, and how much of that is in waits [ns].

    Parameters
    ----------
    carried, waits
        Starts and ends of the transfers, and of the waits [ns].
    window
        Start and end of the window [ns].
    """
    starts, ends = (np.concatenate(both) for both in zip(carried, waits, strict=True))
    busy = union_ns(*carried, window)
    return busy, busy + union_ns(*waits, window) - union_ns(starts, ends, window)


def _waits(trace: Trace, window: Window) -> Block:
    """Return the waits of the main stream in the measured step."""
    waits = trace.waits.whole()
    within = (waits["start_ns"] >= window.start_ns) & (waits["end_ns"] <= window.end_ns)
    return pick(waits, within & (waits["stream"] == window.stream))


def waits_by_place(graph: Graph, ran: RankRun) -> dict[tuple[int, int], int]:
    """Add up the waits of the main stream of one rank in the measured step, by cause and place.

    Parameters
    ----------
    graph, ran
        The graph, and its run, whose status is ``ok``.

    Returns
    -------
    dict
        Columns ``cause`` and ``on`` of the waits -> time [ns]. A collective on the main stream is no wait here.
    """
    waited_ns: Counter[tuple[int, int]] = Counter()
    waits = _waits(ran.trace, measured(graph, ran))
    for cause, on, start, end in tuples(waits, "cause", "on", "start_ns", "end_ns"):
        waited_ns[cause, on] += end - start
    return dict(waited_ns)


def is_collective(graph: Graph, trace: Trace) -> Bools:
    """Flag the spans that are collectives."""
    spans, meets = trace.spans.whole(), np.array([op.collective is not None for op in graph.ops] or [False])
    is_compute = spans["kind"] == COMPUTE
    return np.asarray(is_compute & meets[np.where(is_compute, spans["item"], 0)])


def union_ns(start: Ints, end: Ints, window: tuple[int, int]) -> int:
    """Count the time in the window with at least one of the stretches under way [ns]."""
    start, end = np.clip(start, *window), np.clip(end, *window)
    order, first, until = busy(np.zeros_like(start), start, end, joins=True)
    return int((until - start[order][first]).sum())


def is_issued(spans: Block, window: Window) -> Bools:
    """Flag the spans that were issued in the measured step."""
    return np.asarray((spans["issue"] >= window.first_issue) & (spans["issue"] < window.next_issue))


def _traffic_figures(graph: Graph, hardware: Hardware, trace: Trace, window: Window) -> dict[str, int]:
    spans, sizes = trace.spans.whole(), np.array([t.size_bytes for t in graph.tensors] or [0], np.int64)
    is_measured = is_issued(spans, window) & (spans["kind"] == COPY)
    total = np.zeros(len(hardware.links), np.int64)
    np.add.at(total, spans["track"][is_measured], sizes[spans["item"][is_measured]])
    rows, loaded = trace.loads.whole(), np.zeros_like(total)
    np.add.at(loaded, rows["link"], rows["size_bytes"] * is_issued(rows, window))
    loads = zip(hardware.links.items(), loaded.tolist(), strict=True)
    figures = {f"loaded_{name}_bytes": size for (name, link), size in loads if link.loads_bytes_per_s is not None}
    moved = dict(zip(hardware.link_names, (total + loaded).tolist(), strict=True))
    passing = {name: hardware.passing((name,)).items() for name in moved}
    of_links = {f"moved_{name}_bytes": sum(times * moved[link] for link, times in passing[name]) for name in moved}
    return of_links | figures


def peak_figures(hardware: Hardware, peaks_bytes: Mapping[str, int]) -> dict[str, int]:
    """Count the peak of each tier, and where something is reserved or lost, what a driver shows of it [B]."""
    peaks = {f"peak_{name}_bytes": size for name, size in peaks_bytes.items()}
    tiers = {name: hardware.tiers[name] for name in peaks_bytes if hardware.tiers[name].holds_more}
    return peaks | {f"process_{name}_bytes": tier.held_bytes(peaks_bytes[name]) for name, tier in tiers.items()}


def allocator_figures(hardware: Hardware, trace: Trace, window: Window | None) -> dict[str, Any]:
    """Count compactions and the peak reserved in the compute tier, which a driver shows; none without addresses.

    Parameters
    ----------
    hardware, trace
        The machine and the trace.
    window
        The measured step; None if there is none.
    """
    if not len(trace.reserved):
        return {}
    events = trace.compactions.whole()
    asked = events["asked_ns"][events["is_remap"] == 1]
    count = int(np.count_nonzero((asked >= window.start_ns) & (asked < window.end_ns))) if window else None
    most, name = int(trace.reserved.whole()["reserved_bytes"].max()), hardware.compute_tier
    tier = hardware.tiers[name]
    shown = {f"process_{name}_bytes": most + tier.reserved_bytes} if tier.holds_more else {}
    return {"compactions": count, f"peak_reserved_{name}_bytes": most} | shown


def bound_figures(step_ns: int | None, bound: Bound | None) -> dict[str, Any]:
    """Return the columns of the bound, if there is one."""
    if bound is None:
        return {}
    gap = step_ns / bound.ns - 1 if step_ns is not None and bound.ns else None
    return {"bound_ns": bound.ns, "bounded_by": bound.kind, "gap_fraction": gap}


def energy_j(graph: Graph, hardware: Hardware, computes: Block, row: Mapping[str, Any]) -> float:
    """Count the energy of a step of one rank, but for what its host computes [J].

    Parameters
    ----------
    graph, hardware
        The graph and the machine.
    computes
        Spans of the step's computes; an op that runs again counts again; what dynamic reads choose does not count.
    row
        Figures of the step: its time, and the bytes that links moved.
    """
    times = np.bincount(computes["item"], minlength=len(graph.ops))
    times[list(graph.on_host)] = 0
    flops = sum(often * op.flops for often, op in zip(times.tolist(), graph.ops, strict=True))
    touched = sum(often * (op.read_bytes + op.write_bytes) for often, op in zip(times.tolist(), graph.ops, strict=True))
    touched = max(0, touched - sum(row.get(f"loaded_{name}_bytes", 0) for name in hardware.links))
    compute, memory = hardware.compute, hardware.tiers[hardware.compute_tier]
    fj = flops * (compute.energy_fj_per_flop or 0) + touched * (memory.energy_fj_per_byte or 0)
    fj += sum(row[f"moved_{name}_bytes"] * (link.energy_fj_per_byte or 0) for name, link in hardware.links.items())
    return float(fj + (compute.power_mw or 0) * 1_000 * row["step_ns"]) / 1e15  # a mW for a ns is 1,000 fJ


def derived(hardware: Hardware, row: Mapping[str, Any], ranks: int, **handled: int | None) -> dict[str, float | None]:
    """Count the figures that follow from the row of all ranks: rates and costs.

    A figure of a job that needs tokens or prices belongs here, as tokens are counted over all ranks.

    Parameters
    ----------
    hardware, row, ranks
        As for `costs`.
    handled
        As for `per_second`; ``tokens`` among them.
    """
    return {**per_second(row["step_ns"], **handled), **costs(hardware, row, ranks, handled["tokens"])}


def costs(hardware: Hardware, row: Mapping[str, Any], ranks: int, tokens: int | None) -> dict[str, float | None]:
    """Count the costs of a step of all ranks, by column: those of which the machine states figures.

    Parameters
    ----------
    hardware, row
        The machine, and the figures of the row.
    ranks, tokens
        The number of ranks; the number of tokens that all of them handle in a step, if known.
    """
    step_ns, paid = row["step_ns"], dict[str, float | None]()
    if step_ns is None:
        return paid
    tiers, sharing = hardware.tiers.items(), hardware.topology.sharing
    instances = {name: -(-ranks // sharing[tier.scope]) for name, tier in tiers}
    if (joules := row.get("energy_j")) is not None:
        paid["energy_per_token_j"] = joules / tokens if tokens else None
    if hardware.states_prices:
        of_room = sum(
            row[f"peak_{name}_bytes"] * instances[name] * (tier.price_nusd_per_gb_month or 0) for name, tier in tiers
        )
        of_time = ranks * (hardware.compute.price_uusd_per_h or 0) / 1e6 / _HOUR_NS
        paid["step_usd"] = dollars = step_ns * (of_time + of_room / 1e18 / _MONTH_NS)
        paid["usd_per_million_tokens"] = dollars * 1e6 / tokens if tokens else None
    for name, tier in tiers:
        if tier.endurance_bytes is not None:
            into = hardware.wires(link_name for link_name, link in hardware.links.items() if link.target == name)
            written = sum(row[f"moved_{link_name}_bytes"] for link_name in into)
            life_ns = instances[name] * tier.endurance_bytes / written * step_ns if written else None
            paid[f"life_{name}_years"] = None if life_ns is None else life_ns / _YEAR_NS
    return paid
