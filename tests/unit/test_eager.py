"""What ops of a norm and of a rotary embedding move one by one, counted in what PyTorch runs of transformers."""

from __future__ import annotations

import hosim
import pytest

from simulator.builders.eager import norm_traffic, rotary_traffic

torch = pytest.importorskip("torch")
SHAPE = 2, 64, 1024
ELEMENTS = 2 * 64 * 1024


def llama():
    """The module of transformers, which takes seconds to import, though no test of it is chosen."""
    return pytest.importorskip("transformers.models.llama.modeling_llama")


class Turned(torch.nn.Module):
    """Queries and keys with rotary embeddings."""

    def __init__(self):
        super().__init__()
        self.made = torch.nn.ModuleList(torch.nn.Linear(SHAPE[-1], SHAPE[-1], bias=False) for _ in "qk")

    def forward(self, x, cos, sin):
        q, k = (make(x).unflatten(-1, (64, -1)).transpose(1, 2) for make in self.made)
        return llama().apply_rotary_pos_emb(q, k, cos, sin)


def moved(step, *inputs):
    """Bytes an element that the ops of `modeling_llama.py` read and write, without those of single rows."""

    def loss(made):
        return sum(one.square().sum() for one in (made if isinstance(made, tuple) else (made,)))

    graph, per = hosim.torch.capture(step, *inputs, loss=loss).files[".jsonl"], {}
    for phase in ("forward", "backward"):
        ops = [op for op in graph.ops if op.phase == phase and "modeling_llama.py" in op.name]
        sides = [op.read_bytes for op in ops], [op.write_bytes for op in ops]
        per[phase] = [sum(side) // ELEMENTS for side in sides]
    return per


def per_element(traffic):
    return {phase: [*fields.values()] for phase, fields in traffic.items()}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("trains", [True, False])
def test_a_norm_moves_what_its_ops_do(dtype, trains):
    type_of = getattr(torch, dtype)
    norm = llama().LlamaRMSNorm(SHAPE[-1]).requires_grad_(trains)
    step = torch.nn.Sequential(torch.nn.Linear(SHAPE[-1], SHAPE[-1], bias=False), norm).to(type_of)
    predicted = norm_traffic(1, type_of.itemsize, trains=trains)
    assert moved(step, torch.zeros(SHAPE, dtype=type_of)) == per_element(predicted)


def test_a_rotary_embedding_moves_what_its_ops_do():
    turns = torch.zeros(2, 64, SHAPE[-1] // 64, dtype=torch.bfloat16)
    found = moved(Turned().to(torch.bfloat16), torch.zeros(SHAPE, dtype=torch.bfloat16), turns, turns)
    assert found == {phase: [2 * side for side in sides] for phase, sides in per_element(rotary_traffic(2)).items()}
