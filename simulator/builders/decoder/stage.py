"""What the ranks of one pipeline stage run: micro-batches forward and backward in their order, then the update.

*Replicas.* What replicas share: gradients that add up, and with ZeRO optimizer state, gradients and weights in shards.

Gradients and weights of a block (a layer, the embedding, the head) travel together, as frameworks fuse them into
buckets. Stage 0 and 1 reduce after the last micro-batch, in place; stage 2 and 3 reduce every micro-batch into a shard
that adds up. Stage 1 and 2 gather the updated weights. Stage 3 gathers the weights of a block before its forward and
again before its backward, but for the embedding and the head, which stay; the gathering of a block begins with the
block before it, so that two are there at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from simulator.builders.decoder.ends import Head, embed, embed_backward
from simulator.builders.decoder.layer import Layer
from simulator.builders.decoder.tape import Meeting, Tape, numbered
from simulator.builders.decoder.weights import BATCH, TENSOR
from simulator.graph import CollectiveKind, Graph
from simulator.layout import Axes, Mesh, Weight
from simulator.workload import LlamaModel, Workload


class Replicas:
    """What the replicas of one rank's part do together.

    Parameters
    ----------
    tape
        What the ops are written on.
    workload
        With the ZeRO stage.
    blocks
        The parts of the model that the rank runs, in the order of forward.
    """

    def __init__(self, tape: Tape, workload: Workload, blocks: Sequence[str]) -> None:
        self.tape, self.workload, self.blocks = tape, workload, list(blocks)
        self._asked: set[tuple[str, str, str]] = set()
        self._shards: dict[str, str] = {}  # weight -> its gradient's shard

    def shard(self, weight: Weight) -> int:
        """Parameters of a weight in a ZeRO shard; the last one is filled up."""
        parallel = self.workload.parallel
        if not parallel.zero_stage:
            return weight.parameters
        shards = parallel.data if parallel.ranks == "one" else self.tape.mesh.size(weight.replicas)
        return -(-weight.parameters // shards)

    def before(self, block: str, start: str | None) -> None:
        """Gather the weights of a block and of the one after it, if they are sharded.

        Parameters
        ----------
        block
            What runs now.
        start
            The tensor that the block starts from; the next gathering waits for it.
        """
        if self.tape.zero_stage < 3:
            return
        order = self.blocks if self.tape.phase == "forward" else self.blocks[::-1]
        at = order.index(block)
        self._gather(block, None)
        for after in order[at + 1 : at + 2]:
            self._gather(after, start)

    def _gather(self, block: str, start: str | None) -> None:
        t = self.tape
        key = (t.micro, block, t.phase)
        if key in self._asked or (t.phase == "backward" and block in {"embed", "head"}):
            return
        self._asked.add(key)
        suffix = "gathered" if t.phase == "forward" else "gathered.bwd"
        t.block = block
        for axes, mine in self._sharing(block).items():
            kept = [self._declare(weight) for weight in mine]
            whole = []
            for weight in mine:
                whole.append(f"{t.micro}{weight.name}.{suffix}")
                t.graph.tensor(whole[-1], weight.parameters * t.element_bytes, weight.kind)
                t.held[weight.name] = whole[-1]
            reads = [*kept, start] if start else kept
            self._meet("weights", CollectiveKind.ALL_GATHER, axes, mine, (reads, whole))

    def _declare(self, weight: Weight) -> str:
        """Declare the shard of a weight when it is first gathered."""
        t = self.tape
        if weight.name not in t.held:
            t.graph.tensor(weight.name, self.shard(weight) * t.element_bytes, weight.kind, persistent=True)
        return weight.name

    def _sharing(self, block: str) -> dict[Axes, list[Weight]]:
        """The weights of a block by the replicas that share them."""
        return _grouped((weight.replicas, weight) for weight in self._of(block))

    def _of(self, block: str) -> list[Weight]:
        return [weight for weight in self.tape.weights.values() if weight.name.startswith(f"{block}/")]

    def _meet(
        self, what: str, kind: CollectiveKind, axes: Axes, weights: Sequence[Weight], names: tuple[list[str], list[str]]
    ) -> None:
        """Add a collective of as many bytes as weights have; `names` are what it reads and writes."""
        t = self.tape
        about = Meeting(kind, axes, sum(weight.parameters for weight in weights) * t.element_bytes)
        t.meet(_named(what, axes, str(kind)), *names, about)

    def after(self, block: str, *, is_last: bool) -> None:
        """Add up the gradients of a block whose backward has run.

        Parameters
        ----------
        block
            What has run.
        is_last
            Whether it was the last micro-batch.
        """
        t = self.tape
        if t.zero_stage < 2 and not is_last:
            return
        t.block = block
        self._sum_cut_tokens(block)
        for axes, mine in self._sharing(block).items():
            if t.zero_stage > 1:
                self._into_shards(axes, mine)
            else:
                self._sum(CollectiveKind.REDUCE_SCATTER if t.zero_stage else CollectiveKind.ALL_REDUCE, axes, mine)

    def _sum(self, kind: CollectiveKind, axes: Axes, mine: Sequence[Weight]) -> None:
        """Add up gradients in place."""
        grads = [self.tape.graded[weight.name] for weight in mine]
        self._meet("grads", kind, axes, mine, (grads, grads))

    def _sum_cut_tokens(self, block: str) -> None:
        """Sum over ranks that saw other tokens of the same samples, with sequence parallelism."""
        summands, graded = self.tape.summands, [w for w in self._of(block) if w.name in self.tape.graded]
        along = ((tuple(axis for axis in summands[w.name] if axis not in BATCH), w) for w in graded)
        for axes, mine in _grouped(along).items():
            self._sum(CollectiveKind.ALL_REDUCE, axes, mine)

    def _into_shards(self, axes: Axes, mine: Sequence[Weight]) -> None:
        """Reduce into shards; from the second micro-batch on, add them to what is there."""
        t = self.tape
        grads = [t.graded.pop(weight.name) for weight in mine]
        again = mine[0].name in self._shards
        parts = []
        for weight in mine:
            parts.append(f"{t.micro}{weight.name}.grad.part" if again else f"{weight.name}.grad.shard")
            t.graph.tensor(parts[-1], self.shard(weight) * t.element_bytes, "gradient")
        self._meet("grads", CollectiveKind.REDUCE_SCATTER, axes, mine, (grads, parts))
        if again:
            shards = [self._shards[weight.name] for weight in mine]
            t.op(_named("grads", axes, "acc"), [*shards, *parts], shards)
        else:
            self._shards |= {weight.name: part for weight, part in zip(mine, parts, strict=True)}

    def update(self) -> None:
        """Update all weights of the rank, each with its shard of the optimizer state, and gather what was sharded."""
        t = self.tape
        t.phase, t.micro = "update", ""
        for block in self.blocks:
            for weight in self._of(block):
                self._update(weight)
            if t.zero_stage in {1, 2}:
                for axes, sharing in self._sharing(block).items():
                    names = [weight.name for weight in sharing]
                    self._meet("weights", CollectiveKind.ALL_GATHER, axes, sharing, (names, names))

    def _update(self, weight: Weight) -> None:
        t = self.tape
        per_parameter = self.workload.dtypes.optimizer_bytes_per_parameter
        t.block, module = weight.name.removesuffix(".weight").split("/")
        shard, state = self.shard(weight), f"{weight.name}.state"
        grad = self._shards.get(weight.name) or t.graded[weight.name]
        t.graph.tensor(state, shard * per_parameter, "optimizer_state", persistent=True)
        t.op(
            module,
            [grad, state, weight.name],
            [state, weight.name],
            read_bytes=shard * (per_parameter + 2 * t.element_bytes),
            write_bytes=shard * (per_parameter + t.element_bytes),
            dtype="fp32",
        )


def _grouped(weights: Iterable[tuple[Axes, Weight]]) -> dict[Axes, list[Weight]]:
    """Weights by axes; those without axes are left out."""
    found: dict[Axes, list[Weight]] = {}
    for axes, weight in weights:
        if axes:
            found.setdefault(axes, []).append(weight)
    return found


def _named(what: str, axes: Axes, does: str) -> str:
    return f"{what}.{does}.{'.'.join(axes)}"


NEXT, PREVIOUS = "pipeline.next", "pipeline.previous"
"""Groups of pairs along the stages: activations go to the next one, gradients to the previous one."""


def turns(schedule: str, micro_batches: int, stages: int, stage: int) -> Iterator[tuple[str, int]]:
    """The order in which a stage runs its micro-batches: pairs of ``forward`` or ``backward`` and a micro-batch.

    Parameters
    ----------
    schedule
        ``gpipe``: all forward, then all backward, the last first (Huang et al. 2019). ``1f1b``: as many forward as
        there are stages behind, then one forward and one backward in turn (PipeDream-Flush, Narayanan et al. 2021).
    micro_batches, stages, stage
        How many micro-batches and stages there are, and which stage this is.
    """
    if schedule == "gpipe":
        yield from (("forward", i) for i in range(micro_batches))
        yield from (("backward", i) for i in reversed(range(micro_batches)))
        return
    ahead = min(micro_batches, stages - stage - 1)
    yield from (("forward", i) for i in range(ahead))
    for i in range(micro_batches - ahead):
        yield "forward", ahead + i
        yield "backward", i
    yield from (("backward", i) for i in range(micro_batches - ahead, micro_batches))


class Stage:
    """One stage of the pipeline.

    In 1F1B a stage receives what it runs forward next before it sends a gradient back, as the stage before it sends
    before it receives; so ranks meet in program order even if they do one thing at a time.

    Parameters
    ----------
    workload, model
        What runs.
    mesh, weights
        The ranks, and how the weights are spread over them.
    place
        Which stage it is, and the names of its layers.
    """

    def __init__(
        self,
        workload: Workload,
        model: LlamaModel,
        mesh: Mesh,
        weights: dict[str, Weight],
        place: tuple[int, list[str]],
    ) -> None:
        self.workload, self.model = workload, model
        self.number, blocks = place
        self.stages = mesh.size(["pipeline"])
        name = workload.name if self.stages == 1 else f"{workload.name} stage {self.number}"
        self.tape = Tape(workload, mesh, weights, name)
        self.residual = self.tape.cut((), (*BATCH, *(TENSOR if workload.parallel.sequence else ())))
        self.is_first, self.is_last = self.number == 0, self.number == self.stages - 1
        self.layer_names = blocks
        parts = [*(["embed"] if self.is_first else []), *blocks, *(["head"] if self.is_last else [])]
        self.replicas = Replicas(self.tape, workload, parts)
        self.micros = numbered("mb", workload.parallel.micro_batches)
        self.layers: dict[int, list[Layer]] = {}
        self.heads: dict[int, Head] = {}
        self.unsent: tuple[int, str] | None = None

    def graph(self) -> Graph:
        """Write down the step."""
        parallel = self.workload.parallel
        order = list(turns(parallel.schedule, parallel.micro_batches, self.stages, self.number))
        for at, (phase, micro) in enumerate(order):
            self._turn(phase, micro)
            if phase == "forward":
                self._forward(micro)
            else:
                self._send_back()
                self._backward(micro, is_last=at == len(order) - 1)
        self._send_back()
        self.replicas.update()
        return self.tape.graph.build(steps=self.workload.steps)

    def _turn(self, phase: str, micro: int) -> None:
        self.tape.phase = phase
        self.tape.micro = f"{self.micros[micro]}/" if len(self.micros) > 1 else ""

    def _send_back(self) -> None:
        """Send the gradient that was made last, if it is still here."""
        if self.unsent is not None:
            t, (micro, dy) = self.tape, self.unsent
            now, self.unsent = (t.phase, t.micro), None
            self._turn("backward", micro)
            t.block = self.layer_names[0]
            t.message(CollectiveKind.SEND, dy, PREVIOUS, -1)
            t.phase, t.micro = now

    def _forward(self, micro: int) -> None:
        t = self.tape
        if self.is_first:
            self.replicas.before("embed", None)
            x = embed(t, self.residual)
        else:
            x = self._receive(self.layer_names[0], "in", NEXT, 1)
        self._send_back()
        layers = [Layer(t, self.model, self.workload.sequence, block) for block in self.layer_names]
        for layer in layers:
            self.replicas.before(layer.block, x)
            x = layer.forward(x)
        self.layers[micro] = layers
        if self.is_last:
            self.replicas.before("head", x)
            copies = self.workload.dtypes.logits_copies_fp32
            self.heads[micro] = Head(t, copies, tied=self.model.tied_embeddings)
            self.heads[micro].forward(x)
        else:
            t.message(CollectiveKind.SEND, x, NEXT, 1)

    def _receive(self, block: str, name: str, group: str, by: int) -> str:
        t = self.tape
        t.block = block
        x = t.tensor(name, self.model.hidden, self.residual)
        t.message(CollectiveKind.RECV, x, group, by)
        return x

    def _backward(self, micro: int, *, is_last: bool) -> None:
        t = self.tape
        if self.is_last:
            dy = self.heads.pop(micro).backward()
            self.replicas.after("head", is_last=is_last)
        else:
            dy = self._receive(self.layer_names[-1], "out.grad", PREVIOUS, -1)
        for layer in reversed(self.layers.pop(micro)):
            self.replicas.before(layer.block, dy)
            dy = layer.backward(dy)
            self.replicas.after(layer.block, is_last=is_last)
        if self.is_first:
            embed_backward(t, dy)
            self.replicas.after("embed", is_last=is_last)
        else:
            self.unsent = (micro, dy)
