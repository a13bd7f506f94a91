"""``hosim-plan/1``: a fixed plan for one graph as JSON lines.

The header is followed by the homes of tensors (their tiers at time 0), and then by the actions in issue order.
Everything is referred to by name, so a plan does not depend on the ids of a run. Example, for the graph in
`graph_jsonl`::

    {"schema":"hosim-plan/1","policy":"mine","tiers":["hbm","dram"],"repeats":1,"notes":[],"homes":2,"actions":8}
    {"home":"x","tier":"hbm"}
    {"home":"w","tier":"dram"}
    {"copy":"w","from":"dram","to":"hbm"}
    {"sync":"w"}
    {"compute":"fwd/up"}
    {"detach":"x","tier":"hbm"}
    {"detach":"w","tier":"hbm"}
    {"compute":"fwd/gelu"}
    {"detach":"h","tier":"hbm"}
    {"detach":"y","tier":"hbm"}

=======  ==================  ==============================================================  =============
line     key                 value                                                           default
=======  ==================  ==============================================================  =============
header   `policy`            name of the policy, for people                                  file's name
header   `tiers`             the tiers that it uses; on any machine `compute` is the         not checked
                             compute tier, and `below` that to which its first link leads
header   `repeats`           number of times that the host issues the actions                  graph's steps
header   `starts_ns`         start times of the ranks that run it [ns], such as "0 3000"       "0"
header   `notes`             the policy's notes on its decisions                             none
header   `homes`, `actions`  number of lines of each, so that a truncated file is noticed    not checked
home     `home`, `tier`      a tensor and its tier at time 0; others are in no tier          required
action   `compute`           run an op; a second time means recomputing it                   required
action   `stream`            the stream that runs it                                         0
action   `copy`, `from`,     copy a tensor from a tier into a tier                           required
         `to`
action   `detach`, `tier`    free the tensor's place in the tier                             required
action   `sync`              the host waits for all earlier actions that name the tensor       required
=======  ==================  ==============================================================  =============

Whether the plan obeys the rules of the machine is checked by the referee, which needs graph and machine: in a run, or
with `hosim check --scenario`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal, Required

from pydantic import Field, TypeAdapter

from simulator import document
from simulator.errors import ConfigError, insist
from simulator.formats import jsonl
from simulator.graph import LARGEST, Graph
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, SYNC, Actions, Plan
from simulator.units import counted, suggestion

SCHEMA = "hosim-plan/1"


class _PlanHeader(jsonl.Record, total=False):
    schema: Required[Literal["hosim-plan/1"]]
    policy: document.Line
    tiers: jsonl.Names
    repeats: Annotated[int, Field(ge=1, le=LARGEST)]
    starts_ns: Annotated[str, Field(pattern="^[0-9]{1,15}( [0-9]{1,15})*$")]  # at most 12 days
    notes: list[document.Line]
    homes: jsonl.Whole
    actions: jsonl.Whole


class _Compute(jsonl.Record, total=False):
    compute: Required[str]
    stream: Annotated[int, Field(ge=0, lt=1000)]


class _Copy(jsonl.Record):
    copy: str
    source: Annotated[str, Field(alias="from")]
    target: Annotated[str, Field(alias="to")]


class _Detach(jsonl.Record):
    detach: str
    tier: str


class _Home(jsonl.Record):
    home: str
    tier: document.Line


class _Sync(jsonl.Record):
    sync: str


_LINES = {"compute": _Compute, "copy": _Copy, "detach": _Detach, "home": _Home, "sync": _Sync}
LINE: TypeAdapter[Any] = TypeAdapter(_PlanHeader | _Home | _Compute | _Copy | _Detach | _Sync)
"""Any line of the form; its JSON Schema is what `hosim schema plan` prints."""
Ids = Mapping[str, int]
"""Name -> id."""
_ACTIONS = {"copy": COPY, "detach": DETACH, "sync": SYNC}


def read(path: Path, graph: Graph, tiers: Sequence[str], roles: Ids | None = None) -> Plan:
    """Read a plan.

    Parameters
    ----------
    path
        The file, perhaps compressed with gzip.
    graph
        The graph whose ops and tensors it names.
    tiers
        Tiers of the machine, by id.
    roles
        Other names of tiers: ``compute`` and ``below``.

    Raises
    ------
    ConfigError
        If a line breaks a rule of the format, or names something that graph or machine lack; the message names the
        line.
    """
    names = [op.name for op in graph.ops], [tensor.name for tensor in graph.tensors], tiers
    ops, tensors, ids = ({name: index for index, name in enumerate(part)} for part in names)
    header, homes, actions = _read(path, ops, tensors, {**(roles or {}), **ids})
    policy, repeats = header.get("policy", path.name.split(".")[0]), header.get("repeats", graph.steps)
    home = tuple(homes.get(tensor, NOWHERE) for tensor in range(len(graph.tensors)))
    notes, starts_ns = tuple(header.get("notes", ())), tuple(map(int, header.get("starts_ns", "0").split()))
    return Plan(policy, tuple(tiers), home, actions, repeats, notes, starts_ns=starts_ns)


def _id(line: jsonl.Line, sort: str, ids: Ids, name: str) -> int:
    """Look up a name of a line; the error lists the valid names if they are few."""
    try:
        return ids[name]
    except KeyError:
        few = f" ({', '.join(ids)})" if len(ids) <= 10 else ""
        do = f"correct the name{suggestion(name, ids)}"
        raise ConfigError(line.where, f"a plan names {sort} of its run{few}", repr(name), do) from None


def _read(path: Path, ops: Ids, tensors: Ids, tiers: Ids) -> tuple[dict[str, Any], dict[int, int], Actions]:
    """Read the header of a plan, its homes (one for a tensor), and its actions; check their counts."""
    lines = jsonl.read(path, SCHEMA, _PlanHeader, _LINES)
    header, homes, actions = next(lines), dict[int, int](), Actions()
    named = dict.fromkeys(header.record.get("tiers", ()), 0)
    for tier in named:
        _id(header, "tiers", tiers, tier)
    for line in lines:
        kind, record = line.kind, line.record
        ends = [record[end] for end in ("source", "target", "tier") if end in record]
        for tier in ends if named else ():
            _id(line, "tiers", named, tier)
        if kind == "compute":
            actions.append(COMPUTE, _id(line, "ops", ops, record["compute"]), record.get("stream", 0))
            continue
        if kind == "home" and actions:
            must = "homes, which say where tensors are at time 0, come before the actions"
            found = f"that of {record[kind]!r} after {counted(len(actions), 'action')}"
            raise ConfigError(line.where, must, found, "move it up")
        tensor, ids = _id(line, "tensors", tensors, record[kind]), [_id(line, "tiers", tiers, tier) for tier in ends]
        if kind == "home":
            found, do = f"{record[kind]!r} twice", "remove one of them"
            insist(tensor not in homes, line.where, "a tensor has one home", found, do)
            homes[tensor] = ids[0]
        else:
            actions.append(_ACTIONS[kind], tensor, *ids)
    jsonl.count(header, {"homes": len(homes), "actions": len(actions)})
    return header.record, homes, actions


def write(plan: Plan, graph: Graph, path: Path) -> None:
    """Write a fixed plan.

    Parameters
    ----------
    plan
        The plan; for a reactive one, its recording.
    graph
        Its graph.
    path
        The file; compressed if its name ends in ``.gz``.

    Raises
    ------
    ConfigError
        If the plan is reactive, or the file cannot be written.
    """
    actions = plan.fixed
    if actions is None:
        must, found = "a plan in a file is a fixed list of actions", f"a reactive one ({plan.policy})"
        raise ConfigError(str(path), must, found, "run it and write its actions")
    jsonl.write(path, records(plan, actions, graph))


def describe(path: Path) -> str:
    """Read a plan without its graph, and describe it in one line."""
    header, homes, actions = _read(path, *(defaultdict(count().__next__) for _ in range(3)))  # accepts any name
    copies = sum(kind == COPY for kind, *_ in actions.codes())
    policy, size = header.get("policy", path.name.split(".")[0]), counted(len(actions), "action")
    return f"plan of {policy!r}: {size}, {copies:,} of them copies; {counted(len(homes), 'home')}"


def records(plan: Plan, actions: Actions, graph: Graph) -> Iterator[dict[str, object]]:
    """Yield the lines of a plan's file, its actions last."""
    tensors, tiers = [t.name for t in graph.tensors], plan.tiers
    homes = [(name, tiers[home]) for name, home in zip(tensors, plan.home, strict=True) if home != NOWHERE]
    starts = {"starts_ns": " ".join(map(str, plan.starts_ns))} if any(plan.starts_ns) else {}
    about = {"schema": SCHEMA, "policy": plan.policy, "tiers": list(tiers), "repeats": plan.repeats}
    yield {**about, **starts, "notes": list(plan.notes), "homes": len(homes), "actions": len(actions)}
    for name, tier in homes:
        yield {"home": name, "tier": tier}
    for kind, a, b, c in actions.codes():
        if kind == COMPUTE:
            yield {"compute": graph.ops[a].name} | ({"stream": b} if b else {})
        elif kind == COPY:
            yield {"copy": tensors[a], "from": tiers[b], "to": tiers[c]}
        elif kind == DETACH:
            yield {"detach": tensors[a], "tier": tiers[b]}
        else:
            yield {"sync": tensors[a]}
