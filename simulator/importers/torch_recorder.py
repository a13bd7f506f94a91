"""Records a step of PyTorch: each ATen op as it runs below autograd and autocast, and its storages.

Views share a storage, so they fold into it. A storage that exists before the step and is used in it is persistent. The
kind of a storage follows from its origin: a module's parameter or buffer, a parameter's gradient, an optimizer's state,
an input; all others are activations, or workspaces if the optimizer makes them.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from simulator.errors import insist
from simulator.graph import HOST, LARGEST_RUN, Collective
from simulator.graph.ops import AGAIN
from simulator.graph_builder import OpFields
from simulator.importers.recordings import Event, Storage, blocks, unique
from simulator.importers.torch_machine import Accelerated, Noted, met, number, runs_backward, take_back, tensors
from simulator.importers.torch_numbers import UPDATES, DispatchedOp, changed_by, numbers, run_as_real, touched
from simulator.importers.torch_run import ModuleWatch, Site, line_of

_aten = torch.ops.aten
# Ops that only allocate.
_ROOM = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.empty_permuted, _aten.lift_fresh}
_ROOM |= {_aten.new_empty, _aten.new_empty_strided}
# Ops that overwrite all old values of their target.
_FILLS = frozenset((_aten.copy_, _aten.fill_, _aten.zero_, _aten.normal_, _aten.uniform_, _aten.bernoulli_))
# A copy to the host: what it reads is brought there, which takes the time.
_OF_HOST: OpFields = {"device": HOST, "read_bytes": 0, "write_bytes": 0}
# Phases with caches.
_CACHED = ("prefill", "decode")
# Sequence numbers to look back from a backward node for the op that made it.
_NEAR = 4


_NAMES = ("cache", "cache_params", "kv_cache", "past_key_values")


def _in_caches(named: Mapping[str, Any], values: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield path and tensor of all that caches hold: objects whose class is named so, and inputs of such names.

    Parameters
    ----------
    named
        Inputs by name.
    values
        Nested containers.
    """
    caches = [named[name] for name in _NAMES if named.get(name) is not None]
    caches += filter(_is_cache, tree_leaves(values, is_leaf=_is_cache))
    seen = set[int]()
    for position, cache in enumerate({id(cache): cache for cache in caches}.values()):
        yield from _within(f"cache{position or ''}", cache, seen)


def _is_cache(value: Any) -> bool:
    return type(value).__name__.endswith("Cache")


def _within(path: str, value: Any, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield paths and tensors of an object and of all that it holds, each object once."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif id(value) not in seen and not isinstance(value, torch.nn.Module | type):
        seen.add(id(value))
        parts = dict(enumerate(value)) if isinstance(value, list | tuple) else getattr(value, "__dict__", value)
        for name, part in parts.items() if isinstance(parts, Mapping) else ():
            yield from _within(f"{path}.{name}", part, seen)


def batch_of(args: Any, kwargs: Any) -> dict[str, int]:
    """Return batch and, for integer ids, sequence of a step: the shape of ``input_ids``, or of the first tensor.

    Parameters
    ----------
    args, kwargs
        The arguments of the step.
    """
    first = next(tensors([kwargs.get("input_ids"), args, kwargs]), None)
    if first is None or first.dim() < 2 or not first.numel():
        return {}
    is_ids = first.dim() == 2 and first.dtype in (torch.int64, torch.int32)
    return dict(zip(("batch", "sequence"), first.shape[: 1 + is_ids], strict=False))


class OpRecorder(TorchDispatchMode):  # type: ignore[misc]
    """Records the ops that run while it is entered.

    Parameters
    ----------
    watch
        Follows modules and optimizers.
    inputs
        The user's arguments of the step.
    phase
        Phase of ops that are neither backward nor the optimizer's.

    Attributes
    ----------
    calls
        The ops in the order in which they ran.
    before
        Storages that inputs, modules and optimizers hold when the step begins, whether an op uses them or not; without
        counts of steps, which the host keeps.
    replaced
        Storage of a cache that a larger one replaced, which is its tensor -> number of ops before that was made.
    below
        Storages that the step copies from the host.
    died
        Storage -> number of ops that had run when PyTorch freed it; storages without an entry outlive the step.
    folded
        Reason why a call is no op of the graph -> number of calls.
    batch
        Batch and sequence of the step, as far as its inputs tell.
    lines, again, copied
        Number of ops with a source line; of ops in backward that run forward ops again, and that copy for updates in
        place of views.
    """

    def __init__(self, watch: ModuleWatch, inputs: Any, phase: str = "forward") -> None:
        super().__init__()
        self.watch, self.calls, self.folded = watch, list[Event](), Counter[str]()
        self.lines = self.again = self.copied = 0
        self.batch = batch_of(*inputs)
        self.died, self._by_id = dict[Storage, int](), dict[int, tuple[Storage, Any]]()
        self._sites, self._first, self._taken = dict[int, Site](), dict[str, Site](), Counter[str]()
        self.shares = dict[str, int]()  # groups that reduce gradients of samples that each rank has alone
        self._last, self.groups = "optimizer", dict[str, list[list[int]]]()
        self._ranges, self._copied_out = list[str](), 0  # names of profiler ranges; where ops gather that come later
        self.before, self._each = dict[Storage, None](), dict[tuple[int, int], int]()
        self._inputs, self.phase, self.replaced = inputs, phase, dict[Storage, int]()
        caches = [(path, "kv_cache", tensor) for path, tensor in self._cached()]
        given = (("input" + str(position), "input", tensor) for position, tensor in enumerate(tensors(inputs)))
        for name, kind, owned in (*caches, *given, *watch.owned()):
            for tensor in tensors([owned]):
                storage = self._storage(tensor, name, kind, persistent=True)
                if storage.size_bytes and not (kind == "optimizer_state" and tensor.dim() == 0):
                    self.before[storage] = None
        self._caches, self.below = {path: self._storage(tensor) for path, _, tensor in caches}, dict[Storage, None]()
        take_back()

    def _cached(self, returned: Any = None) -> list[tuple[str, torch.Tensor]]:
        """Return path and tensor of what caches hold now."""
        return [*_in_caches(self._inputs[1], (self._inputs, returned))] if self.phase in _CACHED else []

    def grow(self, returned: Any) -> None:
        """Make what caches hold after the step one with what they held before, where that is gone."""
        news = dict[Storage, Storage]()
        for path, tensor in self._cached(returned):
            new, old, new.kind = self._storage(tensor), self._caches.get(path), "kv_cache"
            if old is not None and old in self.died and new.is_written and not new.persistent:
                news[old] = new
                old.persistent, new.persistent, new.name = False, True, old.name
        for index, call in enumerate(self.calls):
            self.replaced = {old: index for old, new in news.items() if new in call.writes} | self.replaced
            call.reads, call.writes = ({news.get(s, s): None for s in used} for used in (call.reads, call.writes))

    def _storage(self, tensor: torch.Tensor, name: str = "", kind: str = "", *, persistent: bool = False) -> Storage:
        """Return the storage of a tensor; add it if it is new."""
        memory = tensor.untyped_storage()
        if id(memory) not in self._by_id:
            self._add(memory, Storage(self.size_of(memory), kind or "activation", persistent, name=name))
        return self._by_id[id(memory)][0]

    def _add(self, memory: Any, storage: Storage) -> None:
        self._by_id[id(memory)] = storage, weakref.ref(memory, partial(self._note_death, id(memory), storage))

    def _note_resize(self, memory: Any, size: int) -> Any:
        """Resize a storage: so FSDP frees weights that it gathered, and makes room for them again."""
        before, made = memory.nbytes(), self._resize(memory, size)
        if id(memory) in self._by_id:
            self._note_death(id(memory), self._by_id[id(memory)][0], None)
        if not before:
            self._add(memory, Storage(size, "weight"))
        return made

    def _note_brought(self, tensor: torch.Tensor) -> None:
        for part in tensors([tensor]):
            self.below[self._storage(part, "constant", "input", persistent=True)] = None

    def size_of(self, memory: Any) -> int:
        """Return the size of a storage [B]."""
        return int(memory.nbytes())

    def __enter__(self) -> Any:
        self._resize, self._bring = torch.UntypedStorage.resize_, Accelerated.bring
        Accelerated.bring = self._note_brought
        if number() > 1:
            torch.UntypedStorage.resize_ = lambda memory, size: self._note_resize(memory, int(size))
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        torch.UntypedStorage.resize_, Accelerated.bring = self._resize, self._bring
        super().__exit__(*raised)
        self._by_id.clear()  # storages that still exist outlive the step

    def _note_death(self, key: int, storage: Storage, _: object) -> None:
        self.died[storage] = len(self.calls)
        self._by_id.pop(key, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # it calls ops on what it wraps
        kwargs = kwargs or {}
        given = list(tensors((args, kwargs)))
        # An argument that no op of the step has made existed before.
        arguments = dict.fromkeys(self._storage(tensor, "constant", "input", persistent=True) for tensor in given)
        made = self.call(func, args, kwargs, given)
        outs = list(tensors(made))
        new = [tensor for tensor in outs if self._storage(tensor) not in arguments]
        changed = changed_by(func, args, kwargs, made)
        if func.namespace == "profiler":
            self._ranges = [*self._ranges, str(args[0])] if isinstance(args[0], str) else self._ranges[:-1]
        ops_before = len(self.calls)
        asks = func.namespace != "aten" or func._overloadpacket is _aten.is_coalesced  # for a device, or a shape
        if outs or changed or (given and not asks):
            self._record(DispatchedOp(func, args, kwargs, made, given, changed, new), list(arguments))
        self.called(func, given, outs, is_op=len(self.calls) > ops_before)
        return made

    def call(self, func: Any, args: Any, kwargs: Any, given: list[torch.Tensor]) -> Any:
        """Call a function of PyTorch, which is given these tensors."""
        made = run_as_real(func, args, kwargs, given)
        if func._overloadpacket is _aten.lift_fresh:  # the fake of a constant, which has a storage of its own
            self._storage(made, "constant", "input", persistent=True)
        return made

    def called(self, func: Any, given: list[torch.Tensor], outs: list[torch.Tensor], *, is_op: bool) -> None:
        """Note a call that has ended: what it was given and made, and whether it is an op of the graph."""

    def _record(self, ran: DispatchedOp, arguments: list[Storage]) -> None:
        """Record a call as an op, unless it folds; `arguments` are storages that existed before the call."""
        node = torch._C._current_autograd_node()
        is_update, is_backward = self.watch.is_update(sys._getframe(2)), node is not None
        is_backward |= number() > 1 and runs_backward(sys._getframe(2))
        site = self._site(node, arguments, is_update=is_update)
        if hasattr(node, "variable"):
            self._name_gradients(node.variable, ran.changed or list(tensors(ran.made)))
        if reason := self._reason_to_fold(ran):
            self.folded[reason] += 1
            return
        if ran.packet is _aten.topk:
            self._each[ran.made[1].numel(), ran.args[0].shape[-1]] = ran.args[1]
        changed, fresh = (dict.fromkeys(map(self._storage, part)) for part in (ran.changed, ran.new))
        is_whole = ran.packet in _FILLS and all(touched(t) == t.untyped_storage().nbytes() for t in ran.changed)
        blind = {s for s in changed if is_whole or not (s.is_written or s.persistent)}
        for shard in arguments if is_update and number() > 1 else ():
            shard.kind = "gradient" if shard.kind == "activation" else shard.kind
        reads = [s for s in arguments if s not in blind and s.name and s.size_bytes]
        written = fresh | changed if ran.packet in UPDATES else changed | fresh
        writes = [s for s in written if s.size_bytes]
        is_read = not ran.changed and next(tensors(ran.made), None) is None  # as `item` does, which needs the bytes
        if not (writes or (is_read and reads)):
            return
        phase = "update" if is_update else "backward" if is_backward else self.phase
        is_again, is_copy = is_backward and bool(self.watch.stack), Accelerated.to_host
        did = "to_host" if is_copy else ran.packet.__name__
        name = f"{site.path}/{_SHORT[phase]}{AGAIN if is_again else '/'}{did}{site.line and f'@{site.line}'}"
        name = unique(name, self._taken)
        for position, storage in enumerate(writes):
            storage.is_written = True
            if not storage.name:
                storage.name = f"{name}.out{position or ''}"
                storage.kind = "workspace" if phase == "update" else storage.kind
        self.lines += bool(site.line)
        self.again += is_again
        self.copied += node is not None and node.name().endswith("CopySlices")
        sources = [tensor for tensor in ran.given if self._storage(tensor) not in blind]
        used = dict.fromkeys(reads), dict.fromkeys(writes)
        work = _OF_HOST if is_copy else numbers(ran, sources, self._each)
        self._enter(ran, Event(name, *used, {"phase": phase, **work}), site.line or name)
        must = f"a step has at most {LARGEST_RUN // 2:,} ops"
        insist(len(self.calls) <= LARGEST_RUN // 2, site.line or name, must, "more", "capture a smaller one")

    def _enter(self, ran: DispatchedOp, op: Event, where: str) -> None:
        """Put an op in its place; make it a collective, if it is one."""
        self.calls.insert(self._place(op.more["phase"]), op)
        meeting = None if ran.func.namespace in ("aten", "prims") else met(ran.func, ran.args, where)
        if meeting is None:
            return
        (kind, group, ranks), is_backward = meeting, op.more["phase"] == "backward"
        self.groups.setdefault(group, blocks(number(), ranks))
        if is_backward and "reduce" in kind and ran.func.namespace == "c10d":  # of FSDP or DDP
            self.shares[group] = len(ranks)
        got = [*ran.changed, *ran.new]
        sent = [tensor for tensor in ran.given if all(tensor is not other for other in got)]
        size_bytes = max(sum(map(touched, sent)), sum(map(touched, got)))
        op.is_collective, op.more["collective"] = True, Collective(kind, group, size_bytes)
        for bucket in op.writes if is_backward else ():
            bucket.kind = "gradient" if bucket.kind == "input" else bucket.kind

    def _place(self, phase: str) -> int:
        """Return where an op stands: last, but where FSDP gathers forward, when the unit before has been copied out.

        So it is on CUDA, where the host runs ahead: a gather waits for the copy out of the unit before the one that
        computes (``FSDPParamGroup.wait_for_unshard`` of PyTorch 2.13,
        torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py). Backward, FSDP itself gathers ahead.
        """
        doing, is_forward = self._ranges[-1] if self._ranges else "", phase not in ("backward", "update")
        if doing.startswith("FSDP::all_gather ") and is_forward and self._copied_out:
            self._copied_out += 1
            return self._copied_out - 1
        is_copied_out = doing.startswith("FSDP::all_gather_copy_out") and is_forward
        self._copied_out = len(self.calls) + 1 if is_copied_out else self._copied_out if is_forward else 0
        return len(self.calls)

    def _reason_to_fold(self, ran: DispatchedOp) -> str:
        """Return the reason why a call is no op of the graph; empty if it is one."""
        if not ran.new and not ran.changed and next(tensors(ran.made), None) is not None:
            return "views"
        if ran.packet in _ROOM:
            return "allocations"
        if ran.func.namespace == "aten" and Noted.notes(ran.given):
            return "notes of the parameters that a step uses, which the host keeps"
        used = ran.changed if ran.new or ran.changed else ran.given
        counts = [tensor.dim() == 0 and self._storage(tensor).kind == "optimizer_state" for tensor in used]
        return "counts of steps, which the host keeps" if counts and all(counts) else ""

    def _name_gradients(self, parameter: torch.Tensor, grads: Iterable[torch.Tensor]) -> None:
        """Name the storages that become the gradient of a parameter."""
        for storage in map(self._storage, grads):
            if storage.kind == "activation":
                storage.kind, storage.name = "gradient", f"{self._storage(*tensors([parameter])).name}.grad"

    def _site(self, node: Any, arguments: list[Storage], *, is_update: bool) -> Site:
        """Return the source of the op that runs now; `node` is its node of backward, or None."""
        if is_update:
            owned = next((storage for storage in arguments if storage.persistent or storage.kind == "gradient"), None)
            if owned is not None:  # the parameter, or its gradient or state
                self._last = (owned.kind != "weight" and owned.name.rpartition(".")[0]) or owned.name
            return Site(self._last, line_of(sys._getframe(2)))
        if hasattr(node, "variable"):
            return Site(self._storage(*tensors([node.variable])).name, "")
        if node is None or self.watch.stack:
            site = Site(self.watch.stack[-1] if self.watch.stack else "step", line_of(sys._getframe(2)))
            first = self._first.setdefault(site.path, site)
            site = site if site.line else first
        else:
            sequence = node._sequence_nr()
            near = (self._sites.get(sequence - back) for back in range(_NEAR))  # some nodes are made after their op
            site = next(filter(None, near), Site(node.name(), ""))
        self._sites.setdefault(torch.autograd._get_sequence_nr() - 1, site)  # for the node that was made for this op
        return site


# Phase -> its short form in names of ops.
_SHORT = {"forward": "fwd", "backward": "bwd", "update": "update", **{phase: phase for phase in _CACHED}}
