"""Hints about a run; above all what people set, or state as their own, that cannot change anything: named in one line.

A figure that is not narrow enough to bind is no such thing: another value of it would change the run. Here are the
fields of which no value would, on this machine, with this job and these rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import pairwise, product
from math import inf
from operator import attrgetter
from typing import Any

from simulator import formats
from simulator.builders import build_job
from simulator.catalog import DOCUMENTS, Loaded
from simulator.catalog.driven import unread
from simulator.catalog.settings import FieldChange, apply, fields
from simulator.document import Document
from simulator.errors import ConfigError
from simulator.graph import HOST, Op, TensorKind, share_of
from simulator.hardware import Hardware, Rates, reachable, span, without_effect
from simulator.metrics.rows import Row
from simulator.plan import NOWHERE
from simulator.run.case import Case
from simulator.scenario import PolicyChoice, Scenario
from simulator.units import FieldError, human, listed
from simulator.workload import Workload
from simulator.workload.job import JobDocument

Why = Mapping[str, str]
"""Pattern of field paths -> the reason why no value of these fields changes anything."""
_DRIVEN = {
    "compute.achieved_fraction": "kernels.*.arithmetic", "compute.class_bandwidth": "kernels.*.class_bandwidth",
    "host_compute.achieved_fraction": "cores.arithmetic", "host_compute.class_bandwidth": "cores.class_bandwidth",
    "host_compute.*": "cores.*", "host.each_class": "host.class",
}  # fmt: skip
"""Fields of a machine -> those of a software that change them."""
_SERVED, _SAME = "hosim serve reads it", "the graph is the same with it"


def idle_line(
    case: Case, rows: Sequence[PolicyChoice] = (), runtimes: Collection[bool] = (), *, is_served: bool = False
) -> str | None:
    """Name the fields that were set, or stated by a document's author as their own, and that change nothing here.

    Parameters
    ----------
    case, rows
        What runs, and its rows; default: those of the scenario.
    runtimes
        For the plans of these, whether each is decided while it runs; none if that is not known.
    is_served
        Whether requests are served.

    Returns
    -------
    str or None
        A line such as ``without effect here: tiers.ddr.bandwidth (...).``; None if there are no such fields.
    """
    loaded, scenario, machine = case.loaded, case.loaded.scenario, case.loaded.hardware
    asked = {kind: sorted(path for of, path in loaded.asked if of == kind) for kind in DOCUMENTS}
    of_machine = {**machine.unread, **_of_machine(case, rows or scenario.policies, runtimes)}
    of_machine |= {} if is_served else {"host.serving.*": _SERVED}
    if loaded.software is None or loaded.software.cores.sockets == 1:
        of_machine["host_compute.sockets"] = "no software says what a further one adds"
    paces = [f"ranks.{key}.*" for key in machine.ranks if "ranks" in asked["hardware"]]
    idle = dict(_named(machine, [*scenario.figures(), *asked["hardware"], *paces], of_machine))
    idle |= own_unread(machine)
    if loaded.software:
        of_software = unread(machine, loaded.software, loaded.workload)
        for (field, source), (path, why) in product(_DRIVEN.items(), of_machine.items()):
            of_software |= {path.replace(field, source): why} if path.startswith(field) else {}
        idle |= {f"software.{key}": why for key, why in _named(loaded.software, asked["software"], of_software)}
        if loaded.hardware == loaded.stated:
            idle["software"] = f"{loaded.software.name} says nothing of such a run"
    changed = {path.split(".")[0] for path in asked["scenario"]}
    paths = [*asked["scenario"], *(path for path in _stated(scenario) if path.split(".")[0] not in changed)]
    idle |= _named(scenario, paths, _of_scenario(case, is_served=is_served))
    unused = [of for of in scenario.homes if all(of not in by_tensor.values() for by_tensor in _homes_of(case))]
    idle |= dict.fromkeys(_of_dynamic_reads(case), "no op reads dynamically")
    idle |= {f"homes.{of}": "later homes cover all of its tensors" for of in unused}
    if not is_served:
        chosen = {f"on.{part}" for part, side in loaded.workload.on if side == "any"}  # by each row
        paths = [path for path in asked["workload"] if path not in chosen]
        same = [path for path in paths if loaded.is_job_given or _builds_the_same(loaded, path)]
        idle |= {f"workload.{path}": _SAME for path in same}
    return told(idle)


def hints(case: Case, rows: Sequence[Row]) -> list[str]:
    """Return hints about a run: figures without effect, what is missing or unknown, an update that runs on the device.

    Parameters
    ----------
    case, rows
        What ran, and its rows.
    """
    scenario, hardware, work, graphs = case.loaded.scenario, case.hardware, case.loaded.workload, case.job.graphs
    idle_figures = without_effect(hardware, scenario.budget_bytes, scenario.set_)
    for row in rows:
        idle_of_row = without_effect(row.hardware, scenario.budget_bytes, case.choice(row.label).set_)
        idle_figures += [f"{row.label}: {hint}" for hint in idle_of_row]
    kinds = {row.label: plan.fixed is None for row in rows for plan in row.plans}
    idle = idle_line(case, [case.choice(row.label) for row in rows], set(kinds.values()))
    sentences = [*dict.fromkeys(idle_figures), *([idle] if idle else [])]
    homes, compute_tier = scenario.homes, hardware.compute_tier
    runtimes = [label for label, is_runtime in kinds.items() if is_runtime]
    if runtimes and "host" not in hardware.model_fields_set:
        free = f"decisions of {listed(runtimes)} cost no time: {hardware.name} states no costs of a host"
        sentences.append(f"{free[0].upper()}{free[1:]}; add the key host.")
    if homes.get(TensorKind.WEIGHT, compute_tier) != compute_tier:
        named = {t for pattern in homes for graph in graphs for t in graph.matching(pattern)} | {*graphs[0].of_host}
        experts = [t for t, tensor in enumerate(graphs[0].tensors) if tensor.kind is TensorKind.EXPERT]
        if left_bytes := sum(graphs[0].tensors[t].size_bytes for t in experts if t not in named):
            forgotten = f"{human(left_bytes, 'B')} of experts stay in {compute_tier}: homes names weight, not expert"
            sentences.append(f"{forgotten}; to move them, add --home expert={homes[TensorKind.WEIGHT]}.")
    ran = any(row.is_ok for row in rows)
    sentences += [*_passing(case), *([_update(case, rows)] if ran else [])]
    if work.graph is not None and ran and not (case.loaded.is_job_given or any(graph.arithmetic for graph in graphs)):
        more = "" if work.tokens else "; for tokens/s state workload.batch and workload.sequence"
        sentences.append(f"TFLOP/s and MFU are unknown: no op of class matmul or attention has FLOPs{more}.")
    return [*filter(None, sentences)]


def _update(case: Case, rows: Sequence[Row]) -> str:
    """Say that an update whose states lie elsewhere runs on the device; empty if there is none."""
    ways = dict[str, int]()
    plans = [pair for row in rows if row.is_ok for pair in zip(case.tasks, row.plans, strict=True)]
    for problem, homes in ((task.problem, plan.home) for task, plan in plans):
        used = [t for t, uses in enumerate(problem.lifetimes.uses) if uses]
        states = [t for t in used if problem.graph.tensors[t].kind is TensorKind.OPTIMIZER_STATE]
        for home in {homes[t] for t in states} - {problem.compute_tier, NOWHERE}:
            way = listed([problem.link_names[hop] for hop in pairwise(problem.path(home, problem.compute_tier))])
            size = sum(problem.sizes[t] for t in states if homes[t] == home)
            ways[way] = max(size, ways.get(way, 0))  # graphs of other ranks, and other rows, have theirs
    read = listed([f"{human(size, 'B')} of state over {way}" for way, size in ways.items()])
    is_model = case.loaded.workload.decoder is not None
    do = "write on: {optimizer: host} in the workload" if is_model else "give its ops the device host"
    return f"The update runs on the device and reads {read}; to run it on the host, {do}." if read else ""


def own_unread(machine: Hardware) -> dict[str, str]:
    """Return the figures without an origin that no run on a machine reads, each with the reason."""
    paths = [path for path in machine.figures() if machine.origin_of(path) == "mine"]
    return dict(_named(machine, paths, machine.unread))


def told(idle: Mapping[str, str]) -> str | None:
    """Name fields that change nothing in a line; None if there are none.

    Parameters
    ----------
    idle
        Path of each field -> why it changes nothing.
    """
    by_reason: dict[str, list[str]] = {}
    for path, why in idle.items():
        by_reason.setdefault(why, []).append(path)
    parts = "; ".join(f"{', '.join(paths)} ({why})" for why, paths in by_reason.items())
    return f"without effect here: {parts}." if parts else None


def _named(document: Document, paths: Iterable[str], why: Why) -> Iterator[tuple[str, str]]:
    """Yield each path all of whose fields are idle, with the reason of the first."""
    for path in paths:
        with suppress(FieldError):  # what was set to null is gone
            leaves = [".".join(keys) for keys, _ in fields(document, path)]
            reasons = [next((why[idle] for idle in why if fnmatchcase(leaf, idle)), "") for leaf in leaves]
            if reasons and all(reasons):
                yield path, reasons[0]


def _of_classes(path: str, figures: Mapping[str, float], ops: Sequence[Op]) -> dict[str, str]:
    """Say which figures of classes of ops are of none of these."""
    others = {*figures, "default"} - {share_of(op.op_class, figures) for op in ops}
    return {f"{path}.{name}": "no op is of this class" for name in others}


def _of_device(field: str, rates: Rates, ops: Sequence[Op]) -> dict[str, str]:
    """Say which figures of a device none of its ops reads."""
    timed = [op for op in ops if op.duration_ns is None and op.collective is None]
    calculating = {op.dtype for op in ops if op.flops}
    idle = {f"{field}.peak.{dtype}": "no op computes in it" for dtype in rates.peak_flops if dtype not in calculating}
    idle |= _of_classes(f"{field}.achieved_fraction", rates.achieved_fraction, [op for op in timed if op.flops])
    idle |= _of_classes(f"{field}.class_bandwidth", rates.class_bandwidth, timed)
    if not timed:
        idle |= dict.fromkeys((f"{field}.launch", f"{field}.achieved_bandwidth"), "the times of all ops were recorded")
    return idle


def _of_ranks(case: Case, ops: Sequence[Op]) -> dict[str, str]:
    """Say which figures of unlike devices are of no rank, or of nothing that a rank does."""
    idle = {f"ranks.{key}.*": "no such rank" for key in case.hardware.ranks if span(key)[0] >= case.job.ranks}
    if not (case.hardware.shares_memory or any(op.duration_ns is None and not op.collective for op in ops)):
        idle["ranks.*.memory"] = "the times of all ops were recorded"
    if case.loaded.scenario.budget_bytes == min(case.rooms):
        idle["ranks.*.capacity"] = "each rank has room for the scenario's budget"
    return idle


def _of_machine(case: Case, rows: Sequence[PolicyChoice], runtimes: Collection[bool]) -> dict[str, str]:
    """Say which figures of the machine no op, no rank and no row of this run reads."""
    ops = [op for graph in case.job.graphs for op in graph.ops]
    allocators, on_host = {choice.allocator for choice in rows}, [op for op in ops if op.device == HOST]
    idle = _of_device("compute", case.hardware.compute, [op for op in ops if op.device != HOST])
    if on_host and case.hardware.host_compute:
        idle |= _of_device("host_compute", case.hardware.host_compute, on_host)
    elif not on_host:
        idle["host_compute.*"] = "no op is of the host"
    idle |= _of_ranks(case, ops)
    idle |= _of_classes("host.each_class", case.hardware.host.each_class_ns, ops)
    if not any(op.collective for op in ops):
        idle["fabrics.*"] = "ranks never meet"
    if not any(graph.in_place for graph in case.job.graphs):
        idle["links.*.loads"] = "the workload reads nothing in place"
    if case.job.ranks == 1:
        links, tiers = case.hardware.links.values(), case.hardware.tiers
        reserving = {tiers[stage.source].scope for link in links for stage in link.stages[1:]}  # for each who shares it
        single = ["buses.*.scope", *(() if "supernode" in reserving else ["topology.nodes"])]
        single += () if reserving else ("tiers.*.scope", "topology.*")
        idle |= dict.fromkeys(single, "there is one rank")
    if allocators == {"ideal"}:
        idle["allocator.*"] = "each row only counts bytes (allocator: ideal)"
    elif "caching" not in allocators:
        idle["allocator.caching.*"] = "no row has allocator: caching"
    is_dynamic = any(op.dynamic for op in ops)
    if runtimes and True not in runtimes:
        pays = () if is_dynamic else ("select", "update")  # a fixed plan that leaves reads to the run pays these
        costs = ("inspect", "compute", "copy", "detach", "sync", "pin", *pays)
        idle |= dict.fromkeys((f"host.reactive.{cost}" for cost in costs), "no row decides while it runs")
    if runtimes and False not in runtimes:
        idle["host.fixed.*"] = "each row decides while it runs"
    if not is_dynamic:
        idle["host.reactive.select"] = "no op reads dynamically"
    return idle | _out_of_reach(case, rows)


def _out_of_reach(case: Case, rows: Sequence[PolicyChoice]) -> dict[str, str]:
    """Say which figures are of ways to tiers that nothing reaches: each way leads through one with endless room."""
    hardware, scenario = case.hardware, case.loaded.scenario
    endless = {name for name, tier in hardware.tiers.items() if tier.usable_bytes == inf} - {hardware.compute_tier}
    ends = {name: (link.source, link.target) for name, link in hardware.links.items()}
    near = reachable(hardware.compute_tier, [way for way in ends.values() if way[0] not in endless])
    far = hardware.tiers.keys() - near
    if not near & endless or far & {*scenario.homes.values(), *scenario.kv_tiers} or any(row.is_file for row in rows):
        return {}
    links = {name for name, way in ends.items() if far & {*way}}
    buses = [name for name, bus in hardware.buses.items() if links.issuperset(bus.links)]
    patterns = [f"tiers.{name}.{field}" for name in sorted(far) for field in ("reserved", "endurance", "bandwidth")]
    patterns += [f"{kind}.{name}.*" for kind, names in (("links", sorted(links)), ("buses", buses)) for name in names]
    return dict.fromkeys(patterns, f"{listed(sorted(near & endless))} before it has unlimited room")


def _of_scenario(case: Case, *, is_served: bool) -> dict[str, str]:
    """Say which fields of the scenario are about nothing that runs here."""
    graphs, requests = case.job.graphs, case.loaded.workload.requests
    idle = {} if is_served else dict.fromkeys(("kv_tiers*", "slo*"), _SERVED)
    if not any(graph.dynamic_reads or graph.spreads for graph in graphs):
        is_drawn = is_served and requests is not None and requests.file is None
        idle |= {} if is_drawn else {"seed": "nothing is drawn"}
    if not any(graph.meets for graph in graphs):
        idle["switches.collectives"] = "ranks never meet"
        if not any(op.stream for graph in graphs for op in graph.ops):
            idle["policies.*.order"] = "each rank runs all ops on one stream"
    if case.job.ranks == 1:
        idle["policies.*.alone"] = "there is one rank"
    if not any(task.problem.turns for task in case.tasks):
        idle["policies.*.staggered"] = "ranks meet, or share no link evenly, or run less than three steps"
    return idle


def _homes_of(case: Case) -> list[dict[int, str]]:
    """Return, for each graph, the home that counts for each tensor that one names: the last."""
    homes = case.loaded.scenario.homes
    return [{t: pattern for pattern in homes for t in graph.matching(pattern)} for graph in case.job.graphs]


def _passing(case: Case) -> Iterator[str]:
    """Tell of homes of what is mostly gone before a step ends, and of homes away from the host that uses them alone."""
    homes, passing, lasting, apart = case.loaded.scenario.homes, Counter[str](), Counter[str](), Counter[str]()
    near = case.hardware.host_compute and case.hardware.host_compute.tier
    for graph, pattern_of in zip(case.job.graphs, _homes_of(case), strict=True):
        lasts, of_host = {*graph.inputs, *graph.outputs}, {*graph.of_host}
        for t, pattern in pattern_of.items():
            (lasting if t in lasts else passing)[pattern] += graph.tensors[t].size_bytes
            if near and t in of_host and homes[pattern] not in {"free", near}:
                apart[pattern] += graph.tensors[t].size_bytes
    for pattern, size in apart.items():
        where = f"homes.{pattern} puts {human(size, 'B')} into {homes[pattern]}, but only the host uses them"
        yield f"{where}: they come to {near} and go back in each step; say {near}, or drop it."
    for pattern, size in passing.items():
        if homes[pattern] not in {"free", case.hardware.compute_tier} and size > lasting[pattern]:
            where = f"homes.{pattern} holds for {human(lasting[pattern], 'B')}"
            yield f"{where} only: {human(size, 'B')} of its tensors are new in each step and gone before it ends."


def _stated(scenario: Scenario) -> list[str]:
    """List the fields of a scenario that may be idle and that are stated with another value than the default."""
    usual = Scenario.model_construct(name="-", hardware="-", workload="-", policies=())
    stated = ["kv_tiers", "slo", "seed", "switches.collectives"]

    changed = [path for path in stated if attrgetter(path)(scenario) != attrgetter(path)(usual)]
    rows = enumerate(scenario.policies)
    keys = {"alone": False, "staggered": False, "order": "program"}
    return changed + [f"policies.{n}.{key}" for n, row in rows for key in keys if getattr(row, key) != keys[key]]


def _of_dynamic_reads(case: Case) -> Iterator[str]:
    """Yield options about dynamic reads of rows that have none: all of `hybrid`, and one of `reactive`."""
    if any(graph.dynamic_reads for graph in case.job.graphs):
        return
    for n, row in enumerate(case.loaded.scenario.policies):
        about = row.options if row.policy == "hybrid" else {"dynamic"} if row.policy == "reactive" else ()
        yield from (f"policies.{n}.options.{name}" for name in row.options if name in about)


def _builds_the_same(loaded: Loaded, path: str) -> bool:
    """Tell whether a change of the workload leaves the job, and what it handles, as they were."""
    before = dict(fields(loaded.entries["workload"].document, path))
    if before == dict(fields(loaded.workload, path)):
        return False
    with suppress(ConfigError):
        changes = {".".join(keys): FieldChange(value, "effects", "assumed", "before") for keys, value in before.items()}
        workload = apply(loaded.workload, changes)
        return _handed_over(loaded, workload) == _handed_over(loaded, loaded.workload)
    return False


def _handed_over(loaded: Loaded, workload: Workload | JobDocument) -> tuple[Any, ...]:
    job = build_job(workload, loaded.workload_dir, formats.read_graph)
    return job.graphs, job.graph_of, workload.tokens, workload.samples
