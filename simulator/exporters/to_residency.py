"""``residency``: a schedule in the form of HyperParallel's ``ResidencySchedule``, with the step that it is for.

The file is a ``residency-trace/1``: see `simulator.formats.residency_json`. Before an op, tensors are copied in, as
early as the plan says; behind one they are copied out and released. The device keeps weights, gradients of the last
step and inputs, of which the session knows nothing; so they are left out.
"""

from __future__ import annotations

from pathlib import Path

import orjson

from simulator.errors import insist
from simulator.exporters import leaving
from simulator.formats import residency_json
from simulator.graph import Graph
from simulator.outputs import written
from simulator.plan import COMPUTE, COPY, DETACH, Actions, Code, Plan
from simulator.run.case import Case
from simulator.run.task import Task

_KINDS = {"gradient": "wgrad"}
_DO = "choose another plan, or another form"
Table = list[tuple[int, str, int]]
"""Op, action, storage."""


def write(case: Case, task: Task, plan: Plan, path: Path) -> list[str]:
    """Write the schedule; see `simulator.exporters`.

    Parameters
    ----------
    case, task, plan
        What runs, and the plan of its graph.
    path
        The file.
    """
    graph, problem = task.graph, task.problem
    tracked = {t: tensor for t, tensor in enumerate(graph.tensors) if t not in graph.inputs}
    where, actions = f"export of plan {plan.name!r} to residency", [*(plan.fixed or Actions())]
    order = [(a, b) for kind, a, b, _ in actions if kind == COMPUTE]
    laps, is_in_order = graph.steps // plan.repeats, order == [(op, 0) for op in range(len(graph.ops))]
    moved, below = leaving(plan, problem.compute_tier)
    name = next((graph.tensors[t].name for t in sorted(moved & {*graph.inputs})), "")
    has_sync = any(kind > DETACH for kind, *_ in actions)
    insist(is_in_order and laps == 1, where, "all ops run once, in program order", "another order, or recomputing", _DO)
    insist(len(below) <= 1, where, "there is one tier below the device", ", ".join(plan.tiers[t] for t in below), _DO)
    insist(not name, where, "a tensor that exists before the step stays on the device", f"that {name!r} leaves it", _DO)
    insist(not (has_sync or graph.dynamic_reads), where, "the host never waits, and reads are known", "otherwise", _DO)
    codes = [code for code in actions if code[0] == COMPUTE or code[1] in tracked]
    schedule, storages, ops = _schedule(where, graph, problem.compute_tier, codes), [], []
    for t, tensor in tracked.items():
        about = {"id": t, "bytes": tensor.size_bytes, "retained": t in graph.outputs}
        storages.append({**about, "kind": _KINDS.get(tensor.kind, tensor.kind)})
    for i, op in enumerate(graph.ops):
        reads, writes = (
            [{"storage": t, "bytes": tracked[t].size_bytes} for t in used if t in tracked]
            for used in (op.reads, op.writes)
        )
        took = {"duration_ms": task.times_ns[i] / 1e6}
        ops.append({"id": i, "name": op.name, **took, "reads": reads, "writes": writes})
    source = {"kind": graph.name, "planner": plan.policy}
    header = {"schema": residency_json.SCHEMA, "source": source, "memory_limit_bytes": problem.budget_bytes}
    with written(path, option="-o") as (part,):
        part.write_bytes(orjson.dumps({**header, "storages": storages, "ops": ops, "schedule": schedule}))
    copies = sum(action.startswith("COPY") for table in schedule.values() for _, action, _ in table)
    left = len(graph.tensors) - len(tracked)
    return [f"{copies:,} copies; {left:,} tensors that exist before the step are left out, as they stay on the device."]


def _schedule(where: str, graph: Graph, device: int, actions: list[Code]) -> dict[str, Table]:
    """Return the two tables; what must come behind a copy in, which is before the next op, comes behind that op."""
    pre, post, late, came, below = Table(), Table(), Table(), set[int](), set[int]()
    op, last = -1, len(graph.ops) - 1
    for kind, a, b, c in actions:
        name = graph.tensors[a].name if kind != COMPUTE else ""
        if kind == COMPUTE:
            op = a
            post += [(op, action, tensor) for _, action, tensor in late]
            late, came = [], set()
        elif kind == COPY and c == device:
            insist(op < last, where, "a copy in comes before some op", f"that of {name!r} behind the last", _DO)
            pre.append((op + 1, "COPY_H2D", a))
            came.add(a)
        elif op == last and a in graph.outputs and kind == DETACH:
            continue  # what is retained is never released
        else:
            is_host = kind == DETACH and b != device
            was_used = op >= 0 and (is_host or a not in came)
            insist(was_used, where, "a tensor that goes out was used", f"that {name!r} was not", _DO)
            if kind == COPY and a in below:
                post.append((op, "RELEASE_HOST", a))  # else nothing happens, though that copy is stale
            below = below - {a} if is_host else below | {a} if kind == COPY else below
            action = "COPY_D2H" if kind == COPY else "RELEASE_HOST" if is_host else "RELEASE_DEVICE"
            (late if a in came else post).append((op, action, a))
    return {"pre": pre, "post": post}
