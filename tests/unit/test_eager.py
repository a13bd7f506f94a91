"""What ops of norms, rotary embeddings, adapters and attention move one by one, counted in what PyTorch runs."""

from __future__ import annotations

import hosim
import pytest
from building import build

from simulator.builders.eager import ROTARY, norm_traffic, traffic
from simulator.workload import LlamaModel, Workload

torch = pytest.importorskip("torch")
SHAPE = 2, 64, 1024
WIDTH, TOKENS = 64, 32
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
    assert found == {phase: [2 * side for side in sides] for phase, sides in per_element(traffic(ROTARY, 1)).items()}


class Adapted(torch.nn.Module):
    """A frozen linear with an adapter, as PEFT runs it; what autocast and a GPU run of it is written out here."""

    def __init__(self, *, drops, converts):
        super().__init__()
        self.before = torch.nn.Linear(WIDTH, WIDTH, bias=False)  # so that a gradient goes on
        self.beside = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False).requires_grad_(requires_grad=False)
        self.down, self.up = torch.nn.Linear(WIDTH, 8, bias=False), torch.nn.Linear(8, 3 * WIDTH, bias=False)
        self.drops, self.converts = drops, converts

    def forward(self, x):
        x = self.before(x)
        made, taken = self.beside(x), x.float() if self.converts else x
        taken = torch.native_dropout(taken, 0.1, train=True)[0] if self.drops else taken
        return made + self.up(self.down(taken.to(x.dtype))) * 2


def moves(ops, names):
    """Phase, work, and bytes read and written of ops whose names start so, but for sums of gradients."""
    are = [op for op in ops if op.name.startswith(names) and op.phase != "update" and "bwd/add" not in op.name]
    return sorted((op.phase, op.flops, op.read_bytes, op.write_bytes) for op in are if not op.name.endswith(".acc"))


@pytest.mark.parametrize("drops", [True, False])
@pytest.mark.parametrize("converts", [True, False])
def test_an_adapter_moves_what_its_ops_do(drops, converts):
    step = Adapted(drops=drops, converts=converts).to(torch.bfloat16)
    inputs = torch.zeros(TOKENS, WIDTH, dtype=torch.bfloat16)
    captured = hosim.torch.capture(step, inputs, loss=lambda y: y.square().sum()).files[".jsonl"]
    lora = {"rank": 8, "targets": ["ffn.up"], "dropout": drops, "inputs": "fp32" if converts else None}
    model = {"layers": 1, "hidden": WIDTH, "heads": 1, "kv_heads": 1, "ffn": 3 * WIDTH, "vocabulary": 8}
    settings = {"phase": "train", "batch": 1, "sequence": TOKENS, "kernels": "eager", "lora": lora}
    frozen = ("L00/*.weight",)  # not the embedding, so that a gradient goes on
    built = build(Workload(name="w", model=LlamaModel(**model), frozen=frozen, **settings))
    of_step = moves(captured.ops, ("Adapted", "beside", "down", "up"))
    assert of_step == moves(built.ops, ("L00/fwd/ffn.up", "L00/bwd/ffn.up"))


class Scored(torch.nn.Module):
    """Attention whose scores are scaled and masked op by op, or in one kernel, for which the softmax stands here."""

    def __init__(self, *, apart):
        super().__init__()
        self.made = torch.nn.ModuleList(torch.nn.Linear(NARROW, NARROW, bias=False) for _ in "qkv")
        self.apart = apart

    def forward(self, x):
        q, k, v = (make(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for make in self.made)
        scores = q @ k.transpose(-1, -2)
        if self.apart:
            scores = torch.where(MASK, scores * 0.5, -1e4)
        return scores.softmax(-1) @ v


HEADS, NARROW, MANY = 2, 16, 256  # so that scores are larger than all else together
MASK = torch.ones(MANY, MANY, dtype=torch.bool).tril()


@pytest.mark.parametrize("kernels", ["fused", "eager"])
def test_attention_that_holds_scores_moves_what_its_ops_do(kernels):
    step = Scored(apart=kernels == "eager").to(torch.bfloat16)
    inputs = torch.zeros(1, MANY, NARROW, dtype=torch.bfloat16)
    captured = hosim.torch.capture(step, inputs, loss=lambda y: y.square().sum()).files[".jsonl"]
    model = {"layers": 1, "hidden": NARROW, "heads": HEADS, "kv_heads": HEADS, "ffn": NARROW, "vocabulary": 8}
    settings = {"phase": "train", "batch": 1, "sequence": MANY, "kernels": kernels, "dtypes": {"scores_bytes": 2}}
    built = build(Workload(name="w", model=LlamaModel(**model), **settings))
    assert scores_of(captured.ops, "Scored", "Scored") == scores_of(built.ops, "L00/fwd/attn.core", "L00/bwd/attn.core")
    saved = {tensor.name: tensor.size_bytes for tensor in built.tensors if "attn.core." in tensor.name}
    assert saved["L00/attn.core.scores"] == 2 * HEADS * MANY**2
    assert "L00/attn.core.lse" not in saved


def scores_of(ops, *names):
    """How often ops read and write as many bytes as the scores have, and their work, forward and backward."""
    found = {}
    for phase, name in zip(("forward", "backward"), names, strict=True):
        of_phase = [op for op in ops if op.phase == phase and op.name.startswith(name)]
        sides = [sum(op.read_bytes for op in of_phase), sum(op.write_bytes for op in of_phase)]
        found[phase] = [side // (2 * HEADS * MANY**2) for side in sides], sum(op.flops or 0 for op in of_phase)
    return found
