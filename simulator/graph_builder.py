"""Building an operator graph by names, with every rule of a graph checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import chain, filterfalse
from typing import Unpack

from typing_extensions import TypedDict

from simulator.document import MOST_RANKS, flaw
from simulator.errors import ConfigError, insist
from simulator.graph import (
    ALGORITHMS,
    DEVICES,
    HOST,
    LARGEST,
    PAIRED,
    PHASES,
    Collective,
    CollectiveKind,
    DelaySpread,
    DynamicReads,
    Graph,
    Group,
    Op,
    OpKind,
    Tensor,
    TensorKind,
    check_sums,
)
from simulator.units import suggestion


class OpNumbers(TypedDict, total=False):
    """Numbers, texts and switches of `Op` that `GraphBuilder.op` hands on."""

    read_bytes: int
    write_bytes: int
    flops: int
    workspace_bytes: int
    duration_ns: int | None
    op_class: str
    dtype: str
    phase: str
    barrier: bool
    repeatable: bool
    stream: int
    device: str


class OpFields(OpNumbers, total=False):
    """Fields of `Op` that `GraphBuilder.op` hands on."""

    collective: Collective | None
    dynamic: DynamicReads | None
    spread: DelaySpread | None


_NUMBERS = frozenset(("read_bytes", "write_bytes", "flops", "workspace_bytes", "duration_ns"))
_WORK = ("flops", "read_bytes", "write_bytes", "workspace_bytes", "op_class", "dtype")
MOST_STREAMS = 32
"""Most compute streams that ops of a rank may name: a plan uses at most 64, and each group of ranks has one."""
_TENSOR_KINDS = {str(kind): kind for kind in TensorKind}
_OP_KINDS = {str(kind): kind for kind in OpKind}


def _is_whole(value: object) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


class GraphBuilder:
    """Build a graph by names, in program order; every rule of a graph is checked here.

    Parameters
    ----------
    name
        Name of the graph, for people.
    where
        Origin of the graph in messages: a file, or the builder's name.

    Attributes
    ----------
    line
        Line of that file with the next tensor or op; messages name it unless it is 0.
    """

    def __init__(self, name: str, where: str = "") -> None:
        self._name, self._where = name, where or name
        self.line = 0
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._tensor_ids: dict[str, int] = {}
        self._op_ids: dict[str, int] = {}
        self.groups: dict[str, Group] = {}
        self._sound: set[tuple[str, CollectiveKind]] = set()  # groups whose members were checked for this kind
        self._sound_names = set[str]()  # classes and data types of ops that were checked
        self._sizes, self._shared = list[int](), set[int]()
        self._present: set[int] = set()  # from the start, or written by an op so far
        self._early: dict[int, tuple[str, int]] = {}  # read before it is written -> first reader, its line

    def tensor(self, name: str, size_bytes: int, kind: str = "activation", *, persistent: bool = False,
               shared: str | None = None) -> int:  # fmt: skip
        """Add a tensor and return its id; the parameters are the fields of `Tensor`.

        Raises
        ------
        ConfigError
            If the name is taken, or a field breaks its rule.
        """
        if name in self._tensor_ids or not name or flaw(name):
            raise self._name_error("tensor", name)
        if type(size_bytes) is not int or not 0 <= size_bytes <= LARGEST:
            raise self._number_error("tensor", name, "size_bytes", size_bytes)
        if (tensor_kind := _TENSOR_KINDS.get(kind)) is None:
            raise self._choice_error("tensor", name, "kind", kind, _TENSOR_KINDS)
        if shared not in (None, "node", "supernode"):
            raise self._choice_error("tensor", name, "shared", shared, ("node", "supernode"))
        t = self._tensor_ids[name] = len(self._tensors)
        self._tensors.append(Tensor(name, size_bytes, tensor_kind, persistent, shared))
        self._sizes.append(size_bytes)
        if persistent or tensor_kind is TensorKind.INPUT:
            self._present.add(t)
        if shared:
            self._shared.add(t)
        return t

    def group(self, name: str, members: Iterable[Iterable[int]]) -> None:
        """Add a group of ranks, which collectives of later ops name.

        Parameters
        ----------
        name
            Unique; each name has a stream of its own.
        members
            Ranks that meet, for all ranks of the job.

        Raises
        ------
        ConfigError
            If the name is taken, or a rank is no whole number or twice among those that meet.
        """
        if name in self.groups or not name or flaw(name):
            raise self._name_error("group", name)
        meeting = tuple(map(tuple, members))
        for ranks in meeting:
            if not ranks or not all(map(_is_whole, ranks)) or max(ranks) >= MOST_RANKS or len(set(ranks)) < len(ranks):
                must = f"members are different ranks, whole numbers from 0 to below {MOST_RANKS:,}"
                raise self._error("group", name, must, str(list(ranks)), "correct them")
        self.groups[name] = Group(name, meeting)

    def dynamic_reads(self, op: str, revealed_by: str, candidates: Iterable[str], *, samples: int = 1,
                      each: int = 1, updates: bool = False) -> DynamicReads:  # fmt: skip
        """Return the dynamic reads of the op that is added next, for its field `dynamic`.

        Parameters
        ----------
        op
            Its name, for messages.
        revealed_by, candidates
            Names of an op and of tensors that were added before.
        samples, each, updates
            As in `simulator.graph.DynamicReads`.

        Raises
        ------
        ConfigError
            If the op or a tensor is not known, there are no candidates, or a number is out of range.
        """
        revealing, ids = self._op_ids.get(revealed_by), self._ids(op, candidates)
        if revealing is None:
            must, do = "the op that reveals the choice comes before", "put it before, or correct the name"
            raise self._error("op", op, must, repr(revealed_by), f"{do}{suggestion(revealed_by, self._op_ids)}")
        if self._ops[revealing].device == HOST:
            must, do = "the op that reveals the choice runs on the accelerator", "run it there"
            raise self._error("op", op, must, f"{revealed_by!r}, of the host", do)
        if not (_is_whole(samples) and samples and _is_whole(each) and 0 < each <= len(ids)):
            must = "each of some samples chooses at least one and at most all candidates"
            found = f"{samples!r} samples that choose {each!r} of {len(ids):,}"
            raise self._error("op", op, must, found, "correct samples or each, or name more candidates")
        return DynamicReads(revealing, ids, samples, each, updates)

    def op(
        self,
        name: str,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        kind: str = "compute",
        **more: Unpack[OpFields],
    ) -> int:
        """Add the next op and return its id.

        Parameters
        ----------
        name
            Unique path name.
        reads, writes
            Names of tensors that were added before.
        kind
            An `OpKind`: what it runs on.
        **more
            Other fields of `Op`; by default ``read_bytes`` and ``write_bytes`` are the sizes of the tensors, but for
            candidates of dynamic reads.

        Raises
        ------
        ConfigError
            If the name is taken, a tensor is not known, the members that its collective names cannot meet, its dynamic
            reads cannot be chosen as it says, or a field breaks its rule.
        """
        if name in self._op_ids or not name or flaw(name):
            raise self._name_error("op", name)
        self._check_fields(name, kind, more)
        if kind == "collective" or more.get("collective") is not None:
            self._check_collective(name, kind, more)
        if kind == "delay" or more.get("spread"):
            more |= self._of_delay(name, kind, more)
        read_ids, write_ids = self._ids(name, reads), self._ids(name, writes)
        certain: list[Iterable[int]] = [read_ids, write_ids]
        if dynamic := more.get("dynamic"):
            self._check_dynamic_reads(name, dynamic, kind, read_ids, write_ids)
            certain, more["repeatable"] = [{*ids}.difference(dynamic.candidates) for ids in certain], False
        if "read_bytes" not in more:
            more["read_bytes"] = sum([self._sizes[t] for t in certain[0]])
        if "write_bytes" not in more:
            more["write_bytes"] = sum([self._sizes[t] for t in certain[1]])
        for t in filterfalse(self._present.__contains__, read_ids):
            self._early.setdefault(t, (name, self.line))
        if self._shared and not self._shared.isdisjoint(write_ids):
            raise self._error("op", name, "no op writes a shared tensor", "one among its writes", "do not share it")
        self._present.update(write_ids)
        self._op_ids[name] = len(self._ops)
        self._ops.append(Op(name, read_ids, write_ids, kind=_OP_KINDS[kind], **more))
        return len(self._ops) - 1

    def __len__(self) -> int:
        """Return how many ops there are so far."""
        return len(self._ops)

    def build(self, outputs: Iterable[str] = (), steps: int = 1) -> Graph:
        """Check the whole and return the graph.

        Parameters
        ----------
        outputs
            Names of tensors that must still be valid when a step ends.
        steps
            Number of steps: how often the ops run.

        Raises
        ------
        ConfigError
            If there is no op; or something is read before it is written that is neither persistent nor an
            input (in program order that is a cycle if a later op writes it, and dangling if nobody does); or no
            op writes an output; or the sizes or the durations add up to more than `LARGEST`.
        """
        self.line = 0
        if found := flaw(self._name):
            raise ConfigError(self._where, "a graph has a name", found, "rename it")
        insist(bool(self._ops), self._where, "a graph has at least one op", "none", "add an op")
        if self._early:
            t, (name, self.line) = next(iter(self._early.items()))
            must = "a tensor that an op reads is written by an earlier op, persistent, or of kind input"
            do = "put the ops in program order, add the op that writes it, or mark the tensor persistent"
            raise self._error("op", name, must, repr(self._tensors[t].name), do)
        ids = self._ids("", outputs)
        for t in filterfalse(self._present.__contains__, ids):
            must, found = "an output exists: some op writes it", repr(self._tensors[t].name)
            raise ConfigError(f"{self._where}: outputs", must, found, "correct the list")
        streams = {op.stream for op in self._ops if op.device != HOST}
        for op in self._ops:
            if op.device == HOST and op.stream in streams - {0}:
                must, do = "ops of one stream are of one device", "name another stream, or none"
                raise self._error("op", op.name, must, f"stream {op.stream}, of the accelerator, too", do)
        free = 1 + max(op.stream for op in self._ops)  # for ops of the host that name no stream
        ops = tuple([replace(op, stream=free) if op.device == HOST and not op.stream else op for op in self._ops])
        tensors, groups = tuple(self._tensors), tuple(self.groups.values())
        graph = Graph(self._name, tensors, ops, ids, groups=groups).repeated(steps, self._where)
        check_sums(graph, self._where)
        return graph

    def _error(self, noun: str, name: object, must: str, found: str, do: str) -> ConfigError:
        line = f":{self.line}" if self.line else ""
        return ConfigError(f"{self._where}{line}: {noun} {name!r}", must, found, do)

    def _name_error(self, noun: str, name: str) -> ConfigError:
        found = flaw(name) or ("it twice" if name else "an empty one")
        return self._error(noun, name, f"each {noun} has its own name", found, "rename it")

    def _number_error(self, noun: str, name: str, field: str, value: object) -> ConfigError:
        return self._error(noun, name, f"{field} is a whole number from 0 to 2**62", repr(value), "correct it")

    def _choice_error(self, noun: str, name: str, field: str, value: str, choices: Collection[str]) -> ConfigError:
        do = f"choose one of these{suggestion(value, choices)}"
        return self._error(noun, name, f"{field} is one of {', '.join(choices)}", repr(value), do)

    def _ids(self, op: str, names: Iterable[str]) -> tuple[int, ...]:
        try:
            ids = tuple(map(self._tensor_ids.__getitem__, names))
        except (KeyError, TypeError) as error:
            unknown = error.args[0] if isinstance(error, KeyError) else names
            where = ("op", op) if op else ("outputs of", self._name)
            do = f"declare the tensor before, or correct the name{suggestion(unknown, self._tensor_ids)}"
            raise self._error(*where, "tensors are named that the graph has", repr(unknown), do) from None
        return ids if len(ids) < 2 or len(set(ids)) == len(ids) else tuple(dict.fromkeys(ids))

    def _check_fields(self, op: str, kind: str, fields: OpFields) -> None:
        for field, value in fields.items():
            if type(value) is int and 0 <= value <= LARGEST:
                continue
            if field in _NUMBERS and (value is not None or field != "duration_ns"):
                raise self._number_error("op", op, field, value)
            if field in ("op_class", "dtype") and str(value) not in self._sound_names:
                if found := flaw(str(value)):
                    raise self._error("op", op, f"its {field} is a name", found, "correct it")
                self._sound_names.add(str(value))
        if kind not in _OP_KINDS:
            raise self._choice_error("op", op, "kind", kind, _OP_KINDS)
        if "stream" in fields and fields["stream"] not in range(MOST_STREAMS):
            must = f"its stream is from 0 to {MOST_STREAMS - 1}"
            raise self._error("op", op, must, repr(fields["stream"]), "correct it")
        if fields.get("phase") and fields["phase"] not in PHASES:
            raise self._choice_error("op", op, "phase", fields["phase"], PHASES[1:])
        device = fields.get("device", DEVICES[0])
        if device not in DEVICES:
            raise self._choice_error("op", op, "device", device, DEVICES)
        if device == HOST and (odd := kind if kind != "compute" else "dynamic" if fields.get("dynamic") else ""):
            must = "an op of the host is of kind compute, and has no dynamic reads"
            raise self._error("op", op, must, odd, "run it on the accelerator, or remove that")

    def _of_delay(self, op: str, kind: str, fields: OpFields) -> OpFields:
        """Return what is fixed of a delay; refuse one that takes no stated time, or that does more than take time."""
        odd, takes_ns = next((field for field in _WORK if fields.get(field)), ""), fields.get("duration_ns")
        if odd or kind != "delay" or takes_ns is None:
            must = "a delay, and nothing else, says how long it takes and varies, and computes nothing"
            raise self._error("op", op, must, odd or f"kind {kind}, duration_ns {takes_ns}", "correct it")
        if (spread := fields.get("spread")) and (must := spread.fault(takes_ns)):
            raise self._error("op", op, must, f"{spread.distribution!r}, {spread.deviation_ns!r}", "correct its spread")
        return {"read_bytes": 0, "write_bytes": 0, "repeatable": False}

    def _check_dynamic_reads(self, op: str, dynamic: DynamicReads, kind: str, reads: tuple[int, ...],
                             writes: tuple[int, ...]) -> None:  # fmt: skip
        if kind != "compute":
            raise self._error("op", op, "an op with dynamic reads is of kind compute", f"kind {kind}", "correct it")
        right = frozenset(reads).intersection(writes) if dynamic.updates else frozenset(reads).difference(writes)
        odd = next((t for t in dynamic.candidates if t not in right), None)
        if odd is not None:
            must = f"a candidate is among the op's reads, and {'also' if dynamic.updates else 'not'} among its writes"
            found = "not among its reads" if odd not in reads else "written" if odd in writes else "only read"
            raise self._error("op", op, must, f"{self._tensors[odd].name!r}, {found}", "correct the lists, or updates")

    def _check_collective(self, op: str, kind: str, fields: OpFields) -> None:
        collective = fields.get("collective")
        if kind != "collective" or (collective is None and fields.get("duration_ns") is None):
            must = "an op with a collective or a duration of one is of kind collective"
            found = f"kind {kind} {'with' if collective else 'without'} a collective"
            raise self._error("op", op, must, found, "correct its kind, or add collective or duration_ns")
        if collective is not None and fields.get("duration_ns") is not None:
            must = "a collective takes a stated time, or what its members and links take"
            raise self._error("op", op, must, "both", "remove duration_ns, or collective")
        if collective is None:
            return
        if collective.kind not in [*CollectiveKind]:
            raise self._choice_error("op", op, "its collective", str(collective.kind), [*map(str, CollectiveKind)])
        if collective.algorithm not in ALGORITHMS:
            raise self._choice_error("op", op, "its algorithm", collective.algorithm, ALGORITHMS)
        if not _is_whole(collective.size_bytes):
            raise self._number_error("op", op, "the size_bytes of its collective", collective.size_bytes)
        group = self.groups.get(collective.group)
        if group is None:
            must, nearest = "a collective names a group of the graph", suggestion(collective.group, self.groups)
            do = f"declare the group before, or correct the name{nearest}"
            raise self._error("op", op, must, repr(collective.group), do)
        self._check_members(op, collective, group)

    def _check_members(self, op: str, collective: Collective, group: Group) -> None:
        """Refuse members that overlap, or that are not pairs although a message is sent."""
        if (group.name, collective.kind) in self._sound:
            return
        self._sound.add((group.name, collective.kind))
        meeting = [*chain(*group.members)]
        if collective.kind in PAIRED:
            odd = next((ranks for ranks in group.members if len(ranks) != 2), None)
            if odd is not None:
                must = f"{collective.kind} is between pairs (from, to) of group {group.name!r}"
                raise self._error("op", op, must, str(list(odd)), "name pairs, or use another group")
            meeting = meeting[0 if collective.kind is CollectiveKind.SEND else 1 :: 2]
        if len(set(meeting)) < len(meeting):
            twice = next(rank for rank, times in Counter(meeting).items() if times > 1)
            must = f"no rank meets twice for {collective.kind} in group {group.name!r}"
            raise self._error("op", op, must, f"rank {twice} twice", "correct the members")
