"""Capture of PyTorch: kinds, names, arithmetic and liveness against PyTorch's own, and refusals with the line."""

import re
import resource
from collections import Counter
from copy import deepcopy
from itertools import product

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='torch is not installed (pip install "hosim[torch]")')
pytest.importorskip("transformers", reason="transformers, whose models are captured, is not installed")

import torch_models  # noqa: E402
import torch_steps  # noqa: E402
from examples import some  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_steps import graph_of, line_of, mean, small  # noqa: E402

import simulator as hosim  # noqa: E402
from simulator.errors import ConfigError  # noqa: E402
from simulator.graph import chosen_number  # noqa: E402
from simulator.importers import torch_recorder, torch_run  # noqa: E402
from simulator.lifetime import Lifetimes, live_bytes  # noqa: E402


def sizes(graph):
    """Kind -> bytes of its tensors."""
    found = Counter()
    for tensor in graph.tensors:
        found[str(tensor.kind)] += tensor.size_bytes
    return dict(found)


LIKE = ("encoder_decoder", "perceptron", "checkpointed", "checkpointed_reentrant", "transformer", "llama")
"""Those whose parts are in other steps, too."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LIKE)) for name in torch_steps.STEPS]
)
def test_the_peak_of_what_is_live_is_that_of_pytorchs_memory_tracker(name):
    ours, theirs = (
        int(live_bytes(torch_steps.captured(name).graph).max()),
        torch_steps.tracked_bytes(torch_steps.made(name)),
    )
    assert ours == pytest.approx(theirs, rel=1e-3)  # counts of steps, 4 B a parameter, are left out


def test_what_no_op_uses_takes_room_and_may_lie_below(quick_plans, tmp_path):
    found = torch_steps.captured("partly")
    there = {tensor.name: tensor for tensor in found.graph.tensors if tensor.persistent}
    assert {name: there[name].size_bytes for name in ("tower.weight", "tower.bias", "table")} == {
        "tower.weight": 4 * 256 * 1024, "tower.bias": 4 * 1024, "table": 4 * 512 * 64,
    }  # fmt: skip
    assert all(there[name].kind == "weight" for name in ("tower.weight", "table"))
    assert not any(name.endswith(".step") for name in there)  # which the host keeps
    found.write(tmp_path / "mine.yaml")
    story, about = tmp_path / "story.yaml", "schema: hosim/scenario/1\nname: story\nhardware: h100_sxm\n"
    for homes, policies in (("{}", ["resident"]), ("{weight: ddr}", ["static", "reactive"])):
        story.write_text(f"{about}workload: mine.yaml\nhomes: {homes}\npolicies: [{', '.join(policies)}]\n")
        for row in hosim.run(story).values():
            above = live_bytes(found.graph).max() - (0 if homes == "{}" else 4 * (256 * 1024 + 1024 + 512 * 64))
            assert (row.status, row.summary["peak_hbm_bytes"] <= above) == ("ok", True)
            assert (row.summary["peak_hbm_bytes"] == live_bytes(found.graph).max()) == (homes == "{}")


@pytest.mark.parametrize("frees", ["between", "after", "never"])
def test_old_gradients_take_room_until_they_are_freed(frees):
    def step(x):
        out = model(x)
        if frees == "between":
            optimizer.zero_grad()
        mean(out).backward()
        optimizer.step()
        if frees == "after":
            optimizer.zero_grad()

    with hosim.torch.fake():
        model, x = small(), torch.randn(4, 32)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        step(x)
        tracker = torch_steps.memory_tracker()
        held = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        tracker.track_external(model, optimizer, x, *held)
        held.clear()  # else they would stay
        with tracker:
            step(x)
        theirs = sum(found["Total"] for found in tracker.get_tracker_snapshot("peak").values())
    assert int(live_bytes(graph_of(step, x)).max()) == theirs


COPIED = {
    "encoder": lambda: (nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64), 2), 1),
    "both": lambda: (nn.Transformer(32, 4, 2, 2, 64), 2),
    "without dropout": lambda: (nn.Transformer(32, 4, 1, 1, 64, dropout=0.0, batch_first=True), 2),
    "attention and its weights": lambda: (deepcopy(nn.MultiheadAttention(32, 4, dropout=0.1)), 3),
    "layers": lambda: (nn.Sequential(*(deepcopy(small()[0]) for _ in range(2)))[:1], 1),
}  # fmt: skip


SELDOM = ("both", "encoder", "without dropout")
"""Those whose parts are in others, too."""


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # without a batch first
@pytest.mark.parametrize(
    ("name", "training"),
    [pytest.param(name, training, marks=[pytest.mark.slow] * (name in SELDOM))
     for name, training in product(COPIED, (True, False))],
)  # fmt: skip
def test_views_of_a_copied_layer_are_no_storages_of_their_own(name, training):
    def step(*inputs):
        model.zero_grad()
        squares(model(*inputs)).backward()

    def squares(out):
        return (out[0] if isinstance(out, tuple) else out).square().mean()

    real, number = COPIED[name]()
    with hosim.torch.fake():
        model, inputs = COPIED[name]()[0].train(training), [torch.randn(6, 5, 32)] * number
    captured, expected = graph_of(step, *inputs), graph_of(real.train(training), *inputs, loss=squares)
    ran, would_run = ([re.split("[@#]", op.name)[0] for op in graph.ops] for graph in (captured, expected))
    assert ran == would_run
    assert sizes(captured) == sizes(expected)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_a_copied_model_is_cast_after_it_was_made():
    with hosim.torch.fake():
        model = nn.Transformer(32, 4, 1, 1, 64).to(torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.slow
@pytest.mark.parametrize("name", torch_models.MODELS)
def test_models_of_many_families_are_captured_or_refused_with_the_line(name):
    with hosim.torch.fake():
        model, named = torch_models.MODELS[name]()
    if name in torch_models.ASK_FOR_VALUES:
        with pytest.raises(ConfigError, match=rf"modeling_{name}\.py:\d+: nothing in a step depends on the values"):
            hosim.torch.capture(model, **named)
        return
    graph = graph_of(model, **named, optimizer=torch.optim.AdamW)
    if name != "whisper":  # the tracker fails there
        theirs = torch_steps.tracked_bytes((model, (), named, {"optimizer": torch.optim.AdamW}))
        assert int(live_bytes(graph).max()) == pytest.approx(theirs, rel=1e-3)
    weights = {tensor.name for tensor in graph.tensors if tensor.kind == "weight"}
    unplaced = [op.name for op in graph.ops if op.phase != "update" and "@" not in op.name]
    assert unplaced.pop(0) == "step/fwd/ones_like"  # where backward begins, which is called here
    assert {name.partition("/")[0] for name in unplaced} <= weights  # a gradient that is laid out anew


@pytest.mark.parametrize(
    "name", ["perceptron", "llama", "convolutions", pytest.param("checkpointed", marks=pytest.mark.slow)]
)
def test_arithmetic_is_that_of_pytorchs_counter(name):
    module, inputs, named, options = torch_steps.made(name)
    with hosim.torch.fake(), FlopCounterMode(display=False) as counter:
        torch_run.step_of(module, None, options.get("loss"))(*inputs, **named)
    graph = torch_steps.captured(name).graph
    attention = sum(op.flops for op in graph.ops if op.op_class == "attention")  # on the CPU it does not count this
    assert sum(op.flops for op in graph.ops) == counter.get_total_flops() + attention
    assert (attention > 0) == (name in ("llama", "checkpointed"))


def test_attention_counts_as_its_closed_form():
    graph = torch_steps.captured("llama").graph
    by_phase = Counter()
    for op in graph.ops:
        by_phase[op.phase] += op.flops if op.op_class == "attention" else 0
    forward = 4 * 512 * 512 * 256  # two matmuls of 512 x 512 for each head
    assert by_phase == {"forward": forward, "backward": forward * 5 // 2, "update": 0}


def test_kinds_follow_from_where_a_storage_comes():
    with hosim.torch.fake():
        model, x = small(), torch.randn(16, 32)
    graph = graph_of(model, x, loss=mean, optimizer=torch.optim.AdamW)
    weights = 4 * (32 * 64 + 64 + 64 + 1)
    found = sizes(graph)
    assert (found["weight"], found["gradient"], found["optimizer_state"]) == (weights, weights, 2 * weights)
    assert found["input"] == 4 * 16 * 32
    assert found["workspace"] == 2 * weights  # a root and a quotient of each parameter
    lasting = {"weight", "optimizer_state", "input"}
    assert all(tensor.persistent == (tensor.kind in lasting) for tensor in graph.tensors)
    assert {tensor.name for tensor in graph.tensors if tensor.kind == "gradient"} == {
        "0.weight.grad", "0.bias.grad", "2.weight.grad", "2.bias.grad",
    }  # fmt: skip
    assert {"0.weight", "0.weight.exp_avg", "0.weight.exp_avg_sq"} <= {tensor.name for tensor in graph.tensors}


def test_names_lead_to_the_users_code():
    graph = torch_steps.captured("convolutions").graph
    names = [op.name for op in graph.ops]
    line = line_of("self.norm2(self.conv2(made))", torch_steps.__file__)
    assert f"4.conv2/fwd/convolution@torch_steps.py:{line}" in names
    assert f"4.conv2/bwd/convolution_backward@torch_steps.py:{line}" in names  # backward names the line of forward
    assert any(name.startswith("4.conv2.weight/update/") for name in names)
    assert f"4.norm2/fwd/native_batch_norm@torch_steps.py:{line}.out" in [tensor.name for tensor in graph.tensors]


def test_what_runs_again_under_checkpointing_has_its_module_and_is_told():
    found = torch_steps.captured("checkpointed")
    again = [op for op in found.graph.ops if op.phase == "backward" and "native_layer_norm@" in op.name]
    assert len(again) == 4
    assert all(op.name.startswith("blocks.") and "/bwd/again/" in op.name for op in again)
    twice = sum(op.flops for op in found.graph.ops if "/again/" in op.name and op.op_class != "vector")
    once = sum(op.flops for op in found.graph.ops if op.phase != "update" and op.op_class != "vector") - twice
    assert 0 < twice < sum(found.graph.arithmetic.values()) == once  # of which MFU is a share
    assert sum("run forward again" in sentence for sentence in found.derived) == 1
    assert not any("run forward again" in sentence for sentence in torch_steps.captured("perceptron").derived)


def test_mixed_precision_computes_in_what_autocast_chooses():
    graph = torch_steps.captured("mixed_precision").graph
    assert {op.dtype for op in graph.ops if op.flops} == {"bf16"}
    assert {op.dtype for op in graph.ops if op.phase == "update"} == {"fp32"}
    assert any("_to_copy" in op.name for op in graph.ops)
    plain = torch_steps.captured("perceptron").graph
    assert {op.dtype for op in plain.ops if op.flops} == {"fp32"}
    assert {op.dtype for op in torch_steps.captured("convolutions").graph.ops if "convolution@" in op.name} == {"tf32"}


def test_updates_in_place_are_kept_and_views_are_folded():
    def step(x):
        made = model(x)
        made.add_(1.0)
        made.view(-1)[:4].zero_()
        made.t().sum().backward()

    with hosim.torch.fake():
        model, x = nn.Linear(8, 8), torch.randn(4, 8)
    found = hosim.torch.capture(step, x)
    ops = {op.name.partition("@")[0].rpartition("/")[2]: op for op in found.graph.ops if op.phase == "forward"}
    (made,) = ops["addmm"].writes
    assert ops["add_"].reads == ops["add_"].writes == (made,)
    assert ops["zero_"].reads == ops["zero_"].writes == (made,)  # a part of it
    assert ops["zero_"].write_bytes == 16
    assert ops["sum"].reads == (made,)
    assert not {"view", "t", "slice", "detach"} & set(ops)
    assert found.dropped["views"] > 0


def test_what_is_filled_whole_is_not_read_and_room_alone_is_no_op():
    def step(x):
        made = torch.empty(4, 8)
        made.copy_(x)
        made.copy_(x * 2)
        model(made).sum().backward()

    with hosim.torch.fake():
        model, x = nn.Linear(8, 8), torch.randn(4, 8)
    found = hosim.torch.capture(step, x)
    copies = [op for op in found.graph.ops if "/copy_@" in op.name]
    assert len(copies) == 2
    assert all(op.writes[0] not in op.reads for op in copies)
    assert found.dropped["allocations"] == 1


def test_an_embedding_reads_the_rows_that_it_takes():
    def step(ids):
        table(ids).sum().backward()

    with hosim.torch.fake():
        table, ids = nn.Embedding(1000, 8), torch.randint(0, 1000, (5,))
    op = graph_of(step, ids).ops[0]
    assert (op.read_bytes, op.write_bytes) == (5 * 8 * 4 + 5 * 8, 5 * 8 * 4)


def test_random_ops_do_not_run_again():
    with hosim.torch.fake():
        model, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), torch.randn(4, 8)
    graph = graph_of(model, x, loss=mean)
    assert [op.repeatable for op in graph.ops if "bernoulli" in op.name] == [False]
    assert all(op.repeatable for op in graph.ops if "bernoulli" not in op.name)


def test_without_an_optimizer_gradients_are_put_out_and_with_one_they_stay_until_the_end():
    with hosim.torch.fake():
        model, x = small(), torch.randn(16, 32)
    for optimizer in (None, torch.optim.SGD):
        graph = graph_of(model, x, loss=mean, optimizer=optimizer)
        outputs = [graph.tensors[t] for t in graph.outputs]
        assert sorted(str(one.kind) for one in outputs) == ["activation", *["gradient"] * 4]


def test_gradients_that_the_step_frees_are_no_outputs():
    def step(x):
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    with hosim.torch.fake():
        model, x = small(), torch.randn(16, 32)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    graph = graph_of(step, x)
    assert graph.outputs == ()
    assert sum("_fused_adamw_" in op.name for op in graph.ops) == 1


@pytest.mark.parametrize("foreach", [True, False])
def test_clipping_is_the_optimizers(foreach):
    def step(x):
        optimizer.zero_grad()
        model(x).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=foreach)
        optimizer.step()

    with hosim.torch.fake():
        model, x = small(), torch.randn(16, 32)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
    graph, line = graph_of(step, x), line_of("(model.parameters(), 1.0, foreach=foreach)", __file__)
    clips = [op for op in graph.ops if f"@test_torch.py:{line}" in op.name]
    assert {op.phase for op in clips} == {"update"}
    assert len(clips) >= 4
    assert all("/update/" in op.name for op in clips)
    assert clips[0].name.startswith("0.weight/update/")
    assert {str(graph.tensors[t].kind) for op in clips for t in op.writes} == {"workspace", "gradient"}
    before = graph.ops[: graph.ops.index(clips[0])]
    assert {op.phase for op in before} == {"forward", "backward"}


@pytest.mark.filterwarnings("ignore")  # of torch, as it imports its compiler, and of a compiled part beside hooks
@pytest.mark.parametrize(
    "what", some(["part", "module", "in place", "part in place", "step", "inner", "nothing", "disabled"], 3)
)
def test_what_is_compiled_is_captured_as_eager_and_told(what):
    def step(x):
        model(x).mean().backward()

    model, x = small(), torch.randn(16, 32)
    expected = graph_of(model, x, loss=mean)
    if what == "part":
        model[0] = torch.compile(model[0])
    for one in {"in place": [model], "part in place": [model[2]]}.get(what, ()):
        one.compile()
    if what in ("step", "inner", "disabled"):
        with hosim.torch.fake():
            model, x = small(), torch.randn(16, 32)
        double = torch.compile(lambda x: x * 2)
        steps = {
            "step": torch.compile(step),
            "inner": lambda x: step(double(x)),
            "disabled": torch._dynamo.disable(step),
        }
        given, options = steps[what], {}
    else:
        given, options = torch.compile(model) if what == "module" else model, {"loss": mean}
    found = hosim.torch.capture(given, x, **options)
    assert [op.flops for op in found.graph.ops if op.flops] == [op.flops for op in expected.ops if op.flops]
    said = [line for line in found.derived if "torch.compile" in line]
    assert said == ["Functions under torch.compile are captured as eager: ops that it would fuse stand apart."] * (
        what not in ("nothing", "disabled")
    )


def test_gradients_accumulate_in_place():
    def step(x):
        optimizer.zero_grad()
        for part in x.chunk(4):
            model(part).mean().backward()
        optimizer.step()

    with hosim.torch.fake():
        model, x = small(), torch.randn(16, 32)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
    graph = graph_of(step, x)
    (grad,) = (t for t, tensor in enumerate(graph.tensors) if tensor.name == "0.weight.grad")
    assert len([op for op in graph.ops if grad in op.writes and grad in op.reads]) == 3
    assert sum("_foreach_add_" in op.name for op in graph.ops) == 1


def test_gradients_that_are_never_freed_persist():
    def step(x):
        model(x).mean().backward()

    with hosim.torch.fake():
        model, x = small(), torch.randn(16, 32)
    graph = graph_of(step, x)
    assert all(tensor.persistent for tensor in graph.tensors if tensor.kind == "gradient")
    assert graph.outputs == ()


def test_two_models_and_two_optimizers_have_names_of_their_own():
    def step(x):
        judged.zero_grad()
        made = maker(x)
        judge(made.detach()).mean().backward()
        judged.step()
        making.zero_grad()
        judge(made).mean().backward()
        making.step()

    with hosim.torch.fake():
        maker, judge, x = small(), nn.Sequential(nn.Linear(1, 8), nn.Linear(8, 1)), torch.randn(16, 32)
        making, judged = (torch.optim.Adam(one.parameters()) for one in (maker, judge))
    names = {tensor.name for tensor in graph_of(step, x).tensors if tensor.persistent}
    assert {"0.weight.exp_avg", "Sequential1.0.weight.exp_avg"} <= names


def test_frozen_weights_have_no_gradient():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.down, self.up = nn.Linear(32, 32), nn.Linear(32, 4, bias=False), nn.Linear(4, 32)
            self.base.requires_grad_(False)

        def forward(self, x):
            return (self.base(x) + self.up(self.down(x))).pow(2).mean()

    with hosim.torch.fake():
        model, x = Adapted(), torch.randn(16, 32)
    graph = graph_of(model, x, optimizer=torch.optim.AdamW)
    assert {t.name for t in graph.tensors if t.kind == "gradient"} == {
        "down.weight.grad",
        "up.weight.grad",
        "up.bias.grad",
    }
    assert {t.name for t in graph.tensors if t.name.startswith("base")} >= {"base.weight", "base.bias"}


def test_a_function_of_the_users_own_backward_is_traced():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(context, grad):
            return 2 * context.saved_tensors[0] * grad

    def step(x):
        Square.apply(model(x)).mean().backward()

    with hosim.torch.fake():
        model, x = nn.Linear(8, 1), torch.randn(4, 8)
    names = [op.name for op in graph_of(step, x).ops]
    assert f"step/fwd/mul@test_torch.py:{line_of('return x * x', __file__)}" in names
    back = [name for name in names if "/bwd/mul@" in name]
    assert len(back) == 2
    assert back[0].startswith(f"step/bwd/mul@test_torch.py:{line_of('return x * x', __file__)}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_is_cast_after_it_was_made(dtype):
    with hosim.torch.fake():
        model, x = small().to(dtype), torch.randn(16, 32, dtype=dtype)
    graph = graph_of(model, x, loss=mean, optimizer=torch.optim.AdamW)
    assert sizes(graph)["weight"] == 2 * (32 * 64 + 64 + 64 + 1)
    assert {op.dtype for op in graph.ops if op.flops} == {"bf16" if dtype is torch.bfloat16 else "fp16"}


def test_a_module_with_memory_and_one_on_meta_are_copied_and_stay_as_they_are():
    model, x = small(), torch.randn(16, 32)
    expected = graph_of(model, x, loss=mean, optimizer=torch.optim.AdamW)
    assert type(model[0].weight) is nn.Parameter
    assert model[0].weight.grad is None
    with torch.device("meta"):
        meta = small()
    assert graph_of(meta, x, loss=mean, optimizer=torch.optim.AdamW) == expected
    with hosim.torch.fake():
        made = small()
    assert graph_of(made, x, loss=mean, optimizer=torch.optim.AdamW) == expected


def test_an_optimizer_with_states_is_copied_with_its_module():
    model, x = small(), torch.randn(16, 32)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(x).mean().backward()
    optimizer.step()
    graph = graph_of(model, x, loss=mean, optimizer=optimizer)
    assert sizes(graph)["optimizer_state"] == sizes(graph)["weight"]
    held = optimizer.state[model[0].weight]["momentum_buffer"]
    assert type(held) is torch.Tensor


def test_tied_weights_are_one_tensor():
    with hosim.torch.fake():
        model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(4, 8)
        model[1].weight = model[0].weight
    graph = graph_of(model, x, loss=mean)
    assert sizes(graph)["weight"] == 4 * (64 + 8 + 8)


def test_all_is_freed_after_its_last_use_if_asked():
    module, inputs, named, options = torch_steps.made("llama")
    as_pytorch = torch_steps.captured("llama")
    early = hosim.torch.capture(module, *inputs, **named, **options, free_early=True)
    assert (as_pytorch.workload.outputs, early.workload.outputs) == ("kept", "freed")
    assert not any("has not freed" in said for said in early.derived)
    assert early.derived[3:] == as_pytorch.derived[4:]
    assert any(op.workspace_bytes for op in as_pytorch.graph.ops)
    assert not any(op.workspace_bytes for op in early.graph.ops)
    assert [op.name for op in early.graph.ops] == [op.name for op in as_pytorch.graph.ops]
    assert (live_bytes(early.graph) <= live_bytes(as_pytorch.graph)).all()


@pytest.mark.slow
def test_two_captures_are_the_same():
    first, second = (capture("llama") for capture in (torch_steps.captured, torch_steps.captured.__wrapped__))
    assert first.graph == second.graph
    assert (first.kept, first.derived, first.dropped) == (second.kept, second.derived, second.dropped)


def test_the_graph_runs_two_steps_under_a_policy(tmp_path):
    torch_steps.captured("perceptron").write(tmp_path / "mine.yaml")
    row = hosim.run(hardware="h100_sxm", workload=tmp_path / "mine.yaml", policies=["resident"])["resident"]
    assert row.status == "ok"


def test_recurrent_layers_count_their_matmuls():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(32, 16, batch_first=True)

        def forward(self, x):
            return self.layer(x)[0].mean()

    with hosim.torch.fake():
        model, x = Recurrent(), torch.randn(4, 10, 32)
    forward = [op.flops for op in graph_of(model, x).ops if op.phase == "forward"]
    assert sum(forward) == 2 * 4 * 10 * (32 + 16) * 4 * 16


def test_nothing_is_used_before_it_is_written_or_after_it_is_dead():
    graph = torch_steps.captured("checkpointed_reentrant").graph
    found = Lifetimes(graph)
    born = np.array([ops[0] if ops else -1 for ops in found.writes])
    for t, tensor in enumerate(graph.tensors):
        assert tensor.persistent or born[t] == found.first_use[t]


@pytest.mark.slow
def test_a_model_of_8b_at_16384_tokens_is_captured_without_its_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # [KiB]: other tests in this process count, too
    model, named = torch_steps.llama_8b()
    graph = graph_of(model, **named)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert sizes(graph)["weight"] == pytest.approx(2 * 8_030_261_248, rel=1e-6)  # and the frequencies of RoPE
    assert sizes(graph)["optimizer_state"] == 4 * 8_030_261_248
    matmuls = sum(op.flops for op in graph.ops if op.op_class == "matmul")
    assert grown < 1e6  # of 203 GB
    assert matmuls == 6 * 16384 * (8_030_261_248 - 128256 * 4096 - 65 * 4096)  # without the embedding and the norms


@pytest.mark.parametrize(
    ("inputs", "named", "handled"),
    [
        ((torch.zeros(3, 5, dtype=torch.long),), {}, {"batch": 3, "sequence": 5}),
        ((torch.zeros(3, 5), torch.zeros(2, 7, dtype=torch.long)), {}, {"batch": 3}),
        ((torch.zeros(3, 5),), {"input_ids": torch.zeros(2, 7, dtype=torch.int32)}, {"batch": 2, "sequence": 7}),
        ((torch.zeros(4, 3, 8, 8),), {}, {"batch": 4}),
        ((torch.zeros(9),), {}, {}),
        ((torch.zeros(0, 9),), {}, {}),
        ((), {}, {}),
    ],
)
def test_what_a_step_handles_is_the_shape_of_its_first_input(inputs, named, handled):
    assert torch_recorder.batch_of(inputs, named) == handled


def test_a_captured_step_tells_its_tokens_samples_and_parameters():
    with hosim.torch.fake():
        model, ids = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 4)), torch.zeros(3, 5, dtype=torch.long)
        model[1].weight.requires_grad_(False)
    found = hosim.torch.capture(model, ids, loss=mean)
    assert (found.workload.samples, found.workload.tokens) == (3, 15)
    assert found.workload.assumed.keys() == {"batch", "sequence"}
    assert found.kept["parameters"] == str(16 * 8 + 8 * 4 + 4)
    assert any("batch 3 and sequence 5" in told for told in found.derived)
    assert "token" in found.card["arithmetic"]


class Experts(nn.Module):
    """Experts of which each token takes two, by a kernel for groups of rows, or by a copy of each choice's matrix."""

    def __init__(self, kernel, number=64):
        super().__init__()
        self.router, self.kernel, self.number = nn.Linear(32, number), kernel, number
        self.shift = nn.Parameter(torch.zeros(32))
        self.matrices = nn.Parameter(torch.empty(number, 32, 16).normal_())

    def forward(self, x):
        x = x + self.shift
        weights, ids = self.router(x).topk(2)
        if self.kernel == "copies":
            made = x.repeat_interleave(2, 0).unsqueeze(1) @ self.matrices[ids.flatten()]
        else:
            order, counts = ids.flatten().argsort(), torch.histc(ids.flatten().float(), self.number, 0, self.number - 1)
            made = torch._grouped_mm(x[order // 2], self.matrices, counts.cumsum(0, dtype=torch.int32))[order.argsort()]
        return (made.reshape(len(x), 2, 16) * weights.unsqueeze(-1)).float().mean()


@pytest.mark.parametrize("kernel", ["groups", "copies"])
@pytest.mark.parametrize("tokens", [1, 6, 4096])
def test_experts_that_no_token_is_expected_to_choose_are_not_read(kernel, tokens):
    with hosim.torch.fake():
        model, x = Experts(kernel).to(torch.bfloat16), torch.randn(tokens, 32, dtype=torch.bfloat16)
    graph = graph_of(model, x)
    taken = chosen_number(64, tokens, 2) * 32 * 16 * 2
    assert (taken < 64 * 32 * 16 * 2) == (tokens < 4096)
    if kernel == "copies":
        (op,) = (op for op in graph.ops if "/fwd/index@" in op.name)
        assert (op.read_bytes, op.write_bytes) == (taken + 2 * tokens * 8, 2 * tokens * 32 * 16 * 2)
        return
    forward, *back = (op for op in graph.ops if "_grouped_mm@" in op.name)
    rows, made = 2 * tokens * 32 * 2, 2 * tokens * 16 * 2
    assert (forward.read_bytes, forward.write_bytes) == (rows + taken + 64 * 4, made)
    assert {op.read_bytes for op in back} == {made + taken + 64 * 4, rows + made + 64 * 4}
    assert 64 * 32 * 16 * 2 in {op.write_bytes for op in back}  # the gradient, of all


@pytest.mark.parametrize("kernel", ["groups", "copies"])
def test_experts_that_a_step_took_are_read_where_it_runs_for_real(kernel):
    model, x = Experts(kernel).to(torch.bfloat16), torch.randn(1, 32, dtype=torch.bfloat16).expand(40, 32)
    with torch_run.ModuleWatch(has_memory=True) as watch:
        model(x)
        with torch_recorder.OpRecorder(watch, ((x,), {})) as record:
            model(x)  # forty times the same
    (op,) = (call for call in record.calls if "matrices" in {storage.name for storage in call.reads})
    assert op.more["read_bytes"] < 2 * 32 * 16 * 2 + 3 * 80 * 32 * 2


def test_entries_that_change_in_place_are_written_and_no_others():
    def step(x):
        table.index_copy_(0, ids[:2], x)
        table.index_add_(1, ids[:1], x.new_ones(100, 1))
        table[ids, ids] = 0.0
        table.scatter_(0, ids[None, :8], x[:1])

    with hosim.torch.fake():
        table, ids, x = torch.zeros(100, 8), torch.arange(8), torch.randn(2, 8)
    ops = {op.name.partition("@")[0].rpartition("/")[2]: op for op in graph_of(step, x).ops}
    changed = {name: op.write_bytes for name, op in ops.items() if name.endswith("_")}
    assert changed == {"index_copy_": 2 * 8 * 4, "index_add_": 100 * 4, "index_put_": 8 * 4, "scatter_": 8 * 4}
    assert ops["index_copy_"].read_bytes == 2 * 8 * 4 + 2 * 8 * 4 + 2 * 8


def test_a_layer_of_an_encoder_in_one_op_has_its_arithmetic():
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    graph = hosim.torch.capture(layer, torch.zeros(2, 16, 64), phase="prefill").files[".jsonl"]
    tokens, matrices, pairs = 2 * 16, 4 * 64 * 64 + 2 * 64 * 128, 2 * 16 * 16
    assert [op.flops for op in graph.ops if op.flops] == [2 * tokens * matrices + 4 * pairs * 64]
