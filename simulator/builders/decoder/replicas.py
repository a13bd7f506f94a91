"""What replicas share: gradients that add up, and with ZeRO optimizer state, gradients and weights in shards.

Gradients and weights of a block (a layer, the embedding, the head) travel together, as frameworks fuse them into
buckets. Stage 0 and 1 reduce after the last micro-batch, in place; stage 2 and 3 reduce every micro-batch into a shard
that adds up. Stage 1 and 2 gather the updated weights. Stage 3 gathers the weights of a block before its forward and
again before its backward, but for the embedding and the head, which stay; the gathering of a block begins with the
block before it, so that two are there at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.builders.decoder.tape import Meeting, Tape
from simulator.builders.decoder.weights import BATCH
from simulator.graph import CollectiveKind
from simulator.layout import Axes, Weight
from simulator.workload import Workload


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
            t.meet(_named("weights", axes, "all_gather"), reads, whole, _gathering(axes, self._bytes(mine)))

    def _declare(self, weight: Weight) -> str:
        """Declare the shard of a weight when it is first gathered."""
        t = self.tape
        if weight.name not in t.held:
            t.graph.tensor(weight.name, self.shard(weight) * t.element_bytes, weight.kind, persistent=True)
        return weight.name

    def _sharing(self, block: str) -> dict[Axes, list[Weight]]:
        """The weights of a block by the replicas that share them."""
        found: dict[Axes, list[Weight]] = {}
        for weight in self.tape.weights.values():
            if weight.name.startswith(f"{block}/") and weight.replicas:
                found.setdefault(weight.replicas, []).append(weight)
        return found

    def _bytes(self, weights: Sequence[Weight]) -> int:
        return sum(weight.parameters for weight in weights) * self.tape.element_bytes

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
            grads = [t.graded[weight.name] for weight in mine]
            size_bytes = self._bytes(mine)
            if t.zero_stage > 1:
                self._into_shards(axes, mine)
            elif t.zero_stage:
                about = Meeting(CollectiveKind.REDUCE_SCATTER, axes, size_bytes)
                t.meet(_named("grads", axes, "reduce_scatter"), grads, grads, about)
            else:
                about = Meeting(CollectiveKind.ALL_REDUCE, axes, size_bytes)
                t.meet(_named("grads", axes, "all_reduce"), grads, grads, about)

    def _sum_cut_tokens(self, block: str) -> None:
        """Sum over ranks that saw other tokens of the same samples, with sequence parallelism."""
        t = self.tape
        found: dict[Axes, list[Weight]] = {}
        for weight in t.weights.values():
            if weight.name.startswith(f"{block}/"):
                axes = tuple(axis for axis in t.summands.get(weight.name, ()) if axis not in BATCH)
                if axes and weight.name in t.graded:
                    found.setdefault(axes, []).append(weight)
        for axes, mine in found.items():
            grads = [t.graded[weight.name] for weight in mine]
            about = Meeting(CollectiveKind.ALL_REDUCE, axes, self._bytes(mine))
            t.meet(_named("grads", axes, "all_reduce"), grads, grads, about)

    def _into_shards(self, axes: Axes, mine: Sequence[Weight]) -> None:
        """Reduce into shards; from the second micro-batch on, add them to what is there."""
        t = self.tape
        grads = [t.graded.pop(weight.name) for weight in mine]
        again = mine[0].name in self._shards
        parts = []
        for weight in mine:
            parts.append(f"{t.micro}{weight.name}.grad.part" if again else f"{weight.name}.grad.shard")
            t.graph.tensor(parts[-1], self.shard(weight) * t.element_bytes, "gradient")
        about = Meeting(CollectiveKind.REDUCE_SCATTER, axes, self._bytes(mine))
        t.meet(_named("grads", axes, "reduce_scatter"), grads, parts, about)
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
            mine = [weight for weight in t.weights.values() if weight.name.startswith(f"{block}/")]
            for weight in mine:
                self._update(weight)
            if t.zero_stage in {1, 2}:
                for axes, sharing in self._sharing(block).items():
                    names = [weight.name for weight in sharing]
                    t.meet(_named("weights", axes, "all_gather"), names, names, _gathering(axes, self._bytes(sharing)))

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


def _gathering(axes: Axes, size_bytes: int) -> Meeting:
    return Meeting(CollectiveKind.ALL_GATHER, axes, size_bytes)


def _named(what: str, axes: Axes, does: str) -> str:
    return f"{what}.{does}.{'.'.join(axes)}"
