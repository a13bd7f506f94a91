"""What the ranks of one pipeline stage run: micro-batches forward and backward in their order, then the update."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.builders.decoder.ends import Head, embed, embed_backward
from simulator.builders.decoder.layer import Layer
from simulator.builders.decoder.replicas import Replicas
from simulator.builders.decoder.tape import Tape
from simulator.builders.decoder.weights import BATCH, TENSOR
from simulator.builders.naming import numbered
from simulator.graph import CollectiveKind, Graph
from simulator.layout import Mesh, Weight
from simulator.workload import LlamaModel, Workload

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
