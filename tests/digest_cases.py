"""10,000 small cases whose digests are kept: drawn from their number alone, so that each is the same for ever.

A case is one row of a scenario, run as a user would run it: a machine, a job and rows, as documents where there are
documents for it. Twenty kinds of scenario in turn, of five rows each: random plans on random machines, every policy,
address allocators, dynamic reads, and several ranks. What is drawn here and in `digest_draws` is part of the gate: a
change there moves cases, which `tests/digests.py` then renews.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from digest_draws import RATES, Draw, budget_of, cluster_of, graph_of, machine_of, of_kind, stage_of, walk_of
from dynamic_cases import moe
from folding import folded
from walks import DDR, HBM, SSD

import simulator as hosim
from simulator import Graph, Job, Plan, Problem, Result

ROWS = 5
KINDS = 20
CASES = 10_000
GROUP = ROWS * KINDS
"""Each group of so many cases has all kinds."""

RUNTIMES = (
    ("reactive", {}),
    *(("reactive", {"evict": evict, "look_ahead": 0}) for evict in ("lru", "fifo", "furthest")),
    ("reactive", {"evict": "lru", "look_ahead": 2}),
    ("reactive", {"evict": "furthest", "look_ahead": 3, "synchronous": True}),
)
PLANNERS = (
    ("resident", {}),
    ("lookahead", {"select_distance": 1, "distance": 1}),
    ("lookahead", {"select_distance": 2, "distance": 3}),
    ("offload_saved", {}),
    ("offload_saved", {"barrier_before_backward": False}),
    ("offload_saved", {"synchronous": True}),
    ("upstream_greedy", {}),
    ("recompute", {}),
    ("static", {}),
    ("static", {}),
    ("static", {"recompute": True}),
)
DYNAMIC = (
    *(
        ("reactive", {"dynamic": "on_demand", "evict": evict, "look_ahead": 0})
        for evict in ("lru", "lfu", "hot", "fifo")
    ),
    ("reactive", {"dynamic": "on_demand", "evict": "furthest", "look_ahead": 4, "synchronous": True}),
    ("reactive", {"dynamic": "on_demand", "evict": "lfu", "look_ahead": 32}),
    ("reactive", {"dynamic": "on_demand"}),
    ("reactive", {}),
    ("static", {}),
    *(("hybrid", {"evict": evict}) for evict in ("lru", "lfu", "hot")),
    ("hybrid", {"prefetch": "next_layer_all"}),
    ("hybrid", {"prefetch": "speculative", "accuracy": 0.5}),
)


@dataclass
class Drawn:
    """One scenario: its machine and what is to be run on it.

    Attributes
    ----------
    job
        What all ranks run.
    machine, scenario
        The documents, but for what `run` adds.
    functions
        Rows that are functions from a problem to a plan, after those of the scenario.
    """

    job: Job
    machine: dict[str, Any]
    scenario: dict[str, Any]
    functions: Mapping[str, Callable[[Problem], Plan]] = field(default_factory=dict)
    fold: str = "auto"


def run(number: int, folder: Path) -> list[Result | Exception]:
    """Run one of the scenarios; its rows are the cases from ``number * ROWS`` on. What raises is a row, too.

    Parameters
    ----------
    number
        Which.
    folder
        For its documents.
    """
    drawn = draw(number)
    tiny = {"family": "llama", "layers": 1, "hidden": 8, "heads": 1, "kv_heads": 1, "ffn": 8, "vocabulary": 8}
    workload = {"phase": "train", "batch": 1, "sequence": 1, "model": tiny, "dtypes": {"compute": "bf16"}}
    figures = ("compute", "tiers", "links", "host", "buses", "fabrics", "topology", "allocator", "copy_queues")
    documents = {
        "hardware": {**drawn.machine, "assumed": {key: "drawn" for key in figures if drawn.machine.get(key)}},
        "workload": {**workload, "assumed": dict.fromkeys(("batch", "sequence", "model", "dtypes"), "is not run")},
        "scenario": {"hardware": "hardware.yaml", "workload": "workload.yaml", **drawn.scenario},
    }
    for kind, document in documents.items():
        head = {"schema": f"hosim/{kind}/1", "name": kind, "title": f"drawn for case {number}"}
        (folder / f"{kind}.yaml").write_text(json.dumps({**head, **document}), encoding="utf-8")
    path, labels = folder / "scenario.yaml", [row["label"] for row in drawn.scenario["policies"]]
    with folded(drawn.fold):
        try:
            return list(hosim.run(path, job=drawn.job, policies=drawn.functions or None).values())
        except Exception:
            alone = [*([label] for label in labels), *({name: drawn.functions[name]} for name in drawn.functions)]
            return [_only(path, drawn.job, policies) for policies in alone]


def _only(path: Path, job: Job, policies: Any) -> Result | Exception:
    """One row, the last of those that run; or why there is none."""
    try:
        return list(hosim.run(path, job=job, policies=policies).values())[-1]
    except Exception as error:
        return error


def draw(number: int) -> Drawn:
    """Draw one of the scenarios."""
    draw, kind = Draw(number), number % KINDS
    if kind < 8:
        return _walks(draw)
    if kind < 12:
        return _policies(draw)
    if kind < 14:
        return _addresses(draw)
    if kind < 16:
        return _dynamic(draw)
    return _ranks(draw, is_walked=kind < 18)


def _rows(draw: Draw, options: tuple[tuple[str, dict[str, Any]], ...], **more: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Rows of a scenario; `more` draws other fields of them."""
    found = []
    for row in range(ROWS):
        policy, chosen = draw.choice(options)
        fields = {name: draw.choice(values) for name, values in more.items()}
        found.append({"policy": policy, "label": f"row {row}", "options": chosen, **fields})
    return found


def homes_of(graphs: list[Graph], **kinds: str) -> dict[str, str]:
    """Homes of these kinds as far as some tensor is of them, all else free."""
    there = {str(tensor.kind) for graph in graphs for tensor in graph.tensors}
    return {"*": "free", **{kind: home for kind, home in kinds.items() if kind in there}}


def _walks(draw: Draw) -> Drawn:
    """Random plans on a random machine, some of them decided as they run."""
    machine, graph = machine_of(draw), graph_of(draw, 8, 3)
    tiers = tuple(range(min(len(machine["tiers"]), SSD + 1)))
    plans = [walk_of(draw, graph, machine, tiers, draw.whole(1, 3)) for _ in range(ROWS - 1)]
    scenario = {
        "policies": [{"policy": "resident", "label": "resident"}],
        "homes": {"*": "free"},
        "budget": f"{max(1, *(peak for _, peak in plans))} B",
        "switches": {"copies_wait_for": draw.choice(("start", "end"))},
        "assumed": {"budget": "drawn"},
    }
    functions = {f"walk {i}": lambda problem, plan=plan: plan for i, (plan, _) in enumerate(plans)}
    return Drawn(Job.of(graph), machine, scenario, functions)


def _policies(draw: Draw) -> Drawn:
    """Policies on a random machine, with homes given, free, or both."""
    machine, graph = machine_of(draw), graph_of(draw, 7, 2, may_fence=True)
    home = draw.choice(("free", "hbm", "ddr", [*machine["tiers"]][-1]))
    stays = of_kind(graph, "weight") if home == "hbm" else set()
    scenario = {
        "policies": _rows(draw, (*PLANNERS, *RUNTIMES)),
        "homes": homes_of([graph], weight=home, optimizer_state="free"),
        "budget": f"{budget_of(draw, graph, stays)} B",
        "switches": {"copies_wait_for": draw.choice(("start", "start", "end"))},
        "assumed": {"budget": "drawn"},
    }
    if draw.happens(1, 2):
        way = machine["links"].get("direct", {})
        passing = 2 * int(way["chunk"].split()[0]) * way["channels"] if "via" in way else 0
        machine["tiers"]["ddr"]["capacity"] = f"{max(passing, draw.whole(130, 300))} B"
    return Drawn(Job.of(graph), machine, scenario)


def _addresses(draw: Draw) -> Drawn:
    """Policies under each allocator."""
    drawn = _policies(draw)
    price = draw.choice((None, {"per_page": f"{draw.whole(0, 5)} ns", "pages": draw.choice(("in_use", "moved"))}))
    sizes = {"small": "8 B", "small_segment": "16 B", "own_segment": "24 B", "large_segment": "32 B"}
    rules = {"rounding": f"{draw.choice((1, 4, 8))} B", "segment_rounding": "16 B", "remaps": draw.happens(1, 2)}
    drawn.machine["allocator"] = {"page": f"{draw.whole(1, 20)} B", "caching": sizes | rules}
    if price is not None:
        drawn.machine["allocator"]["compaction"] = price
    allocators: tuple[str, ...] = ("best_fit", "best_fit", "fixed")
    if draw.happens(1, 3):  # in ample room: cached segments that are given back are for shipped scenarios
        allocators, room = ("caching",), int(drawn.scenario["budget"].split()[0])
        drawn.scenario["budget"] = f"{4 * room + 400} B"
    drawn.scenario["policies"] = _rows(draw, (*PLANNERS, *RUNTIMES), allocator=allocators)
    return drawn


def _dynamic(draw: Draw) -> Drawn:
    """Dynamic reads, of one rank or of several that each draw their own."""
    ranks = draw.choice((1, 1, 2, 3))
    samples, each = draw.whole(1, 2), draw.whole(1, 2)
    graph = moe(
        draw.whole(1, 3), draw.whole(2, 5), size=draw.whole(0, 30), samples=samples, each=each,
        steps=draw.whole(1, 4), readers=draw.whole(1, 2), early=draw.happens(1, 3),
    )  # fmt: skip
    machine = machine_of(draw)
    machine["topology"] = {"devices_per_node": ranks, "nodes": 1}
    if ranks > 1 and draw.happens(1, 2):
        machine["buses"] = {"wire": {"links": ["h2d"], "bandwidth": draw.choice(RATES[:-1]), "scope": "node"}}
    largest = max(tensor.size_bytes for tensor in graph.tensors)
    zipf = {"distribution": "zipf", "skew": draw.choice((0.5, 1.1, 3.0))}
    origin = zipf if draw.happens(1, 2) else {"distribution": "uniform"}
    scenario = {
        "policies": _rows(draw, DYNAMIC),
        "homes": {"*": "free", "expert": "ddr"} | ({"L0/expert*": "hbm"} if draw.happens(1, 6) else {}),
        "budget": f"{2 * samples * each * largest + draw.whole(12, 150)} B",
        "draws": {**origin, "stickiness": draw.choice((0.0, 0.8))},
        "seed": draw.whole(0, 99),
        "assumed": {"budget": "drawn", "draws": "drawn"},
    }
    return Drawn(Job.of(graph, ranks), machine, scenario)


def _ranks(draw: Draw, *, is_walked: bool) -> Drawn:
    """Ranks that meet and share links, all with one graph or in two halves of which one sends to the other."""
    half, parts, steps = draw.choice((1, 2, 4)), draw.choice((("only",), ("first", "second"))), draw.whole(1, 2)
    ranks, size = 2 * half, 2 * half // len(parts)
    groups = {}
    for name in ("tensor", "data"):
        width = draw.choice([n for n in (1, 2, 4, 8) if n <= size])
        groups[name] = [range(first, first + width) for first in range(0, ranks, width)]
    graphs = [stage_of(draw, groups, half, part, steps) for part in parts]
    labels = tuple(f"stage {part}" for part in parts)
    job = Job("drawn", tuple(graphs), tuple(rank // size for rank in range(ranks)), labels)
    machine = cluster_of(draw, ranks)
    fold = draw.choice(("auto", "auto", "never"))
    scenario: dict[str, Any] = {
        "switches": {"collectives": draw.choice(("own_stream", "own_stream", "compute_stream"))},
        "assumed": {"budget": "drawn"},
    }
    if is_walked:
        made = [[walk_of(draw, graph, machine, (HBM, DDR), 1) for graph in graphs] for _ in range(ROWS - 1)]
        most = max(peak for row in made for _, peak in row)
        scenario |= {
            "policies": [{"policy": "resident", "label": "resident"}],
            "homes": {"*": "free"},
            "budget": f"{max(1, most)} B",
        }
        functions = {f"walk {i}": _by_graph(graphs, [plan for plan, _ in row]) for i, row in enumerate(made)}
        return Drawn(job, machine, scenario, functions, fold)
    home = draw.choice(("hbm", "ddr", "ddr"))
    ways: tuple[dict[str, bool], ...] = ({}, {"alone": True}, {"staggered": True})
    rows = [
        row | (draw.choice(ways) if row["policy"] == "static" else {}) for row in _rows(draw, (*PLANNERS, *RUNTIMES))
    ]
    budget = max(budget_of(draw, graph, of_kind(graph, "weight") if home == "hbm" else set()) for graph in graphs)
    scenario |= {"policies": rows, "homes": homes_of(graphs, weight=home), "budget": f"{budget} B"}
    return Drawn(job, machine, scenario, fold=fold)


def _by_graph(graphs: list[Graph], plans: list[Plan]) -> Callable[[Problem], Plan]:
    """A policy that knows the plan of each graph by its name."""
    known = {graph.name: plan for graph, plan in zip(graphs, plans, strict=True)}
    return lambda problem: known[problem.graph.name]
