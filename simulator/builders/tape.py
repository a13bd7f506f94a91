"""Ops of a decoder with the tensors that they make, and their gradients.

*Gradients.* An op of the phase ``forward`` also says how its gradients are made; `Tape.go_back` runs through a block
the other way. Where gradients of one tensor meet, they add up in place (``.acc``). A gradient that an addition passes
on to both of its inputs is nobody's own, and is added to the other one. A tensor is *wanting* a gradient only if it was
made of a weight that is trained, or of such a tensor: what comes before the first trained weight has no backward.

*Checkpoints.* Of a segment between checkpoints nothing is saved but what it took. In backward its ops run ``again``, as
far as others read what they make: the last ones of a layer only made what the next layer took, and stay away.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress, takewhile
from math import prod

from simulator.builders.sheet import Sheet, Spread, laid_out
from simulator.builders.weights import ADAPTER, Laid, learns_apart, numbered, passes_on
from simulator.errors import insist
from simulator.graph import chosen_number
from simulator.layout import Axes, Layout, Weight
from simulator.workload import Experts

FP32_BYTES = 4
ID_BYTES = 4


def starts(prefix: str, count: int) -> list[str]:
    """What the names of what runs several times begin with: ``mb0/``, ``mb1/`` ...; nothing where it runs once."""
    return [f"{name}/" for name in numbered(prefix, count)] if count > 1 else [""]


def read_experts(part: Experts, tokens: int) -> int:
    """How many of its experts a rank reads, as expected, where so many tokens of each rank choose."""
    chosen = chosen_number(part.routed, tokens * part.ranks, part.top_k)
    return -(-chosen * part.places // (part.routed * part.ranks))


Back = Callable[[str], None]
"""Makes the gradients of what an op took from that of what it made."""


class Tape(Sheet):
    """Writes down the step of one rank, forward and, in training, backward.

    Parameters
    ----------
    laid, name, rows
        As of a `Sheet`.
    """

    def __init__(self, laid: Laid, name: str = "", rows: int = 0) -> None:
        super().__init__(laid, name, rows)
        self.has_trained_before = False  # in an earlier stage
        self.graded: dict[str, str] = {}  # weight -> its gradient in this micro-batch, or of all so far
        self.shards: dict[str, str] = {}  # weight -> the shard of its gradient, with ZeRO
        self.summands: dict[str, Axes] = {}  # weight -> axes along which replicas hold a summand of its gradient
        self.grads: dict[str, str] = {}  # tensor -> its gradient so far
        self._backs: dict[str, list[tuple[str, Back]]] = {}  # block of a micro-batch -> how to go back through it
        self._shared = set[str]()  # gradients that are those of two tensors: none adds up in place there
        self._between = False  # whether forward is between checkpoints

    # ops with gradients

    def vector(
        self, name: str, reads: list[str], *, saves: bool = True, adds: Layout | None = None, size: int = 0
    ) -> str:
        """Add an op of equal shapes, in the layout of its inputs that is cut most.

        Parameters
        ----------
        name, reads
            The op.
        saves
            Whether its gradients depend on what it took.
        adds
            The layout in which it adds them up, if it does; the gradient of each is that of the sum.
        size
            Of an element of what it makes [B]; default: that of the model's data type.
        """
        target = adds or max((self.layout(x).whole for x in reads), key=lambda made: made.parts)
        taken = [self.to(x, target) for x in reads]
        out = self.tensor(f"{name}.out", self.spread[taken[0]].width, target, size, self.spread[taken[0]].rows)
        self.op(name, taken, [out])

        def back(dy: str) -> None:
            if adds:
                self._shared.add(dy)
                self.give(reads, [dy] * len(reads))
                return
            dy, *saved = (self.to(x, self.layout(out)) for x in (dy, *(reads if saves else ())))
            wanted = [x for x in reads if self.wants(x)]
            grads = [self.add(f"{x}.grad", self.spread[x]._replace(layout=self.layout(dy))) for x in wanted]
            self.op(name, [dy, *saved], grads)
            self.give(wanted, [self.to(grad, self.layout(x).whole) for x, grad in zip(wanted, grads, strict=True)])

        return self.record(out, back)

    def norm(self, name: str, x: str, sums: str = "", made: str = "") -> str:
        """Normalise rows, whole or head by head, into a tensor with its own name or this one; the layout stays.

        Gradients of what it took add up in an op that is named after `sums`.
        """
        weight, layout = self.weight(name), self.layout(x)
        rows, width = self.spread[x].rows, self.spread[x].width
        out, saved = self.tensor(made or f"{name}.out", width, layout, rows=rows), [x]
        if self.is_forward and self.workload.kernels == "eager":
            if self.element_bytes < FP32_BYTES:
                saved = [self.tensor(f"{name}.fp32", width, layout, FP32_BYTES, rows)]
            saved += [self.tensor(f"{name}.normed", width, layout, rows=rows)] if weight.is_trained else []
        self.op(name, [x, self.held[weight.name]], [out, *(one for one in saved if one != x)])

        def back(dy: str) -> None:
            dy, wanted = self.to(dy, layout), [x] * self.wants(x)
            dx = [self.tensor(f"{name}.in.grad", width, layout) for x in wanted]
            old, new = self.grad(layout.cut, weight)
            self.op(name, [*saved, dy, self.held[weight.name], *old], [*dx, *new])
            self.give(wanted, dx, sums or name)

        return self.record(out, back)

    def turned(self, name: str, x: str, width: int) -> None:
        """Give so many elements of each row their rotary embedding in place; the gradient is turned back in place."""
        cut = self.mesh.size(self.layout(x).tensor_map[-1])
        turned_bytes = self.elements(x) * cut // self.spread[x].width * width * self.element_bytes

        def turn(y: str) -> None:
            self.op(name, [y], [y], read_bytes=turned_bytes, write_bytes=turned_bytes)

        def back(dy: str) -> None:
            turn(dy)
            self.give([x], [dy])

        turn(x)
        self.record(x, back)

    def linear(self, name: str, x: str, weight: Weight | None = None, *, heads: int = 0) -> str:
        """Multiply rows, or the first elements of them, by a weight; what comes out is cut, or a summand, as that is.

        So is the gradient of what it took. At inference as many experts are read as are expected to be chosen. What an
        adapter makes of the same rows (LoRA, arXiv 2106.09685) is added.

        Parameters
        ----------
        name, x, weight
            The op, what it takes, and its weight; default: the one of that name.
        heads
            Elements of a row that comes out, if each head's part of a row is multiplied by its own part of the weight.

        Raises
        ------
        ConfigError
            If an adapter stands beside a weight that is multiplied by heads.
        """
        if f"{name}.{ADAPTER[0]}" not in self.weights[self.block]:
            return self._linear(name, x, weight or self.weight(name), heads)
        must, do = "adapters stand beside linears that take whole rows", "leave it out of lora.targets"
        insist(not heads, self.where, must, f"{name}, which is absorbed by heads", do)
        out, added = self._linear(name, x, self.weight(name)), x
        for part in ADAPTER:
            added = self._linear(f"{name}.{part}", added, self.weight(f"{name}.{part}"))
        out = self.vector(f"{name}.lora", [out, added], adds=self.layout(out).whole)
        if not self.is_saving:
            return out
        backs = self._backs[f"{self.micro}{self.block}"]
        apart, backs[-4:] = backs[-4:], []

        def back(dy: str) -> None:
            self.grads[out] = dy
            self._go_through(apart)

        return self.record(out, back)

    def _linear(self, name: str, x: str, weight: Weight, heads: int = 0) -> str:
        bias = f"{name}.bias"
        weights = [weight, *([self.weight(bias)] if bias in self.weights[self.block] else [])]
        names = [self._ready(name, weight), *(self.held[one.name] for one in weights[1:])]
        *experts, inner, outer = weight.layout.tensor_map
        *many, inputs, outputs = weight.shape
        rows, width, _, size, _ = self.spread[x]
        if weight.name.startswith("embed/"):  # a tied table is used transposed
            inner, outer, inputs, outputs = outer, inner, outputs, inputs
        sums, shares = inner, outer
        if heads:
            inner, inputs, outputs, sums, shares = outer, width, heads, (), ()
        tokens = tuple(axis for axis in self.layout(x).tensor_map[-2] if axis not in weight.layout.cut)
        taken, made = (laid_out(self.mesh, (*experts, tokens, axes)) for axes in (inner, outer))
        inside = self.to(x, taken)
        held, used = self.elements(inside), self.elements(inside) * inputs // width
        each = weight.parameters * self.mesh.size(experts[0] if experts else ()) // prod(many)
        flops = 2 * (held * self.mesh.size(inner) // width) * each
        out = self.tensor(f"{name}.out", outputs, laid_out(self.mesh, made.tensor_map, sums), size, rows)
        read_bytes = used * self.element_bytes + sum(map(self.read_bytes, weights))
        self.op(name, [inside, *names], [out], flops=flops, read_bytes=read_bytes)

        def back(dy: str) -> None:
            dy, dx = self.to(dy, made), list[str]()
            if self.wants(x):
                there = laid_out(self.mesh, taken.tensor_map, shares)
                dx = [self.tensor(f"{name}.in.grad", inputs, there, size, rows)]
                self.op(f"{name}.dgrad", [dy, self._ready(name, weight)], dx, flops=flops)
            if any(one.is_trained for one in weights):
                saved = [self.to(x, taken)] if weight.is_trained else []
                old, new = self.grad(tokens, *weights)
                self.op(f"{name}.wgrad", [dy, *saved, *old], new, flops=flops * weight.is_trained)
            self.give([x] * len(dx), dx, name)

        return self.record(out, back)

    def _ready(self, name: str, weight: Weight) -> str:
        """What an op reads of a weight: in training what is made of it first, if it is kept in another format."""
        size = weight.parameters * self.element_bytes
        if not (self.is_forward or self.phase == "backward") or self.weight_bytes(weight) == size:
            return self.held[weight.name]
        again = ".bwd" if self.phase == "backward" else self.again
        spread = Spread(weight.shape[:-1], weight.shape[-1], weight.layout, self.element_bytes)
        made = self.add(f"{self.micro}{weight.name}.ready{again}", spread)
        self.op(f"{name}.ready", [self.held[weight.name]], [made])
        return made

    def read_bytes(self, weight: Weight) -> int:
        """What an op reads of a weight [B]: at inference, of experts as many as are expected to be chosen."""
        part, size = self.layer.feed_forward, self.weight_bytes(weight)
        if self.is_forward:
            return weight.parameters * self.element_bytes
        if weight.kind != "expert" or not isinstance(part, Experts):
            return size
        return size // part.held * read_experts(part, self.own_tokens)

    # going back

    @property
    def is_saving(self) -> bool:
        """Whether what ops of forward make now is there for backward."""
        return self.phase == "again" or (self.phase == "forward" and not self._between)

    def wants(self, x: str) -> bool:
        """Whether a tensor, in whatever layout, has a gradient."""
        return (self.spread[x].origin or x) in self.wanting

    def record(self, out: str, back: Back) -> str:
        """Keep how the gradients of what the last op took are made, if it is of a forward; return what it made."""
        if self.is_saving:
            self._backs.setdefault(f"{self.micro}{self.block}", []).append((out, back))
        return out

    def as_one(self, ops: int) -> None:
        """Let the last so many ops go back in the order of forward."""
        if self.is_saving:
            backs = self._backs[f"{self.micro}{self.block}"]
            backs[-ops:] = backs[: -ops - 1 : -1]

    def goes_back(self, block: str) -> bool:
        """Whether a gradient goes through a block: a weight of it is trained, or one before it."""
        blocks = takewhile(lambda name: name != block, self.weights)
        return self.has_trained_before or any(passes_on(self.weights[b]) for b in (*blocks, block))

    def go_back(self, block: str) -> None:
        """Make all gradients of a block, the last op first."""
        self.block = block
        self._go_through(self._backs.pop(f"{self.micro}{block}", []))

    def _go_through(self, backs: list[tuple[str, Back]]) -> None:
        for out, back in reversed(backs):
            if out in self.wanting:
                back(self.grads.pop(out, ""))

    def part(self, part: str, segment: Callable[[str], str], x: str) -> str:
        """Run a part of the current layer; between checkpoints nothing but `x` is saved, and it runs again in backward.

        Parameters
        ----------
        part
            As a `Checkpoint` names it.
        segment
            From what it takes to what it puts out; called once or twice.
        x
            What it takes.
        """
        about = self.workload.checkpoint
        if about is None or not about.takes(part, int(self.block[1:])):
            return segment(x)
        self._between = True
        out = segment(x)
        self._between = False

        def back(dy: str) -> None:
            self.due, self.phase = [], "again"
            made = segment(x)
            self.phase, self.grads[made] = "backward", dy
            self.go_back(self.block)
            self._catch_up()

        trained = (self.held[one.name] for one in self.weights[self.block].values() if learns_apart(one))
        self.record(out if out in self.wanting else next(trained, out), back)
        return out

    def _catch_up(self) -> None:
        """Write down the backward of a segment; of the ops that run again those that others need."""
        due, self.due, read, made, kept = self.due or [], None, set[str](), set[str](), list[bool]()
        for is_again, (_, reads, writes, _), _ in reversed(due):
            kept.append(not is_again or not read.isdisjoint(writes))
            read.update(reads if kept[-1] else ())
        for is_again, op, more in compress(due, reversed(kept)):
            for name in op[2] if is_again else ():
                if name not in made:
                    self.add(name, self.spread[name])
                    made.add(name)
            self.graph.op(*op, **more)

    def give(self, tensors: list[str], grads: list[str], sums: str = "") -> None:
        """Note gradients of tensors, or add each to what is known of it, in an op that is named after `sums`."""
        for x, grad in zip(tensors, grads, strict=True):
            if not self.wants(x):
                continue
            origin = self.spread[x].origin or x
            known = self.grads.get(origin)
            if known is None:
                self.grads[origin] = grad
                continue
            total, part = (grad, known) if known in self._shared else (known, grad)
            if self.layout(total) != self.layout(part):
                total, part = (self.to(one, self.layout(origin).whole) for one in (total, part))
            self.op(f"{sums}.acc", [total, part], [total])
            self.grads[origin] = total

    def grad(self, tokens: Axes, *weights: Weight) -> tuple[list[str], list[str]]:
        """What an op reads and writes that adds to the gradients of weights; the first one only writes.

        Parameters
        ----------
        tokens
            Axes that cut the rows over which the op sums.
        weights
            The weights; those that are frozen have no gradient.
        """
        old, new = list[str](), list[str]()
        for weight in (one for one in weights if one.is_trained):
            if weight.name in self.graded:
                old.append(self.graded[weight.name])
            else:
                micro = self.micro if self.zero_stage > 1 and weight.replicas else ""
                self.graded[weight.name] = f"{micro}{weight.name}.grad"
                gradient_bytes = weight.parameters * self.workload.dtypes.gradient_bytes
                self.graph.tensor(self.graded[weight.name], gradient_bytes, "gradient")
                self.summands[weight.name] = self.mesh.real(tokens)
            new.append(self.graded[weight.name])
        return old, new
