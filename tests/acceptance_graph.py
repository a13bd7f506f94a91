"""The step on which the open-source HyperOffload planner was measured: activations and weight gradients only.

`workloads/residency_acceptance.jsonl` has it with 32 layers; ``python tests/acceptance_graph.py`` writes that file.

A plain pre-norm decoder, operator by operator, without loss of anything that its planner can see. Weights and
optimizer state are not tensors here, because that planner tracks storages that are made in the step; the bytes of a
weight count in the time of the linears that read it. The weight gradients are the outputs of the graph: nothing here
consumes them, and a training loop holds them for the optimizer.
"""

from __future__ import annotations

from pathlib import Path

from simulator.formats import graph_jsonl
from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder

FILE = Path(__file__).parents[1] / "workloads" / "residency_acceptance.jsonl"
TOKENS, HIDDEN, HEADS, FFN = 4096, 4096, 32, 16384
H, F, STATISTICS, LSE = TOKENS * HIDDEN * 2, TOKENS * FFN * 2, TOKENS * 8, TOKENS * HEADS * 4
"""Bytes of an activation, of the inner one, of the statistics of rows, and of the attention's."""
LINEARS = {"qkv": (HIDDEN, 3 * HIDDEN), "proj": (HIDDEN, HIDDEN), "fc1": (HIDDEN, FFN), "fc2": (FFN, HIDDEN)}
ATTENTION_FLOPS = 2 * TOKENS * TOKENS * HIDDEN
FORWARD = (
    ("ln1", "x", "n1 ln1.stats"),
    ("qkv", "n1", "qkv"),
    ("attn", "qkv", "ctx lse"),
    ("proj", "ctx", "proj"),
    ("add1", "x proj", "r"),
    ("ln2", "r", "n2 ln2.stats"),
    ("fc1", "n2", "u"),
    ("gelu", "u", "g"),
    ("fc2", "g", "fc2"),
    ("add2", "r fc2", "y"),
)
BACKWARD = (
    ("fc2.dgrad", "dy", "dg"),
    ("fc2.wgrad", "g dy", "fc2.dw"),
    ("gelu", "dg u", "du"),
    ("fc1.dgrad", "du", "fc1.dl"),
    ("fc1.wgrad", "n2 du", "fc1.dw"),
    ("ln2", "fc1.dl r ln2.stats", "ln2.dn"),
    ("add2", "dy ln2.dn", "dr"),
    ("proj.dgrad", "dr", "dc"),
    ("proj.wgrad", "ctx dr", "proj.dw"),
    ("attn", "dc qkv ctx lse", "dq"),
    ("qkv.dgrad", "dq", "qkv.dl"),
    ("qkv.wgrad", "n1 dq", "qkv.dw"),
    ("ln1", "qkv.dl x ln1.stats", "ln1.dn"),
    ("add1", "dr ln1.dn", "dx"),
)
SIZES = {"qkv": 3 * H, "dq": 3 * H, "ln1.stats": STATISTICS, "ln2.stats": STATISTICS, "lse": LSE, "loss": 4}
SIZES |= dict.fromkeys(("u", "g", "dg", "du"), F)
SIZES |= {f"{name}.dw": inputs * outputs * 2 for name, (inputs, outputs) in LINEARS.items()}
"""Bytes of tensors, where they are not those of an activation."""


class Step:
    """Writes the ops of the step; names are relative to a block, and some are those of tensors of other blocks."""

    def __init__(self) -> None:
        self.builder, self.block, self.phase = GraphBuilder("residency_acceptance"), "", "forward"
        self.elsewhere: dict[str, str] = {}

    def name(self, tensor: str) -> str:
        return self.elsewhere.get(tensor, f"{self.block}/{tensor}")

    def op(self, name: str, reads: str, writes: str) -> None:
        made, linear = [f"{self.block}/{tensor}" for tensor in writes.split()], name.partition(".")[0]
        for short, tensor in zip(writes.split(), made, strict=True):
            self.builder.tensor(tensor, SIZES.get(short, H), "gradient" if short.endswith(".dw") else "activation")
        inputs, outputs = LINEARS.get(linear, (0, 0))
        flops = 2 * TOKENS * inputs * outputs
        if name == "attn":
            flops = ATTENTION_FLOPS if self.phase == "forward" else 5 * ATTENTION_FLOPS // 2
        weight_bytes = 0 if name.endswith(".wgrad") else inputs * outputs * 2
        self.builder.op(
            f"{self.block}/{'fwd' if self.phase == 'forward' else 'bwd'}/{name}",
            map(self.name, reads.split()),
            made,
            read_bytes=weight_bytes + sum(SIZES.get(tensor, H) for tensor in reads.split()),
            flops=flops,
            op_class="matmul" if flops else "vector",
            phase=self.phase,
        )

    def layer(self, block: str, rows: tuple[tuple[str, str, str], ...], **elsewhere: str) -> None:
        self.block, self.elsewhere = block, elsewhere
        for row in rows:
            self.op(*row)


def graph(layers: int = 32) -> Graph:
    """The step of so many layers, once."""
    step = Step()
    width = max(2, len(str(layers - 1)))
    blocks = [f"L{number:0{width}d}" for number in range(layers)]
    step.layer("embed", (("tokens", "", "x"),))
    outs = ["embed/x", *(f"{block}/y" for block in blocks)]
    for block, x in zip(blocks, outs, strict=False):
        step.layer(block, FORWARD, x=x)
    step.layer("head", (("loss", "x", "loss"),), x=outs[-1])
    step.phase = "backward"
    step.layer("head", (("loss", "x loss", "dy"),), x=outs[-1])
    dy = "head/dy"
    for block, x in zip(reversed(blocks), outs[-2::-1], strict=True):
        step.layer(block, BACKWARD, x=x, dy=dy)
        dy = f"{block}/dx"
    outputs = [f"{block}/{name}.dw" for block in reversed(blocks) for name in ("fc2", "fc1", "proj", "qkv")]
    return step.builder.build(outputs)


if __name__ == "__main__":
    graph_jsonl.write(graph(), FILE)
