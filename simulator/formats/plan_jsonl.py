"""``hosim-plan/1``: a fixed plan for one graph as JSON lines.

The header, then where tensors are at time 0, then the steps in the order in which the host issues them. Everything is
named, so that a plan outlives the ids of a run. A small one, for the graph in `graph_jsonl`::

    {"schema":"hosim-plan/1","policy":"mine","tiers":["hbm","dram"],"repeats":1,"notes":[],"homes":2,"steps":8}
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
header   `policy`            who made it: text for people                                    file's name
header   `tiers`             the tiers it names                                              not checked
header   `repeats`           how many times the host runs the steps                          graph's steps
header   `starts_ns`         when the ranks that run it begin, in turn [ns], as "0 3000"      "0"
header   `notes`             what the policy says about its decisions                        none
header   `homes`, `steps`    how many lines follow of each, so that a cut file is noticed    not checked
home     `home`, `tier`      a tensor, and where it is at time 0; others are nowhere         required
step     `compute`           run an op; a second time means recomputing it                   required
step     `stream`            on this stream                                                  0
step     `copy`, `from`,     copy a tensor from a tier into a tier                           required
         `to`
step     `detach`, `tier`    give up the tensor's place in the tier                          required
step     `sync`              the host waits for all earlier steps that name the tensor       required
=======  ==================  ==============================================================  =============

Whether the plan obeys the rules of the machine is the referee's business; without graph and machine, `describe` finds
the steps that cannot act by what the file itself says (`plan_alone`).

A tensor is where its home or a copy puts it, until a detach takes it from there. An op may write any tensor, but in the
compute tier only, which no line names: the first place that only an op can have filled tells which tier that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from simulator.errors import ConfigError
from simulator.formats import jsonl
from simulator.graph import Graph
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, SYNC, Plan, Steps
from simulator.units import counted, suggestion

Place = tuple[str, str]
"""A tensor and a tier."""


class PlanAlone:
    """Follows places from line to line.

    Parameters
    ----------
    path
        What messages call the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._homes: dict[str, str] = {}
        self._valid: dict[Place, int] = {}
        self._gone: dict[Place, tuple[int, int]] = {}
        self._computes, self._step, self._line = 0, -1, 0
        self._compute_tier: tuple[str, str] | None = None

    def take(self, line: jsonl.Line) -> None:
        """Take a home or a step that is well-formed.

        Raises
        ------
        ConfigError
            If a step cannot act.
        """
        record, self._line = line.record, line.number
        if "home" in record:
            self._homes[record["home"]] = record["tier"]
            self._valid[record["home"], record["tier"]] = 0
            return
        self._step += 1
        if "compute" in record:
            self._computes += 1
        elif "copy" in record:
            self._copy(record["copy"], record["from"], record["to"])
        elif "detach" in record:
            self._detach(record["detach"], record["tier"])

    def _detach(self, tensor: str, tier: str) -> None:
        self._find(f"detach {tensor} from {tier}", (tensor, tier), "what is detached is there")
        del self._valid[tensor, tier]
        self._gone[tensor, tier] = self._computes, self._step

    def _copy(self, tensor: str, source: str, target: str) -> None:
        said = f"copy {tensor} {source} -> {target}"
        if source == target:
            raise self._error(said, "a copy goes from one tier to another", f"{source!r} twice", "correct one of them")
        self._find(said, (tensor, source), "what is copied is valid at its source")
        if self._valid.get((tensor, target)) == self._computes:
            found = f"{tensor!r} valid in {target} already"
            raise self._error(said, "a copy has work to do: its target is absent or stale", found, "drop this copy")
        self._valid[tensor, source] = self._valid[tensor, target] = self._computes

    def _find(self, said: str, place: Place, must: str) -> None:
        """Check that a step may find the tensor there; where only an op can have put it, there is the compute tier."""
        if place in self._valid:
            return
        tensor, tier = place
        computes, step = self._gone.get(place, (0, -1))
        if computes == self._computes:
            raise self._error(said, must, self._absence(place, step), self._advice(tensor))
        if self._compute_tier is None:
            self._compute_tier = tier, f"step {self._step:,} takes {tensor!r} from there"
        here, why = self._compute_tier
        if here != tier:
            found = f"{self._absence(place, step)}, and ops write in {here} only ({why})"
            raise self._error(said, must, found, self._advice(tensor))
        self._valid[place] = self._computes

    def _absence(self, place: Place, step: int) -> str:
        tensor, tier = place
        if step >= 0:
            return f"{tensor!r} absent from {tier} (detached by step {step:,})"
        if tensor in self._homes:
            return f"{tensor!r}, whose home is {self._homes[tensor]}, never copied into {tier}"
        before = "" if self._computes else ", and no op that could have written it"
        return f"{tensor!r} without a home or a copy into {tier}{before}"

    def _advice(self, tensor: str) -> str:
        near = "" if tensor in self._homes else suggestion(tensor, self._homes)
        return f"copy it there before, correct the step or drop it{near}"

    def _error(self, said: str, must: str, found: str, do: str) -> ConfigError:
        return ConfigError(f"{self._path}:{self._line}, step {self._step:,} ({said})", must, found, do)

    def end(self, repeats: int) -> None:
        """Check that the plan ends as a training step must.

        Parameters
        ----------
        repeats
            How many times the steps run; more than once, so that they must end as they began.

        Raises
        ------
        ConfigError
            If a tensor is where it may not be.
        """
        where, do = f"{self._path}, end of the plan", "copy it home if it has changed, and detach its other copies"
        for tensor, tier in self._valid:
            home = self._homes.get(tensor)
            if home is None:
                must = "what has no home is detached everywhere when a training step ends"
                raise ConfigError(where, must, f"{tensor!r} held in {tier}", "detach it after its last use")
            if home != tier:
                must = "what has a home ends a training step there, and nowhere else"
                raise ConfigError(where, must, f"{tensor!r} (home {home}) held in {tier}", do)
        for tensor, home in self._homes.items():
            place = tensor, home
            gone = place not in self._valid and self._gone[place][0] == self._computes
            if repeats > 1 and gone:
                must = "what has a home is there again when the steps are repeated"
                raise ConfigError(where, must, f"{tensor!r} absent from {home}", "leave it there, or copy it back")


SCHEMA = "hosim-plan/1"

_STREAMS = 1000
"""Streams are numbered below this."""

_DIGITS = 16
"""A time at which ranks begin has less digits: they begin within some weeks."""

_HEADER = jsonl.Shape(
    {
        "schema": str,
        "policy": str,
        "tiers": list,
        "repeats": int,
        "starts_ns": str,
        "notes": list,
        "homes": int,
        "steps": int,
    },
    ("schema",),
)
_LINES = {
    "compute": jsonl.Shape({"compute": str, "stream": int}, ("compute",)),
    "copy": jsonl.Shape({"copy": str, "from": str, "to": str}, ("copy", "from", "to")),
    "detach": jsonl.Shape({"detach": str, "tier": str}, ("detach", "tier")),
    "home": jsonl.Shape({"home": str, "tier": str}, ("home", "tier")),
    "sync": jsonl.Shape({"sync": str}, ("sync",)),
}


class _Names:
    """Ids of the names of one sort; without known names, each new name gets the next id."""

    def __init__(self, sort: str, known: Iterable[str] | None) -> None:
        self.sort, self.open = sort, known is None
        self.ids = {name: i for i, name in enumerate(known or ())}

    def id(self, line: jsonl.Line, name: str) -> int:
        found = self.ids.get(name)
        if found is not None:
            return found
        if not self.open:
            few = f" ({', '.join(self.ids)})" if len(self.ids) <= 10 else ""
            do = f"correct the name{suggestion(name, self.ids)}"
            raise line.error(f"a plan names {self.sort} of its run{few}", repr(name), do)
        return self.ids.setdefault(name, len(self.ids))


class _Reader:
    """Turns lines into homes and steps.

    Parameters
    ----------
    ops, tensors, tiers
        The names that are known.
    """

    def __init__(self, ops: _Names, tensors: _Names, tiers: _Names) -> None:
        self.ops, self.tensors, self.tiers = ops, tensors, tiers
        self.homes: dict[int, int] = {}
        self.steps = Steps()

    def begin(self, header: jsonl.Line) -> None:
        """Take the tiers that the header names; if it does, a plan that stands alone has no others."""
        named = header.record.get("tiers", ())
        for text in (header.record.get("policy", ""), *header.record.get("notes", ()), *named):
            if not text.isprintable():
                must = "what the header names or notes is one line of printable characters"
                raise header.error(must, repr(text), "correct the header")
        for at, tier in enumerate(named):
            self.tiers.id(header, tier)
            if tier in named[:at]:
                raise header.error("each tier is named once", f"{tier!r} twice", "remove one of them")
        self.tiers.open = self.tiers.open and not named

    def take(self, line: jsonl.Line) -> None:
        """Take a home or a step."""
        kind, record = line.kind(_LINES), line.record
        if kind == "compute":
            self.steps.append(COMPUTE, self.ops.id(line, record["compute"]), self._stream(line))
            return
        tensor = self.tensors.id(line, record[kind])
        if kind == "copy":
            ends = self.tiers.id(line, record["from"]), self.tiers.id(line, record["to"])
            self.steps.append(COPY, tensor, *ends)
        elif kind == "detach":
            self.steps.append(DETACH, tensor, self.tiers.id(line, record["tier"]))
        elif kind == "sync":
            self.steps.append(SYNC, tensor)
        else:
            self._take_home(line, tensor)

    def _take_home(self, line: jsonl.Line, tensor: int) -> None:
        name = repr(line.record["home"])
        if len(self.steps):
            found = f"that of {name} after {counted(len(self.steps), 'step')}"
            raise line.error("homes, which say where tensors are at time 0, come before the steps", found, "move it up")
        if tensor in self.homes:
            raise line.error("a tensor has one home", f"{name} twice", "remove one of the two lines")
        self.homes[tensor] = self.tiers.id(line, line.record["tier"])

    def _stream(self, line: jsonl.Line) -> int:
        stream: int = line.record.get("stream", 0)
        if not 0 <= stream < _STREAMS:
            raise line.error(f"a stream is a number from 0 to {_STREAMS - 1}", str(stream), "correct it")
        return stream


def read(path: Path, graph: Graph, tiers: Sequence[str]) -> Plan:
    """Read a plan.

    Parameters
    ----------
    path
        The file, or one compressed by gzip whose name ends in ``.gz``.
    graph
        The graph whose ops and tensors it names.
    tiers
        Names of the machine's tiers; they become the plan's.

    Raises
    ------
    ConfigError
        If a line breaks a rule of the format or names what does not exist; the message names the line.
    """
    ops = _Names("ops", (op.name for op in graph.ops))
    tensors = _Names("tensors", (t.name for t in graph.tensors))
    return _read(path, _Reader(ops, tensors, _Names("tiers", tiers)), graph.steps)


def write(plan: Plan, graph: Graph, path: Path) -> None:
    """Write a fixed plan.

    Parameters
    ----------
    plan
        The plan; a reactive one is recorded first.
    graph
        Its graph.
    path
        The file; compressed if its name ends in ``.gz``.

    Raises
    ------
    ConfigError
        If the plan is reactive, or the file cannot be written.
    """
    steps = plan.fixed
    if steps is None:
        must, found = "a plan in a file is a fixed list of steps", f"a reactive one ({plan.policy})"
        raise ConfigError(str(path), must, found, "run it and write what it issued")
    jsonl.write(path, _records(plan, steps, graph))


def describe(path: Path) -> str:
    """Read a plan without its graph, check what the file alone tells, and say in one line what is in it."""
    alone = PlanAlone(str(path))
    plan = _read(path, _Reader(_Names("ops", None), _Names("tensors", None), _Names("tiers", None)), 1, alone)
    alone.end(plan.repeats)
    steps = plan.fixed or Steps()
    homes = sum(home != NOWHERE for home in plan.home)
    copies = sum(kind == COPY for kind in steps.kind)
    return (
        f"plan of {plan.policy!r}: {counted(len(steps), 'step')}, {copies:,} of them copies; {counted(homes, 'home')}"
    )


def _read(path: Path, reader: _Reader, steps: int, alone: PlanAlone | None = None) -> Plan:
    lines = jsonl.read(path, SCHEMA, _HEADER)
    header = next(lines)
    reader.begin(header)
    for line in lines:
        reader.take(line)
        if alone is not None:
            alone.take(line)
    jsonl.count(header, {"homes": len(reader.homes), "steps": len(reader.steps)})
    repeats = header.record.get("repeats", steps)
    if repeats < 1:
        raise header.error("a plan is run at least once", f"repeats = {repeats}", "correct repeats")
    starts = header.record.get("starts_ns", "0").split()
    if not starts or not all(start.isdecimal() and start.isascii() and len(start) < _DIGITS for start in starts):
        must = "ranks begin at whole ns from 0, of which there is at least one"
        raise header.error(must, f"starts_ns = {header.record['starts_ns']!r}", 'write them as "0 3000"')
    return Plan(
        policy=header.record.get("policy", path.name.split(".")[0]),
        tiers=tuple(reader.tiers.ids),
        home=tuple(reader.homes.get(t, NOWHERE) for t in range(len(reader.tensors.ids))),
        steps=reader.steps,
        repeats=repeats,
        notes=tuple(header.record.get("notes", ())),
        starts_ns=tuple(map(int, starts)),
    )


def _records(plan: Plan, steps: Steps, graph: Graph) -> Iterator[dict[str, object]]:
    tensors, tiers = [t.name for t in graph.tensors], plan.tiers
    yield {
        "schema": SCHEMA,
        "policy": plan.policy,
        "tiers": list(tiers),
        "repeats": plan.repeats,
        **({"starts_ns": " ".join(map(str, plan.starts_ns))} if any(plan.starts_ns) else {}),
        "notes": list(plan.notes),
        "homes": sum(home != NOWHERE for home in plan.home),
        "steps": len(steps),
    }
    for name, home in zip(tensors, plan.home, strict=True):
        if home != NOWHERE:
            yield {"home": name, "tier": tiers[home]}
    for kind, a, b, c in steps.codes():
        if kind == COMPUTE:
            stream = {"stream": b} if b else {}
            yield {"compute": graph.ops[a].name, **stream}
        elif kind == COPY:
            yield {"copy": tensors[a], "from": tiers[b], "to": tiers[c]}
        elif kind == DETACH:
            yield {"detach": tensors[a], "tier": tiers[b]}
        else:
            yield {"sync": tensors[a]}
