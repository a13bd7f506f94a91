"""Ops of a decoder with the tensors that they make, and their gradients.

*Gradients.* An op of the phase ``forward`` also records how its gradients are made; `Tape.go_back` goes through a block
in reverse. Where gradients of one tensor meet, they add up in place (``.acc``). A gradient that an addition passes on
to both of its inputs is shared: nothing is added to it in place, it is added to the other one. A tensor is *wanting* a
gradient only if a trained weight, or such a tensor, is among what it was made of: ops before the first trained weight
have no backward.

*Checkpoints.* Of a segment between checkpoints only the input is saved. In backward its ops run ``again``, unless
nothing reads what they make: the last ops of a layer only made the input of the next layer, and do not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import compress, takewhile
from math import prod
from operator import attrgetter
from typing import Literal

from simulator.builders.eager import ROTARY, norm_traffic, traffic
from simulator.builders.popularity import read_experts
from simulator.builders.specs import FP32_BYTES
from simulator.builders.step_builder import Rows, StepBuilder
from simulator.builders.weights import ADAPTER, Laid, learns_apart, passes_on
from simulator.errors import insist
from simulator.graph_builder import OpFields
from simulator.layout import Axes, Layout, Weight
from simulator.workload import Experts, Lora

Back = Callable[[str], None]
"""Function that makes the gradients of an op's inputs from that of its output."""


class Tape(StepBuilder):
    """The step of one rank, forward and, in training, backward.

    Parameters
    ----------
    laid, name, rows
        As for `StepBuilder`.
    """

    def __init__(self, laid: Laid, name: str = "", rows: int = 0) -> None:
        super().__init__(laid, name, rows)
        self.has_trained_before = False  # in an earlier stage
        self.graded: dict[str, str] = {}  # weight -> its gradient in this micro-batch, or of all so far
        self.shards: dict[str, str] = {}  # weight -> the shard of its gradient, with ZeRO
        self.partial_sums: dict[str, Axes] = {}  # weight -> axes along which replicas hold a part of its gradient
        self.embedded: dict[str, str] = {}  # part of the step -> the rows that layers may take beside the residual
        self.grads: dict[str, str] = {}  # tensor -> its gradient so far
        self._backs: dict[str, list[tuple[str, Back]]] = {}  # block of a micro-batch -> how to go back through it
        self._shared = set[str]()  # gradients of two tensors at once: nothing is added to them in place
        self._between = ""  # part of a layer that is being built, if it runs again in backward

    # ops with gradients

    def vector(
        self,
        name: str,
        reads: list[str],
        *,
        saves: bool = True,
        adds: Layout | None = None,
        size: int = 0,
        kind: Literal["rotary", "dropout", ""] = "",
    ) -> str:
        """Add an elementwise op, in the layout of its inputs that is cut most.

        Parameters
        ----------
        name, reads
            Name and inputs of the op.
        saves
            Whether its gradients depend on its inputs.
        adds
            Layout of the sum, if it adds its inputs up; the gradient of each is that of the sum.
        size
            Size of an element of its output [B]; default: that of the model's data type.
        kind
            A ``rotary`` embedding may run op by op; the gradient of ``dropout`` depends on a mask, a byte an element.
        """
        target = adds or max([self.spread[x].layout.whole for x in reads], key=attrgetter("parts"))
        taken = [self.to(x, target) for x in reads]
        rows, width, *_ = self.spread[taken[0]]
        out = self.tensor(f"{name}.out", width, target, size, rows)
        moved = traffic(ROTARY, self.spread[out].size_bytes // 2) if kind == "rotary" and self.is_eager else {}
        mask = [self.tensor(f"{name}.mask", width, target, 1, rows)] if kind == "dropout" else []
        self.op(name, taken, [out, *mask], **moved.get("forward", {}))

        def back(dy: str) -> None:
            if adds:
                self._shared.add(dy)
                self.add_gradients(reads, [dy] * len(reads))
                return
            dy, *saved = (self.to(x, self.spread[out].layout) for x in (dy, *(reads if saves else ())))
            wanted = [x for x in reads if self.wants(x)]
            layout = self.spread[dy].layout
            grads = [self.add(f"{x}.grad", self.spread[x], layout) for x in wanted]
            self.op(name, [dy, *saved, *mask], grads, **moved.get("backward", {}))
            wholes = (self.spread[x].layout.whole for x in wanted)
            self.add_gradients(wanted, [self.to(grad, whole) for grad, whole in zip(grads, wholes, strict=True)])

        return self.record(out, back)

    def joined(
        self, name: str, reads: list[str], width: int, weights: Iterable[Weight] = (), flops: int = 0, rows: Rows = ()
    ) -> str:
        """Add an op on whole rows that makes rows of another width, and saves its inputs.

        Parameters
        ----------
        name, reads
            Name and inputs of the op.
        width, rows
            Width of an output row, and the number of rows, if that is another one.
        weights
            Weights that it reads as they are.
        flops
            Work of its products, as much again for each of its two gradients.
        """
        weights = [*weights]
        taken, held = [self.to(x, self.spread[x].layout.whole) for x in reads], [self.held[w.name] for w in weights]
        layout = max([self.spread[x].layout for x in taken], key=attrgetter("parts"))
        out = self.tensor(f"{name}.out", width, layout, rows=rows)
        self.op(name, [*taken, *held], [out], flops=flops)

        def back(dy: str) -> None:
            wanted = [x for x in taken if self.wants(x)]
            grads = [self.add(f"{x}.{name.rpartition('.')[2]}.grad", self.spread[x]) for x in wanted]
            old, new = self.weight_gradients(layout.cut, *weights)
            held = [self.held[weight.name] for weight in weights]
            saved = taken if weights or len(taken) > 1 else []
            self.op(name, [self.to(dy, layout), *saved, *held, *old], [*grads, *new], flops=2 * flops)
            for x, grad in zip(wanted, grads, strict=True):
                self.add_gradients([x], [grad], f"{name}.{x.rpartition('/')[2].removesuffix('.out')}")

        return self.record(out, back)

    def lent(self, x: str, end: str, width: int = 0, sums: str = "") -> str:
        """Read a tensor, or the first elements of each row, by another name; its gradient is added to the tensor's."""
        taken, sums = self.alias(x, end, width), sums or f"{x.rpartition('/')[2].removesuffix('.out')}.{end}"
        self.wanting.update([taken] if self.wants(x) else [])
        return self.record(taken, lambda dy: self.add_gradients([x], [dy], sums))

    def divided(self, name: str, x: str, ends: Iterable[str], width: int) -> list[str]:
        """Read parts of each row by names of their own; an op of backward puts their gradients together."""
        parts = [self.alias(x, end, width) for end in ends]
        self.wanting.update(parts if self.wants(x) else ())

        def back(dy: str) -> None:
            whole = self.spread[x].layout.whole
            grads = [self.to(grad, whole) for grad in (dy, *map(self.grads.pop, parts[1:]))]
            dx = self.add(f"{x}.grad", self.spread[x], whole)
            self.op(name, grads, [dx])
            self.add_gradients([x], [dx])

        self.record(parts[0], back)
        return parts

    def norm(self, name: str, x: str, sums: str = "", made: str = "") -> str:
        """Normalise rows, whole or head by head, into a tensor named after the op or `made`; the layout stays.

        Gradients of its input add up in an op named after `sums`.
        """
        weights = [self.weight(name)] if name in self.weights[self.block] else []
        rows, width, layout, *_ = self.spread[x]
        held = [self.held[weight.name] for weight in weights]
        out, saved = self.tensor(made or f"{name}.out", width, layout, rows=rows), [x]
        is_composed = self.is_eager and self.model.norm_weights != "both"  # PyTorch has a LayerNorm
        trains = any(weight.is_trained for weight in weights)
        counted = self.spread[x].elements, self.element_bytes  # without weights transformers takes PyTorch's LayerNorm
        moved = norm_traffic(*counted, trains=trains) if is_composed and weights else {}
        if self.is_forward and is_composed:
            if self.element_bytes < FP32_BYTES:
                saved = [self.tensor(f"{name}.fp32", width, layout, FP32_BYTES, rows)]
            saved += [self.tensor(f"{name}.normed", width, layout, rows=rows)] if trains else []
        self.op(name, [x, *held], [out, *(y for y in saved if y != x)], **moved.get("forward", {}))

        def back(dy: str) -> None:
            dy, wanted = self.to(dy, layout), [x] * self.wants(x)
            dx = [self.tensor(f"{name}.in.grad", width, layout, rows=rows) for x in wanted]
            old, new = self.weight_gradients(layout.cut, *weights)
            held = [self.held[weight.name] for weight in weights]  # of a layer that is gathered again, its copy
            self.op(name, [*saved, dy, *held, *old], [*dx, *new], **moved.get("backward", {}))
            self.add_gradients(wanted, dx, sums or name)

        return self.record(out, back)

    def rotate(self, name: str, x: str, width: int) -> None:
        """Apply the rotary embedding to `width` elements of each row in place; the gradient is turned back in place."""
        spread = self.spread[x]
        turned_bytes = spread.elements * spread.layout.divisors[-1] // spread.width * width * self.element_bytes
        moved = traffic(ROTARY if self.is_eager else dict.fromkeys(ROTARY, (2, 2)), turned_bytes // 2)

        def turn(y: str, phase: str) -> str:
            self.op(name, [y], [y], **moved[phase])
            return y

        self.record(turn(x, "forward"), lambda dy: self.add_gradients([x], [turn(dy, "backward")]))

    def linear(self, name: str, x: str, weight: Weight | None = None, *, heads: int = 0) -> str:
        """Multiply rows, or their first elements, by a weight; the output is cut, or a partial sum, as that is cut.

        So is the gradient of the input. At inference as many experts are read as are expected to be chosen. The output
        of an adapter on the same rows (LoRA, arXiv 2106.09685) is added.

        Parameters
        ----------
        name, x, weight
            Name of the op, its input, and its weight; default: the one of that name.
        heads
            Elements of an output row, if each head's part of a row is multiplied by its own part of the weight.

        Raises
        ------
        ConfigError
            If an adapter stands beside a weight that is multiplied by heads.
        """
        weight, bias, of_block = weight or self.weight(name), f"{name}.bias", self.weights[self.block]
        weights = [weight, self.weight(bias)] if bias in of_block else [weight]
        names = [self.converted_weight(name, weight), *(self.held[other.name] for other in weights[1:])]
        *experts, inner, outer = weight.layout.tensor_map
        *many, inputs, outputs = weight.shape
        rows, width, layout, size, *_ = self.spread[x]
        if weight.name == "embed/tokens.weight":  # a tied table is used transposed
            inner, outer, inputs, outputs = outer, inner, outputs, inputs
        sums, shares = inner, outer
        if heads:
            inner, inputs, outputs, sums, shares = outer, width, heads, (), ()
        tokens = tuple(axis for axis in layout.tensor_map[-2] if axis not in weight.layout.cut)
        taken, made = self.lay_out((*experts, tokens, inner)), self.lay_out((*experts, tokens, outer))
        inside = self.to(x, taken)
        elements = self.spread[inside].elements
        each = weight.parameters * (weight.layout.divisors[0] if experts else 1) // prod(many)
        flops = 2 * (elements * self.mesh.size(inner) // width) * each
        out = self.tensor(f"{name}.out", outputs, self.lay_out(made.tensor_map, sums), size, rows)
        read_bytes = elements * inputs // width * self.element_bytes + sum(map(self.read_bytes, weights))
        self.op(name, [inside, *names], [out], **OpFields(flops=flops, read_bytes=read_bytes) | self.product(weight))

        def back(dy: str) -> None:
            dy, dx = self.to(dy, made), list[str]()
            if self.wants(x):
                partial_sum = self.lay_out(taken.tensor_map, shares)
                dx = [self.tensor(f"{name}.in.grad", inputs, partial_sum, size, rows)]
                form = self.workload.dtypes.dequantize
                ready = [names[0] if form == "saved" else self.converted_weight(name, weight)]
                ready += [self.to(x, taken)] if form == "inputs" and self.is_packed(weight) else []
                self.op(f"{name}.dgrad", [dy, *ready], dx, flops=flops)
            if any(held.is_trained for held in weights):
                saved = [self.to(x, taken)] if weight.is_trained else []
                old, new = self.weight_gradients(tokens, *weights)
                self.op(f"{name}.wgrad", [dy, *saved, *old], new, flops=flops * weight.is_trained)
            self.add_gradients([x] * len(dx), dx, name)

        self.record(out, back)
        lora = self.workload.lora or Lora(rank=1)  # of a model that has adapters itself, without dropout and casts
        return self._with_adapter(lora, name, x, out, heads) if f"{name}.{ADAPTER[0]}" in of_block else out

    def _with_adapter(self, lora: Lora, name: str, x: str, out: str, heads: int) -> str:
        """Add the output of the adapter beside a linear; linear, adapter and sum go back as one."""
        must, do = "adapters stand beside linears that take whole rows", "leave it out of lora.targets"
        insist(not heads, self.where, must, f"{name}, which is absorbed by heads", do)
        first = len(self._backs.get(f"{self.micro}{self.block}", ())) - 1
        size = FP32_BYTES if lora.inputs and self.element_bytes < FP32_BYTES else 0
        x = self.lent(x, f"{name}.lora_in") if lora.dropout or size else x
        x = self.vector(f"{name}.lora_fp32", [x], saves=False, size=size) if size else x
        x = self.vector(f"{name}.lora_dropout", [x], saves=False, size=size, kind="dropout") if lora.dropout else x
        x = self.vector(f"{name}.lora_in", [x], saves=False) if size else x
        added = self.linear(f"{name}.{ADAPTER[1]}", self.linear(f"{name}.{ADAPTER[0]}", x))
        added = self.vector(f"{name}.lora_scale", [added], saves=False) if self.is_eager else added
        out = self.vector(f"{name}.lora", [out, added], adds=self.spread[out].layout.whole)
        if not self.is_saving:
            return out
        backs = self._backs[f"{self.micro}{self.block}"]
        apart, backs[first:] = backs[first:], []

        def back(dy: str) -> None:
            self.grads[out] = dy
            self.go_back(apart)

        return self.record(out, back)

    def read_bytes(self, weight: Weight) -> int:
        """Return what an op reads of a weight [B]: at inference only as many experts as are expected to be chosen."""
        size_bytes = super().read_bytes(weight)
        part = self.layer.feed_forward if weight.kind == "expert" and self.workload.phase != "train" else None
        if not isinstance(part, Experts):
            return size_bytes
        read, held = read_experts(part, self.own_tokens, self.workload.parallel)
        return size_bytes // held * read

    # going back

    @property
    def is_saving(self) -> bool:
        """Whether forward ops save their tensors for backward now."""
        return self.phase == "again" or (self.phase == "forward" and not self._between)

    def wants(self, x: str) -> bool:
        """Return whether a tensor, in whatever layout, has a gradient."""
        return (self.spread[x].origin or x) in self.wanting

    def record(self, out: str, back: Back) -> str:
        """Record how the last op goes back, if it is of a forward whose tensors are saved; return its output."""
        if self.is_saving:
            self._backs.setdefault(f"{self.micro}{self.block}", []).append((out, back))
        return out

    def go_back_in_order(self, ops: int) -> None:
        """Let the last `ops` ops go back in the order of forward."""
        if self.is_saving:
            backs = self._backs[f"{self.micro}{self.block}"]
            backs[-ops:] = backs[: -ops - 1 : -1]

    def goes_back(self, block: str) -> bool:
        """Return whether a gradient goes through a block: a weight of it is trained, or one before it."""
        blocks = takewhile(lambda name: name != block, self.weights)
        return self.has_trained_before or any(passes_on(self.weights[name]) for name in (*blocks, block))

    def go_back(self, backs: list[tuple[str, Back]] | None = None) -> None:
        """Make all gradients of the current block, or those of some ops of it, the last op first."""
        if backs is None:
            backs = self._backs.pop(f"{self.micro}{self.block}", [])
        for out, back in reversed(backs):
            if out in self.wanting:
                back(self.grads.pop(out, ""))

    def begin(self, *parts: str) -> None:
        """Save nothing from here on, if one of these parts of the current layer (`Checkpoint`) runs again."""
        segment = self.workload.checkpoint
        if segment and segment.part in parts and segment.takes(int(self.block[1:])) and self.phase == "forward":
            self._between = segment.part

    def end(self, part: str, out: str, segment: Callable[[], str]) -> None:
        """End a part of the current layer (`Checkpoint`); if nothing of it was saved, let it run again in backward.

        Nothing happens unless it has begun. `segment` runs it again, and returns its output, as `out` is.
        """
        if self._between != part:
            return
        self._between = ""

        def back(dy: str) -> None:
            self.pending, self.phase, self.again = [], "again", ".again"
            made = segment()
            self.phase, self.again, self.grads[made] = "backward", "", dy
            self.go_back()
            self._add_pending()

        apart = (self.held[weight.name] for weight in self.weights[self.block].values() if learns_apart(weight))
        self.record(out if out in self.wanting else next(apart, out), back)

    def _add_pending(self) -> None:
        """Add the backward of a segment to the graph; of the ops that run again, those that others need."""
        pending, self.pending, read, made, kept = self.pending or [], None, set[str](), set[str](), list[bool]()
        for is_again, (_, reads, writes, _), _ in reversed(pending):
            kept.append(not is_again or not read.isdisjoint(writes))
            read.update(reads if kept[-1] else ())
        for is_again, op, more in compress(pending, reversed(kept)):
            for name in op[2] if is_again else ():
                if name not in made:
                    self.add(name, self.spread[name])
                    made.add(name)
            self.graph.op(*op, **more)

    def add_gradients(self, tensors: list[str], grads: list[str], sums: str = "") -> None:
        """Record gradients of tensors, or add each to its gradient so far, in an op that is named after `sums`."""
        for x, grad in zip(tensors, grads, strict=True):
            if not self.wants(x):
                continue
            origin = self.spread[x].origin or x
            so_far = self.grads.get(origin)
            if so_far is None:
                self.grads[origin] = grad
                continue
            total, part = (grad, so_far) if so_far in self._shared else (so_far, grad)
            if self.spread[total].layout != self.spread[part].layout:
                total, part = (self.to(x, self.spread[origin].layout.whole) for x in (total, part))
            self.op(f"{sums}.acc", [total, part], [total])
            self.grads[origin] = total

    def weight_gradients(self, tokens: Axes, *weights: Weight) -> tuple[list[str], list[str]]:
        """Return the gradients that an op reads and writes to add to those of weights; the first op only writes.

        Axes `tokens` cut the rows over which the op sums. Weights that are frozen have no gradient.
        """
        trained = [weight for weight in weights if weight.is_trained]
        old = [self.graded[weight.name] for weight in trained if weight.name in self.graded]
        for weight in trained:
            if weight.name not in self.graded:
                micro = self.micro if self.zero_stage > 1 and weight.replicas else ""
                name = self.graded[weight.name] = f"{micro}{weight.name}.grad"
                self.graph.tensor(name, weight.parameters * self.workload.dtypes.gradient_bytes, "gradient")
                self.partial_sums[weight.name] = self.mesh.real(tokens)
        return old, [self.graded[weight.name] for weight in trained]
