"""``sac``: a policy for selective activation checkpointing of PyTorch, by the forward ops of a captured step.

A policy says of each call of an op what becomes of its result until backward: it is saved, offloaded or recomputed. So
a plan can be said that moves or gives up what forward ops make, and nothing else.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from string import Template

from simulator.errors import insist
from simulator.exporters import leaving
from simulator.outputs import written
from simulator.plan import COMPUTE, Plan
from simulator.run.case import Case
from simulator.run.task import Task

_NAME = re.compile(r"(.*)/fwd/([^/@#]+)(@.*)?(?:#\d+)?")
_FILE = Template(Path(__file__).with_name("sac_policy.txt").read_text(encoding="utf-8"))


def write(case: Case, task: Task, plan: Plan, path: Path) -> list[str]:
    """Write the policy; see `simulator.exporters`.

    Parameters
    ----------
    case, task, plan
        What runs, and the plan of its graph.
    path
        The file.
    """
    graph, device = task.graph, task.problem.compute_tier
    codes, do = [*(plan.fixed or ())], "choose another plan, or another form"
    where = f"export of plan {plan.name!r} to sac"
    forward = [(i, op, _NAME.fullmatch(op.name)) for i, op in enumerate(graph.ops) if op.phase == "forward"]
    must, names = "forward ops are those of a step captured from PyTorch", [name for _, _, name in forward]
    is_captured = all(names) and any(name and name[3] for name in names)  # some have a source line
    insist(is_captured, where, must, "others", "import it: hosim import torch")
    made = {t for _, op, _ in forward for t in op.writes if not graph.tensors[t].persistent}
    moved, below = leaving(plan, device)
    other = next((graph.tensors[t].name for t in sorted(moved - made)), "")
    insist(not other, where, "only outputs of forward ops leave the device", f"that {other!r} does", do)
    insist(len(below) < 2, where, "there is one place to offload to", ", ".join(plan.tiers[t] for t in below), do)
    runs = Counter(a for kind, a, *_ in codes if kind == COMPUTE)
    again = {op for op, times in runs.items() if times > graph.steps // plan.repeats}
    late = next((graph.ops[op].name for op in again if graph.ops[op].phase != "forward"), "")
    insist(not late, where, "only forward ops run again", f"that {late!r} does", do)
    used = {t for op in graph.ops if op.phase == "backward" for t in op.reads}
    calls, count = [], dict.fromkeys(("SAVE", "OFFLOAD", "RECOMPUTE", "FREE"), 0)
    for i, op, name in forward:
        saved = made & used & {*op.writes}
        decision = "RECOMPUTE" if i in again else "OFFLOAD" if saved & moved else "SAVE" if saved else "FREE"
        count[decision] += 1
        module, call = name.groups()[:2] if name else ("", "")
        calls.append(f"    ({module!r}, {call!r}, {decision}),")
    offload = "OFFLOAD = CheckpointPolicy.MUST_CPU_OFFLOAD\n" if count["OFFLOAD"] else ""
    values = {"plan": repr(plan.name), "graph": repr(graph.name), "offload": offload, "calls": "\n".join(calls)}
    with written(path, option="-o") as (part,):
        part.write_text(_FILE.substitute(values), encoding="utf-8")
    counts = ", ".join(f"{times} {decision.lower()}" for decision, times in count.items())
    return [f"Calls of forward ops: {counts}."] + ["Offloading works under torch.compile alone."] * bool(
        count["OFFLOAD"]
    )
