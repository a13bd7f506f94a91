"""A job document becomes a job: the graphs of all programs that a rank runs become one, with what ranks hand over.

Names of a program's tensors, ops and groups begin with that of the program (``rollout.L03/kv``), and with several runs
with that and the index of the run (``rollout.1.L03/attn.core``), but for what lasts from run to run.

What is handed over is sent as soon as it is written for the last time. It is received before it is first read; or, if
it is of an earlier round, at the end of the step, the last of the buffers in which it then waits. On one rank nothing
is sent: it is one tensor, or, if it is of another round or another slice, a copy. Weights of a layer that go from one
rank to another are one message. In no group does a rank both send and receive, and all ranks come to the messages of an
edge in one order, so that no circle of ranks waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from simulator.builders.handed import Handed, Placed, TensorUses, groups, hand_over
from simulator.errors import insist
from simulator.graph import (
    HOST,
    Collective,
    CollectiveKind,
    DelaySpread,
    Graph,
    Group,
    Job,
    Op,
    OpKind,
    Tensor,
    check_run,
    check_sums,
)
from simulator.graph_builder import GraphBuilder
from simulator.layout import Weight
from simulator.workload import Workload
from simulator.workload.job import JobDocument, JobProgram

Built = Callable[[Workload], tuple[Job, dict[str, Weight]]]
"""Function that builds a workload, and says how its weights lie."""


class Message(NamedTuple):
    """The part of a rank in what is handed over.

    Attributes
    ----------
    handed
        Which of all that is.
    role
        ``send``, ``recv``, ``copy`` (within the rank), or ``share`` (both programs have one tensor).
    group, size_bytes
        The group of ranks that meet, and the size [B].
    """

    handed: int
    role: str
    group: Group | None
    size_bytes: int


def build_programs(document: JobDocument, build: Built) -> Job:
    """Build the job of a document.

    Raises
    ------
    ConfigError
        If a program does not fit on its ranks, or an edge cannot hand over what it says.
    """
    placed = {name: _placed(document, name, build) for name in document.programs}
    handed = hand_over(document, placed)
    stacks: dict[int, list[tuple[str, int]]] = {rank: [] for rank in document.idle_ranks}
    for name, program in placed.items():
        for rank, graph in program.graph_of.items():
            stacks.setdefault(rank, []).append((name, graph))
    parts, classes = _messages(handed), dict[object, list[int]]()
    for rank in sorted(stacks):
        classes.setdefault((*stacks[rank], *parts.get(rank, ())), []).append(rank)
    graphs, labels, graph_of = list[Graph](), list[str](), dict[int, int]()
    for index, ranks in enumerate(classes.values()):
        stack = stacks[ranks[0]]
        labels.append(_label(placed, stack, [*labels]))
        joint = _Joint(placed, handed).graph(f"{document.name} {labels[-1]}", stack, parts.get(ranks[0], []))
        check_run(len(joint.ops), document.steps, f"job {document.name}", len(joint.tensors))
        graphs.append(joint.repeated(document.steps, f"job {document.name}, {labels[-1]}"))
        check_sums(graphs[-1], f"job {document.name}")
        graph_of |= dict.fromkeys(ranks, index)
    lag = sum(edge.stale for edge in document.edges) + any(document.lag(edge) > edge.stale for edge in document.edges)
    return Job(document.name, tuple(graphs), tuple([graph_of[rank] for rank in sorted(graph_of)]), tuple(labels), lag)


def _placed(document: JobDocument, name: str, build: Built) -> Placed:
    """Build a program of a job."""
    program, ranks = document.programs[name], document.placed[name]
    work = program.on(len(ranks))
    if work is None:
        job, weights = Job.of(waiting(document.name, program)), dict[str, Weight]()
    else:
        must, do = "a job names the device of each part of a program", "say accelerator or host"
        insist(len(work.settled) == 1, f"job {document.name}, programs.{name}.workload.on", must, "any", do)
        job, weights = build(work.model_copy(update={"steps": 1}))
    must, found = "ranks are a multiple of the layout of their program", f"{len(ranks)}, and {job.ranks}"
    do = "correct ranks, or the layout of its workload"
    insist(len(ranks) % job.ranks == 0, f"job {document.name}, programs.{name}.ranks", must, found, do)
    return Placed(name, ranks, program.runs, job, work, weights)


def waiting(name: str, program: JobProgram | None = None) -> Graph:
    """Return the graph of a rank that waits for the delay of a program, or does nothing."""
    drawn, graph = program.spread if program else None, GraphBuilder(name, f"job {name}")
    spread = DelaySpread(drawn.distribution, drawn.deviation_ns) if drawn else None
    graph.op("wait", kind="delay", duration_ns=program.delay_ns if program else 0, spread=spread)
    return graph.build()


def _label(placed: dict[str, Placed], stack: Sequence[tuple[str, int]], others: Sequence[str]) -> str:
    """Return what ranks with these programs are called, unlike others."""
    jobs = [(name, placed[name].job, graph) for name, graph in stack]
    names = [f"{name} {job.labels[graph]}" if len(job.graphs) > 1 else name for name, job, graph in jobs]
    label = " + ".join(names) or "idle"
    alike = sum(other == label or other.startswith(f"{label}, ") for other in others)
    return f"{label}, {alike + 1}" if alike else label


def _messages(handed: Sequence[Handed]) -> dict[int, list[Message]]:
    """Return the parts of each rank in all that is handed over, in order."""
    parts, by_edge = dict[int, list[Message]](), groups(handed)
    for index, part in enumerate(handed):
        for rank in sorted(part.shared):
            parts.setdefault(rank, []).append(Message(index, "share", None, 0))
        met = by_edge.get(part.edge, {})
        in_turn = [pair for pair in part.sizes if pair not in met] + [pair for pair in met if pair in part.sizes]
        for pair in in_turn:
            group = met.get(pair)
            for role, rank in zip(("send", *["recv"] * (len(pair) - 1)) if group else ("copy",), pair, strict=False):
                parts.setdefault(rank, []).append(Message(index, role, group, part.sizes[pair]))
    return parts


class _Joint:
    """The graph of a rank that runs several programs.

    Parameters
    ----------
    placed, handed
        The programs, and all that they hand over.
    """

    def __init__(self, placed: dict[str, Placed], handed: Sequence[Handed]) -> None:
        self._placed, self._handed = placed, handed
        self._tensors: list[Tensor] = []
        self._ids: dict[str, int] = {}
        self._ops: list[Op] = []
        self._outputs: list[int] = []
        self._in_place: set[int] = set()
        self._groups: dict[str, Group] = {}
        self._kept: dict[tuple[str, str], bool] = {}  # of a program, what is one tensor for all runs -> it persists
        self._same: dict[tuple[str, str], tuple[str, str, int]] = {}  # what a run of another program made -> that
        self._waiting: dict[tuple[str, int], list[tuple[str, int, int]]] = {}  # op of a program -> runs that go before
        self._first: dict[tuple[str, str], int] = {}  # of a program, a tensor -> the first op that names it
        self._written: dict[tuple[str, str, int], int] = {}  # and the last one of a run that writes it
        self._turns: dict[tuple[str, int], int] = {}  # edge, and which of its buffers -> stream of what moves up there
        self._before: dict[int, list[Op]] = {}  # op, or the index of all -> messages that go before it

    def graph(self, name: str, stack: Sequence[tuple[str, int]], messages: Sequence[Message]) -> Graph:
        """Join the programs of a rank, and add its messages."""
        for program, index in stack:
            of_graph = self._placed[program].job.graphs[index].tensors
            self._kept |= {(program, tensor.name): True for tensor in of_graph if tensor.persistent}
        for message in messages:
            part = self._handed[message.handed]
            sender, receiver = (end.name for end in part.ends)
            if message.role != "send":
                self._kept |= {(receiver, name): part.lasts for name in part.writes}
            for of, to in zip(part.reads, part.writes, strict=True) if message.role == "share" else ():
                source, target = self._whose(sender, of, part.run), self._whose(receiver, to)[:2]
                self._same |= {} if source[:2] == target else {target: source}
        runs = [(*program, run) for program in stack for run in range(self._placed[program[0]].runs)]
        ids = {(program, run): self._declared(program, index, run) for program, index, run in runs}
        self._wait(dict(stack), messages)
        later = {*chain.from_iterable(self._waiting.values())}
        for each in runs:
            if each not in later:
                self._add(*each, ids)
        if not stack:
            self._ops.append(waiting(name).ops[0])
        self._free = 1 + max(op.stream for op in self._ops if op.device != HOST)
        self._add_messages(messages)
        outputs = tuple(dict.fromkeys(self._outputs))
        joint = Graph(name, tuple(self._tensors), self._in_order(), outputs, groups=tuple(self._groups.values()))
        is_plain = not (self._in_place and (joint.dynamic_reads or joint.on_host))
        must, do = "kernels read in place where nothing is read dynamically and the host computes nothing", "remove one"
        insist(is_plain, f"job {name}", must, "dynamic reads, or ops of the host, of another program", do)
        return replace(joint, in_place=joint.may_stay_away.intersection(self._in_place))

    def _wait(self, graph_of: dict[str, int], messages: Sequence[Message]) -> None:
        """Let runs that wait for who needs them go before the first op that does."""
        soonest = dict[tuple[str, int, int], tuple[str, int]]()
        for part in (self._handed[message.handed] for message in messages if message.role != "send"):
            sender, receiver = (end.name for end in part.ends)
            uses = TensorUses.of(self._placed[receiver].job.graphs[graph_of[receiver]])
            if part.waits:
                each = (sender, graph_of[sender], part.run)
                before = receiver, min(uses.first[uses.ids[name]] for name in part.writes)
                soonest[each] = min(before, soonest.get(each, before))
        for each, before in soonest.items():
            self._waiting.setdefault(before, []).append(each)

    def _name(self, program: str, tensor: str, run: int = -1) -> str:
        """Return the name of a tensor in a run of its program, by default the last one."""
        program, name, run = self._whose(program, tensor, run)
        runs = self._placed[program].runs
        return f"{program}.{name}" if runs == 1 or (program, name) in self._kept else f"{program}.{run % runs}.{name}"

    def _whose(self, program: str, tensor: str, run: int = -1) -> tuple[str, str, int]:
        """Return the program whose tensor this is, its name there, and in which run."""
        while (program, tensor) in self._same:
            program, tensor, run = self._same[program, tensor]
        return program, tensor, run

    def _declare(self, tensor: Tensor) -> int:
        """Return the id of a tensor by its name; add it if there is none."""
        if tensor.name not in self._ids:
            self._ids[tensor.name] = len(self._tensors)
            self._tensors.append(tensor)
        return self._ids[tensor.name]

    def _declared(self, program: str, index: int, run: int) -> list[int]:
        """Declare the tensors of a run of a program; return their ids."""
        ids = list[int]()
        for tensor in self._placed[program].job.graphs[index].tensors:
            name, lasts = self._name(program, tensor.name, run), self._kept.get((program, tensor.name), False)
            ids.append(self._declare(replace(tensor, name=name, persistent=lasts)))
        return ids

    def _add(self, program: str, index: int, run: int, ids_of: dict[tuple[str, int], list[int]]) -> None:
        """Add a run of a program, and those that wait until it needs what they make."""
        placed, ids, places = self._placed[program], ids_of[program, run], list[int]()
        graph, prefix = placed.job.graphs[index], f"{program}." if placed.runs == 1 else f"{program}.{run}."
        for position, op in enumerate(graph.ops):
            for each in self._waiting.get((program, position), ()) if not run else ():
                self._add(*each, ids_of)
            places.append(len(self._ops))
            reads, writes = (tuple([ids[t] for t in used]) for used in (op.reads, op.writes))
            met, drawn = op.collective, op.dynamic
            met = met and replace(met, group=f"{program}.{met.group}")
            if drawn:
                candidates = tuple([ids[t] for t in drawn.candidates])
                drawn = replace(drawn, revealed_by=places[drawn.revealed_by], candidates=candidates)
            name = prefix + op.name
            self._ops.append(replace(op, name=name, reads=reads, writes=writes, collective=met, dynamic=drawn))
        for group in map(placed.group, graph.groups):
            self._groups[group.name] = group
        given = {name for part in self._handed if part.ends[0].name == program for name in part.reads}
        uses = TensorUses.of(graph)
        for name, t in uses.ids.items():
            if t in uses.first:
                self._first.setdefault((program, name), places[uses.first[t]])
            if t in uses.written:
                self._written[program, name, run] = places[uses.written[t]]
        self._in_place.update(ids[t] for t in graph.in_place)
        self._outputs += [ids[t] for t in graph.outputs if graph.tensors[t].name not in given]

    def _add_messages(self, messages: Sequence[Message]) -> None:
        """Add messages where they can go first, without changing their order in an edge."""
        places, seen, after = dict[int, int](), set[int](), len(self._ops)
        latest, soonest = dict[str, int](), dict[str, int]()
        parts = [(i, message.role, self._handed[message.handed]) for i, message in enumerate(messages)]
        for i, role, part in parts:
            if role == "send":
                sender = part.ends[0]
                written = max(self._written[sender.name, name, part.run % sender.runs] for name in part.reads)
                places[i] = latest[part.edge] = max(written + 1, latest.get(part.edge, 0))
        for i, role, part in reversed(parts):
            if role in ("recv", "copy"):
                first = after if part.lag else min(self._first[part.ends[1].name, name] for name in part.writes)
                places[i] = soonest[part.edge] = min(first, soonest.get(part.edge, after))
        for i, place in sorted(places.items()):
            ops = self._message(messages[i], is_first=messages[i].handed not in seen)
            self._before.setdefault(place, []).extend(ops)
            seen.update(() if messages[i].role == "send" else (messages[i].handed,))

    def _message(self, message: Message, *, is_first: bool) -> list[Op]:
        """Return the ops of a message; the first one that writes a tensor lets what waits in buffers move up."""
        part, group, size_bytes = self._handed[message.handed], message.group, message.size_bytes
        sender, receiver = (end.name for end in part.ends)
        name, ops = f"{part.edge}/{part.name}", list[Op]()
        reads = [self._ids[self._name(sender, of, part.run)] for of in part.reads if message.role != "recv"]
        writes = [self._ids[self._name(receiver, to)] for to in part.writes if message.role != "send"]
        for buffer in range(1, part.lag if writes else 1):
            names = [f"{self._name(receiver, to)}.{buffer}" for to in part.writes]
            behind = [self._declare(replace(self._tensors[t], name=of)) for t, of in zip(writes, names, strict=True)]
            if is_first:
                stream = self._turns.setdefault((part.edge, buffer), self._free + len(self._turns))
                turn = Op(f"{name}/turn.{buffer}", tuple(behind), tuple(writes), kind=OpKind.DELAY, stream=stream)
                ops.append(turn)  # moves no bytes, and nothing waits for what has not come but what needs it
            writes = behind
        if writes and not is_first:
            reads += writes
        met, kind, name = None, OpKind.COMPUTE, f"{name}/{message.role}"
        if group:
            self._groups[group.name] = group
            does = CollectiveKind.BROADCAST if len(group.members[0]) > 2 else CollectiveKind(message.role)
            met, kind = Collective(does, group.name, size_bytes), OpKind.COLLECTIVE
            name += f".{group.name.rpartition('.')[2]}"
        read_bytes, write_bytes = (size_bytes * (message.role != end) for end in ("recv", "send"))
        return [*ops, Op(name, tuple(reads), tuple(writes), read_bytes, write_bytes, kind=kind, collective=met)]

    def _in_order(self) -> tuple[Op, ...]:
        """Return all ops in order, those of the host on streams behind all others."""
        ops, moved = list[Op](), list[int]()
        for index in range(len(self._ops) + 1):
            ops += self._before.get(index, ())
            moved.append(len(ops))
            ops += self._ops[index : index + 1]
        streams = sorted({op.stream for op in ops if op.device == HOST})
        free = 1 + max((op.stream for op in ops if op.device != HOST), default=0)
        for index in moved[:-1] if streams else ():
            if ops[index].device == HOST:
                ops[index] = replace(ops[index], stream=free + streams.index(ops[index].stream))
        for index in moved[:-1]:
            if drawn := ops[index].dynamic:
                ops[index] = replace(ops[index], dynamic=replace(drawn, revealed_by=moved[drawn.revealed_by]))
        return tuple(ops)
