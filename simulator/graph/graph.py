"""The operator graph of one rank: tensors, and ops in program order, also in columns of numbers."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import translate
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any, Self, cast

import numpy as np

from simulator.errors import ConfigError, insist
from simulator.graph.graph_columns import GraphColumns
from simulator.graph.ops import AGAIN, HOST, LARGEST, DelaySpread, DynamicReads, Group, Op, OpKind, Tensor, TensorKind
from simulator.units import counted

LARGEST_RUN = 4_000_000
"""Most ops that a run computes, all steps together: about 10 GB of memory with every table written."""


_USES = attrgetter("name", "reads", "writes")
_NUMBERS = attrgetter("read_bytes", "write_bytes", "flops", "workspace_bytes", "duration_ns")
_TRAITS = attrgetter(*(field.name for field in fields(Op)[8:]))
"""The fields of an op, in order: what it uses, its numbers, and all others."""
_ALIKE = attrgetter(*(field.name for field in fields(Op)[8:] if field.name != "collective"))
"""Those of them that have no number."""
_OF_ORDER = ("inputs", "meets", "on_host", "made_on_host", "dynamic_reads", "cacheable")
"""What a graph derives from the order of its ops alone."""


@dataclass(frozen=True)
class Graph:
    """Ops in program order over tensors, run `steps` times.

    Attributes
    ----------
    tensors, ops
        Their position is their id. The ops are those of one step.
    outputs
        Tensors (ids) that must still be valid in some tier when a step ends; persistent ones always must.
    steps
        How many times the ops run, one after another. Tensors that are not persistent are new in each step.
    groups
        Groups that its collectives name, for all ranks of the job.
    in_place
        Tensors (ids) that ops may read in place, over a link from another tier; see `may_stay_away`.
    known
        What was derived from this graph alone, by what it is: a sweep runs one graph on many machines.

    Notes
    -----
    What exists before the first op is what is persistent, plus, in a graph of one step, what is read before
    it is written.
    """

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    outputs: tuple[int, ...] = ()
    steps: int = 1
    groups: tuple[Group, ...] = ()
    in_place: frozenset[int] = frozenset()
    known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def columns(self) -> GraphColumns:
        """Its ops and tensors in columns of numbers, kept from where it was built."""
        return GraphColumns.of(self.tensors, self.ops, self.outputs)

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Ids of what exists before the first op: the persistent tensors, and those read before written."""
        columns, never = self.columns, len(self.ops)
        read, written = first = np.full((2, len(self.tensors)), never)  # the first op that reads, and writes, each
        named = (columns.reads_at, columns.reads), (columns.writes_at, columns.writes)
        for ops, (starts, ids) in zip(first, named, strict=True):
            ops[ids[::-1]] = np.repeat(np.arange(never), np.diff(starts))[::-1]  # where ids repeat, the last one counts
        is_input = columns.is_persistent.astype(bool) | ((read < never) & (read <= written))
        return tuple(np.flatnonzero(is_input).tolist())

    @cached_property
    def arithmetic(self) -> dict[str, int]:
        """Data type -> what a step computes of the model, however it is run [FLOP].

        Every op of the accelerator counts once but elementwise ones (class ``vector``), those of the update, and those
        that a checkpoint runs again (`AGAIN` in their names): matrices and attention, as PaLM counts (arXiv 2204.02311,
        appendix B), but for what kernels of attention skip, as causal ones do, or compute again in backward.
        """
        flops: dict[str, int] = {}
        for op in self.ops:
            if (
                op.flops
                and op.device != HOST
                and op.op_class != "vector"
                and op.phase != "update"
                and AGAIN not in op.name
            ):
                flops[op.dtype] = flops.get(op.dtype, 0) + op.flops
        return flops

    @cached_property
    def on_host(self) -> frozenset[int]:
        """Ops that run on the host."""
        return frozenset(index for index, op in enumerate(self.ops) if op.device == HOST)

    @cached_property
    def delays(self) -> frozenset[int]:
        """Ops that hold their stream for a time, and compute nothing."""
        return frozenset(index for index, op in enumerate(self.ops) if op.kind is OpKind.DELAY)

    @property
    def spreads(self) -> dict[int, DelaySpread]:
        """Delay -> how it varies, of those that do."""
        return {index: spread for index in sorted(self.delays) if (spread := self.ops[index].spread)}

    @property
    def host_streams(self) -> frozenset[int]:
        """The streams that its ops of the host name."""
        return frozenset(self.ops[index].stream for index in self.on_host)

    @cached_property
    def made_on_host(self) -> frozenset[int]:
        """Tensors that are new in each step, first written by an op of the host, and used by one of the accelerator."""
        first, used = dict[int, int](), set[int]()
        for index, op in enumerate(self.ops):
            for tensor in op.writes:
                first.setdefault(tensor, index)
            used.update(() if index in self.on_host else (*op.reads, *op.writes))
        exists = {*self.inputs}
        return frozenset(t for t, op in first.items() if op in self.on_host and t in used and t not in exists)

    @property
    def of_host(self) -> list[int]:
        """Persistent tensors that ops of the host alone use."""
        if not self.on_host:
            return []
        ops = [(index in self.on_host, {*op.reads, *op.writes}) for index, op in enumerate(self.ops)]
        used, others = (set().union(*(t for by, t in ops if by == is_host)) for is_host in (True, False))
        return [t for t in sorted(used - others) if self.tensors[t].persistent]

    @property
    def on_accelerator(self) -> Self:
        """The graph as its accelerator sees it: ops of the host use nothing there.

        What the host makes for the accelerator lies in the host's tier from the start, as a persistent tensor does. No
        op runs again that writes what the host writes, too.
        """
        if not self.on_host or vars(self).get("_whole"):
            return self
        if "on accelerator" in self.known:
            return cast(Self, self.known["on accelerator"])
        ops, made = list(self.ops), self.made_on_host
        written = frozenset(chain.from_iterable(self.ops[index].writes for index in self.on_host))
        for index, op in enumerate(ops):
            if not written.isdisjoint(op.writes):
                ops[index] = replace(op, repeatable=False)
        for index in self.on_host:
            ops[index] = replace(ops[index], reads=(), writes=(), read_bytes=0, write_bytes=0, workspace_bytes=0)
        used = frozenset(chain.from_iterable((*op.reads, *op.writes) for op in ops))
        tensors = [replace(tensor, persistent=tensor.persistent or t in made) for t, tensor in enumerate(self.tensors)]
        outputs = tuple(t for t in self.outputs if t in used or tensors[t].persistent)
        view = self.known["on accelerator"] = replace(self, tensors=tuple(tensors), ops=tuple(ops), outputs=outputs)
        vars(view)["_whole"] = self
        return view

    @property
    def whole(self) -> Graph:
        """The graph whose accelerator sees this one, perhaps over other steps; itself if it is none's view."""
        whole: Graph = vars(self).get("_whole", self)
        return whole

    @cached_property
    def meets(self) -> bool:
        """Whether its ranks meet others in collectives."""
        return any(op.collective for op in self.ops)

    @cached_property
    def dynamic_reads(self) -> dict[int, DynamicReads]:
        """Op, in program order -> its reads that are known only at run time."""
        return {index: op.dynamic for index, op in enumerate(self.ops) if op.dynamic}

    @property
    def may_stay_away(self) -> frozenset[int]:
        """Tensors that `in_place` may name: persistent, written by no op, and read by kernels of the accelerator."""
        read, others = set[int](), set[int]()
        for op in self.ops:
            others.update(op.writes)
            (others if op.collective or op.device == HOST else read).update(op.reads)
        return frozenset(t for t in read - others if self.tensors[t].persistent)

    def without_reads(self, tensors: Collection[int]) -> Self:
        """Return the graph as if ops read none of these tensors: they need no place, and cause no traffic."""
        ops, away = list(self.ops), frozenset(tensors)
        for index, op in enumerate(ops):
            if not away.isdisjoint(op.reads):
                left = sum(self.tensors[t].size_bytes for t in away.intersection(op.reads))
                reads, read_bytes = tuple([t for t in op.reads if t not in away]), max(0, op.read_bytes - left)
                ops[index] = replace(op, reads=reads, read_bytes=read_bytes)
        return replace(self, ops=tuple(ops), in_place=self.in_place - away)

    @property
    def certain(self) -> Self:
        """The graph with nothing but what ops use for certain, without what dynamic reads choose."""
        if not self.dynamic_reads:
            return self
        ops = list(self.ops)
        for op, reads in self.dynamic_reads.items():
            candidates = frozenset(reads.candidates)
            read, written = ([t for t in ids if t not in candidates] for ids in (ops[op].reads, ops[op].writes))
            ops[op] = replace(ops[op], reads=tuple(read), writes=tuple(written), dynamic=None)
        return replace(self, ops=tuple(ops))

    @cached_property
    def cacheable(self) -> frozenset[int]:
        """Candidates of dynamic reads that persist and that no op writes: copies of them may outlast a step."""
        persistent = {t for t in self.candidates if self.tensors[t].persistent}
        return frozenset(persistent.difference(*(op.writes for op in self.ops)) if persistent else ())

    @cached_property
    def updated(self) -> frozenset[int]:
        """Candidates that some op writes once it has chosen them, and none for certain."""
        updated = frozenset().union(*(reads.candidates for reads in self.dynamic_reads.values() if reads.updates))
        return updated.difference(*(op.writes for op in self.certain.ops)) if updated else updated

    @property
    def candidates(self) -> frozenset[int]:
        """All tensors that some op may read dynamically."""
        return frozenset().union(*(reads.candidates for reads in self.dynamic_reads.values()))

    def matching(self, pattern: str) -> list[int]:
        """List the tensors of a kind, or with a name that matches a shell pattern.

        Parameters
        ----------
        pattern
            A `TensorKind`, or a pattern such as ``L*/norm?.weight``.
        """
        if pattern in set(TensorKind):
            return [i for i, t in enumerate(self.tensors) if t.kind == pattern]
        is_meant = re.compile(translate(pattern)).match
        return [i for i, t in enumerate(self.tensors) if is_meant(t.name)]

    def over(self, steps: int) -> Self:
        """Return the same ops over other steps, unchecked (see `repeated`); what was derived from them still holds."""
        again = replace(self, steps=steps)
        vars(again).update({name: value for name, value in vars(self).items() if name not in vars(again)})
        return again

    @property
    def shape(self) -> Hashable:
        """All that it says but its numbers, to compare."""
        tensors = tuple([(tensor.name, tensor.kind, tensor.persistent, tensor.shared) for tensor in self.tensors])
        met = (op.collective and replace(op.collective, size_bytes=0) for op in self.ops)
        ops = tuple([(_USES(op), _ALIKE(op), collective) for op, collective in zip(self.ops, met, strict=True)])
        return self.name, tensors, ops, self.outputs, self.steps, self.groups, self.in_place

    def with_numbers(self, like: Graph, tensors: Sequence[int], ops: Sequence[int]) -> Self:
        """Return the same ops on the same tensors with the numbers of another graph; what order alone implies is kept.

        Numbers are sizes, also of collectives, traffic, FLOPs, workspaces and durations.

        Parameters
        ----------
        like
            Graph whose numbers are taken.
        tensors, ops
            For each tensor and op of this graph, that of the other (ids) which has its numbers.
        """
        numbers = [*map(_NUMBERS, like.ops)]
        made = [Op(*_USES(op), *numbers[i], *_TRAITS(op)) for op, i in zip(self.ops, ops, strict=True)]
        meeting = (index for index, i in enumerate(ops) if like.ops[i].collective) if self.meets else ()
        for index in meeting:
            made[index] = replace(made[index], collective=like.ops[ops[index]].collective)
        sized = zip(self.tensors, map(like.tensors.__getitem__, tensors), strict=True)
        same = [Tensor(t.name, other.size_bytes, t.kind, t.persistent, t.shared) for t, other in sized]
        graph = replace(self, tensors=tuple(same), ops=tuple(made))
        vars(graph).update({name: vars(self)[name] for name in _OF_ORDER if name in vars(self)})
        sizes, workspaces = like.columns.size_bytes[tensors], like.columns.workspace_bytes[ops]
        vars(graph)["columns"] = replace(self.columns, size_bytes=sizes, workspace_bytes=workspaces)
        return graph

    def repeated(self, steps: int, where: str = "") -> Self:
        """Return the graph run `steps` times.

        Parameters
        ----------
        steps
            How many times, at least 1.
        where
            What a message calls the origin of the graph; default: its name.

        Raises
        ------
        ConfigError
            If `steps` is below 1; or so many that there were more than `LARGEST_RUN` ops to compute; or above 1 while a
            tensor that is not persistent is read before it is written: the second step would not find it.
        """
        where = where or self.name
        is_right, must = type(steps) is int and steps > 0, "a graph runs a whole number of steps, at least 1"
        insist(is_right, where, must, repr(steps), "correct steps")
        check_run(len(self.ops), steps, where)
        new = [self.tensors[t].name for t in self.inputs if not self.tensors[t].persistent]
        if steps > 1 and new:
            must = "a tensor that exists before the first op of a graph of several steps is persistent"
            raise ConfigError(where, must, repr(new[0]), "mark it persistent, or set steps to 1")
        return self.over(steps)


def check_run(ops: int, steps: int, where: str, tensors: int = 0) -> None:
    """Refuse a run that memory may not hold, best before anything is built.

    Parameters
    ----------
    ops, steps
        How many ops a step has, and how many steps are run.
    where
        What a message calls the origin of the graph.
    tensors
        At least how many tensors it has.

    Raises
    ------
    ConfigError
        If there were more than `LARGEST_RUN` ops to compute, or tensors.
    """
    must, do = f"a graph has at most {LARGEST_RUN:,} tensors", "lower the number of layers or of experts"
    insist(tensors <= LARGEST_RUN, where, must, f"about {tensors:,}", do)
    must = f"a run computes at most {LARGEST_RUN:,} ops, all steps together"
    found = f"{counted(ops, 'op')} in each of {counted(steps, 'step')}"
    insist(ops * steps <= LARGEST_RUN, where, must, found, "lower the number of layers or of steps")


def check_sums(graph: Graph, where: str) -> None:
    """Refuse sizes or durations that add up to more than `LARGEST`.

    Parameters
    ----------
    graph, where
        The graph, and what a message calls its origin.

    Raises
    ------
    ConfigError
        If they do.
    """
    sizes = int(graph.columns.size_bytes.sum(dtype=object)) + int(graph.columns.workspace_bytes.max())
    times = graph.steps * sum(op.duration_ns or 0 for op in graph.ops)
    for figures, total in (("sizes", sizes), ("durations of all steps", times)):
        must, do = f"the {figures} add up to at most 2**62", "correct the largest ones"
        insist(total <= LARGEST, where, must, str(total), do)
