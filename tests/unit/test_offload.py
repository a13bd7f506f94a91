"""A step of PyTorch that runs within a budget under a plan gives the same numbers to the last bit."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
import weakref
from random import Random

import pytest

torch = pytest.importorskip("torch")

import hosim.torch  # noqa: E402 - it needs torch
from budgeted import (  # noqa: E402
    KINDS,
    PACE,
    Attention,
    Autocast,
    Checkpointed,
    Deep,
    Experts,
    InPlace,
    Normalised,
    Recurrent,
    Tied,
    budget_of,
    made,
    needed,
    offloaded,
    plain,
    run,
    same,
    state,
)

from simulator.errors import ConfigError, HosimError  # noqa: E402
from simulator.execute.calls import into, turns_of  # noqa: E402
from simulator.execute.held import ExecutionError  # noqa: E402
from simulator.execute.measured import measured_row  # noqa: E402
from simulator.execute.mode import look_at  # noqa: E402
from simulator.execute.on_demand import RecordedCall  # noqa: E402
from simulator.execute.planning import typical  # noqa: E402
from simulator.execute.storages import StepMemory  # noqa: E402
from simulator.execute.tiers import FileTier  # noqa: E402
from simulator.graph_builder import GraphBuilder  # noqa: E402
from simulator.importers.recordings import Storage  # noqa: E402
from simulator.importers.torch_run import step_of  # noqa: E402
from simulator.plan import COMPUTE, COPY  # noqa: E402

MIXED = {"policy": "static", "options": {"recompute": True}}
ON_DEMAND = {"policy": "reactive", "label": "on demand", "options": {"look_ahead": 0, "evict": "lru"}}
AT_ONCE = {"policy": "reactive", "label": "at once", "options": {"synchronous": True}}
ROWS = [("static", Attention), (ON_DEMAND, Experts)]
SLOW = [("reactive", Attention), (AT_ONCE, Recurrent), ("lookahead", InPlace), ("offload_saved", Tied)]
SLOW += [("static", Deep), ("reactive", Deep)]
SLOW += [(policy, kind) for policy in ("static", "reactive", ON_DEMAND) for kind in KINDS]
SLOW = [row for n, row in enumerate(SLOW) if row not in ROWS + SLOW[:n]]
SLOW = [(*row, 8) for row in SLOW] + [(*row, tenths) for row in ROWS + SLOW[-len(KINDS) * 3 :] for tenths in (9, 10)]


@pytest.mark.parametrize(
    ("policy", "kind", "tenths"),
    [*((*row, 8) for row in ROWS), *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW)],
)
def test_a_step_under_a_plan_gives_the_same_numbers_within_its_budget(policy, kind, tenths):
    budget = budget_of(kind, tenths)
    with offloaded(kind, policy, budget=budget) as (step, x, now):
        losses, expected = run(step, x), plain(kind)
        assert same(expected[0], losses)
        assert same(expected[1], now())
        row = policy if isinstance(policy, str) else policy["label"]
        assert [one.plan for one in step.steps][-2:] == [row, row]
        assert all(one.peak_bytes <= budget for one in step.steps[1:])
        assert step.steps[-1].out_bytes > 0 or tenths > 8


@pytest.mark.parametrize(
    ("policy", "pace"),
    [
        pytest.param("static", PACE, marks=pytest.mark.slow),
        pytest.param("reactive", PACE, marks=pytest.mark.slow),
        (MIXED, ("50 MB/s", "50 MB/s")),
    ],
)
def test_whenever_copies_come_the_numbers_are_the_same(policy, pace, monkeypatch):
    """Copies that take random times, each way: an op that ran too early would read other bytes, or none."""
    random, copy = Random(7), FileTier._copy

    def late(tier, *args):
        time.sleep(random.choice((0, 0, 0.0005, 0.004)))
        copy(tier, *args)
        time.sleep(random.choice((0, 0.001)))

    monkeypatch.setattr(FileTier, "_copy", late)
    with offloaded(policy=policy, pace=pace, budget=budget_of(Attention, 6)) as (step, x, now):
        assert same(plain(Attention, 8)[0], run(step, x, 8))
        assert same(plain(Attention, 8)[1], now())


AGAIN = [(MIXED, Attention, 6)]
OFTEN = [("recompute", Normalised, 9)]
OFTEN += [
    (policy, kind, 8)
    for policy in ("recompute", MIXED)
    for kind in KINDS
    if kind not in (Checkpointed, Recurrent, Normalised)
]
OFTEN += [
    ("recompute", InPlace, 7),
    (MIXED, Recurrent, 6),
    (MIXED, Normalised, 8),
    (MIXED, Autocast, 6),
    ("recompute", Attention, 7),
    ("recompute", Tied, 7),
]
AGAIN = [*AGAIN, *(pytest.param(*row, marks=pytest.mark.slow) for row in OFTEN if row not in AGAIN)]
SLOW_PACE = {"pace": ("5 MB/s", "5 MB/s")}  # so that to run an op again pays, however busy the machine


@pytest.mark.parametrize(("policy", "kind", "tenths"), AGAIN)
def test_ops_that_run_again_make_the_same_numbers_in_no_other_room(policy, kind, tenths):
    budget = budget_of(kind, tenths)
    with offloaded(kind, policy, budget=budget, **SLOW_PACE) as (step, x, now):
        step.keep_traces()
        losses, expected = run(step, x, 7), plain(kind, 7)
        assert same(expected[0], losses)
        assert same(expected[1], now())
        row, last = step.predicted, step.steps[-1]
        measured = measured_row(row, last.trace, 1)
        assert row.summary["recompute_ns"] > 0 < measured.summary["recompute_ns"]
        assert all(one.peak_bytes <= budget for one in step.steps[1:])
        assert policy != "recompute" or last.peak_bytes == row.summary["peak_ram_bytes"] + step.beside_bytes


@pytest.mark.slow
def test_statistics_that_a_step_updates_are_those_without_a_plan(monkeypatch):
    """PyTorch does not say that batch norm writes them; what lies below from before is old, and it may run once."""
    copies = set()
    move = StepMemory._move
    monkeypatch.setattr(StepMemory, "_move", lambda self, way, *more: (copies.add(way), move(self, way, *more)))
    model, optimizer, x = made(Normalised)
    run(step_of(model, optimizer, None), x, 7)
    expected = [buffer.clone() for buffer in model.buffers()]
    for policy, tenths in (("recompute", 9), ("static", 6)):
        model, optimizer, x = made(Normalised)
        options = {"budget": budget_of(Normalised, tenths), "policy": policy, "strict": True, "pace": PACE}
        with hosim.torch.offload(model, optimizer=optimizer, **options) as step:
            run(step, x, 7)
            assert same(expected, model.buffers())
            writes = [op for op in step.recorded.graph.ops if "/native_batch_norm@" in op.name]
            assert all(len(op.writes) == 5 for op in writes)
    assert copies


def test_what_can_run_again_writes_where_it_is_told():
    aten = torch.ops.aten
    again = (
        aten.addmm.default,
        aten.gelu.default,
        aten.index.Tensor,
        aten.max.dim,
        aten.copy_.default,
        aten.relu.default,
    )
    once = (aten.native_layer_norm.default, aten.zeros_like.default, aten._local_scalar_dense.default, aten.mul.Scalar)
    assert (all(map(into, again)), any(map(into, once))) == (True, False)


@pytest.mark.parametrize("is_error", [True, False])
def test_what_was_given_up_is_made_again_if_its_plan_ends_early(is_error):
    """Whoever still holds it after an error, or goes on with other calls, has its numbers."""
    boom, shown, expected = [False], [], []

    def step(x):
        with torch.no_grad():
            a = x * 2
            b = a.tanh()
            shown[:] = [a, b]
            c = x * 3
            total = (c * c + c * 3).sum()
            if boom[0]:
                failing(BoomError)() if is_error else total.add_(1)
            del c
            d = b * a
            return d.sum() + total

    x = torch.randn(100_000)
    expected = [step(x).clone() + 1, *(value.clone() for value in shown)]
    with hosim.torch.offload(step, budget=2_050_000, policy="recompute", pace=PACE) as offloaded:
        run(offloaded, x, 6)
        assert offloaded.predicted.summary["recompute_ns"] > 0
        boom[0] = True
        with pytest.raises(BoomError) if is_error else pytest.warns(UserWarning, match="without a plan"):
            assert torch.allclose(offloaded(x), expected[0])
        assert same(expected[1:], shown)


@pytest.fixture
def memory(tmp_path):
    """Room for 1,000 B."""
    memory = StepMemory(1000, FileTier(tmp_path))
    yield memory
    memory.close()


def leave(memory, tensor, name="x"):
    """Follow a tensor, and have it leave."""
    block = memory.block(tensor.untyped_storage(), name)
    memory.copy_out(block)
    memory.free(block)
    memory.wait(block, writes=True)
    return block


def test_a_view_is_made_of_what_is_away(memory):
    """Nothing is fetched for it: it takes no room."""
    whole = torch.arange(200.0)
    x, aten = whole[40:140].view(10, 10), torch.ops.aten
    views = [
        (aten.slice.Tensor, x, 0, 1, 7, 2), (aten.t.default, x), (aten.select.int, x, 1, 3),
        (aten.split.Tensor, x, 4, 1), (aten.unsqueeze.default, x, 1), (aten.permute.default, x, (1, 0)),
        (aten.diagonal.default, x, -1), (aten.as_strided.default, x, (3, 2), (7, 1), 5), (aten.detach.default, x),
        (aten.view.default, x, (4, 25)), (aten.expand.default, x.view(10, 1, 10), (10, 3, 10)),
        (aten.unfold.default, x, 1, 4, 2), (aten.view.dtype, x, torch.int32), (aten.view.dtype, x, torch.float16),
    ]  # fmt: skip
    expected = [[value.clone() for value in listed(func(*given))] for func, *given in views]
    leave(memory, x)
    assert (memory.used_bytes, x.untyped_storage().nbytes()) == (0, 0)
    with pytest.raises(RuntimeError, match="out of bounds"):
        x[1:3]
    made = [listed(look_at(func, given, {}, memory)) for func, *given in views]
    assert look_at(aten.empty_like.default, (x,), {}, memory).shape == x.shape
    assert memory.used_bytes == 0
    memory.settle()
    for (func, *given), shown, values in zip(views, made, expected, strict=True):
        assert [view.stride() for view in shown] == [view.stride() for view in listed(func(*given))], func
        assert same(values, shown), func
    assert memory.moved_bytes == {"copy out": 800, "copy in": 800}


def test_a_view_of_what_is_away_shows_it_conjugated_or_negated_as_it_should(memory):
    z, aten = torch.randn(10, dtype=torch.complex64), torch.ops.aten
    views = [(aten._conj.default, z), (aten._neg_view.default, z), (aten._conj.default, z.conj()),
             (aten.view_as_real.default, z), (aten.slice.Tensor, z.conj(), 0, 2, 8)]  # fmt: skip
    views += [(aten.slice.Tensor, z.conj().imag, 0, 1, 7), (aten.select.int, torch.view_as_real(z), 1, 1)]
    expected = [func(*given).clone() for func, *given in views]
    leave(memory, z)
    made = [look_at(func, given, {}, memory) for func, *given in views]
    memory.settle()
    assert same(expected, [one.resolve_conj().resolve_neg() for one in made])
    for one, (func, *given) in zip(made, views, strict=True):
        assert (one.is_conj(), one.is_neg()) == (func(*given).is_conj(), func(*given).is_neg()), func


def test_a_split_that_does_not_say_so_is_a_view_too(memory):
    x, aten = torch.arange(100.0).view(10, 10), torch.ops.aten
    views = [(aten.unsafe_split.Tensor, x, 4, 1), (aten.unsafe_split_with_sizes.default, x, [3, 7])]
    expected = [[part.clone() for part in func(*given)] for func, *given in views]
    leave(memory, x)
    made = [look_at(func, given, {}, memory) for func, *given in views]
    memory.settle()
    assert all(map(same, expected, made))


def listed(made):
    return [*made] if isinstance(made, list | tuple) else [made]


def test_what_a_failed_copy_should_have_brought_is_never_read(memory, monkeypatch):
    """Even if nobody waited for it when it failed: whoever uses it next learns why; and so does a later step."""
    x = torch.arange(100.0)
    block = leave(memory, x)
    monkeypatch.setattr(FileTier, "_read", failing(OSError(5, "Input/output error")))
    memory.copy_in(block)
    while memory._failure is None:
        time.sleep(0.001)
    with pytest.raises(ConfigError, match="Input/output error"):
        memory.wait(block)
    for ends in (memory.settle, memory.begin):
        with pytest.raises(ExecutionError, match="1 tensor lost, x first"):
            ends()
    monkeypatch.undo()
    memory.begin()
    assert torch.equal(x, torch.arange(100.0))


def test_an_error_of_a_copy_is_not_held(memory, monkeypatch):
    """It would keep what the frames of the step hold."""
    monkeypatch.setattr(FileTier, "_write", failing(OSError(28, "No space left on device")))
    x = torch.ones(100)
    memory.copy_out(memory.block(x.untyped_storage()))
    with pytest.raises(ConfigError) as caught:
        memory.settle()
    error = weakref.ref(caught.value)
    del caught
    gc.collect()
    assert error() is None


def test_room_comes_when_what_pytorch_has_freed_has_been_copied(memory, monkeypatch):
    """The copy alone still holds it: who waits for its room is not told that nothing frees some."""
    ours, leave_lock = threading.get_ident(), threading.Condition.__exit__

    def late(condition, *raised):
        leave_lock(condition, *raised)
        time.sleep(0 if threading.get_ident() == ours else 0.05)

    monkeypatch.setattr(threading.Condition, "__exit__", late)
    x = torch.ones(200)
    memory.copy_out(memory.block(x.untyped_storage()))
    del x
    memory.take(900, "y")
    memory.made()
    assert memory.used_bytes == 0


def test_what_is_given_up_below_may_be_written_there_again(memory, monkeypatch):
    """All of it is issued while the first copy is under way."""
    copy = FileTier._copy
    monkeypatch.setattr(FileTier, "_copy", lambda *args: (time.sleep(0.02), copy(*args)))
    x = torch.arange(100.0)
    block = memory.block(x.untyped_storage(), "x")
    for act in (memory.copy_out, memory.free, memory.copy_in, memory.forget_below, memory.copy_out, memory.free):
        act(block)
    memory.settle()
    assert torch.equal(x, torch.arange(100.0))
    assert memory.moved_bytes == {"copy out": 800, "copy in": 800}


def test_what_is_home_has_nothing_below(memory):
    """A step without a plan, or whose plan does not move it, may write it: a copy from before would be stale."""
    x = torch.ones(100)
    block = leave(memory, x)
    memory.settle()
    assert (block.below, block.is_kept, memory.moved) == (None, False, {})


def test_a_call_that_is_no_op_but_writes_waits_as_an_op_does():
    """As an optimizer's count of steps: only a call that looks at no bytes is made without them."""
    builder = GraphBuilder("g", "g")
    for name in "ab":
        builder.tensor(name, 400, "weight", persistent=True)
    builder.op("read", ["a"], ["b"], "compute")
    builder.op("again", ["a"], ["b"], "compute")
    count, other = Storage(400, name="a"), Storage(400, name="b")
    aten = torch.ops.aten
    calls = [
        RecordedCall(aten.exp.default, 0, (count,), (other,)),
        RecordedCall(aten.exp.default, 1, (count,), (other,)),
        RecordedCall(aten.add_.Tensor, None, (count, other), (count,)),
        RecordedCall(aten.t.default, None, (count,), (count,)),
    ]
    codes = [(COMPUTE, 0, 0, 0), (COPY, 0, 1, 2), (COMPUTE, 1, 0, 0)]
    turns = turns_of(builder.build([]), calls, {count: 0, other: 1}, codes)
    assert [(turn.moved, turn.seen) for turn in turns[:4]] == [
        ([], []),
        ([(0, False)], []),
        ([(0, True)], []),
        ([], [0]),
    ]


def test_a_step_that_differs_goes_on_without_its_plan():
    with offloaded(strict=False) as (step, x, now):
        scale = [1.0]

        def other(value):
            return inner(value if scale[0] == 1 else value * scale[0])

        inner, step._step = step._step, other
        run(step, x, 4)
        scale[0] = 2.0
        with pytest.warns(UserWarning, match=r"call 1, before op .*found aten.mul.Tensor.*without a plan"):
            loss = step(x)
        assert torch.isfinite(loss)
        assert all(value.untyped_storage().nbytes() for value in now())
        scale[0] = 1.0
        run(step, x, 3)
        assert step.steps[-1].plan == "static"


def without_gradients(use):
    """A step whose early tensors must leave for a while, and a switch that `use` is called with at the end."""
    turned = [False]

    def step(x):
        with torch.no_grad():
            a, b = x + 1, x + 2
            c = x * 3
            d = c * c
            e = d * c
            total = (e * d + e + d + c).sum()
            del c, d, e
            return use(a, b, total, turned[0])

    return step, turned


def test_an_op_that_uses_another_tensor_than_recorded_never_reads_what_is_away():
    """The calls are the same, in the same order: only the tensors differ."""

    def use(a, b, total, turned):
        first, second = (b, a) if turned else (a, b)
        return first.exp().sum() * 2 + second.exp().sum() + total

    step, turned = without_gradients(use)
    x = torch.randn(100_000)
    expected = []
    for turned[0] in (False, True):
        expected.append(step(x))
    turned[0] = False
    with hosim.torch.offload(step, budget=2_450_000, pace=("50 MB/s", "50 MB/s")) as offloaded:
        assert same(expected[:1] * 4, [offloaded(x) for _ in range(4)])
        assert offloaded.steps[-1].out_bytes > 0
        turned[0] = True
        with pytest.warns(UserWarning, match=r"uses the tensors that it was recorded with, found step/fwd/add"):
            assert torch.equal(expected[1], offloaded(x))


def test_what_is_read_by_a_call_that_makes_no_tensor_is_there():
    """A number that is read is an op of the graph, so that the plan brings in what it is read from."""
    step, _ = without_gradients(lambda a, b, total, _: (total + b.sum(), a[5].item(), torch.equal(a, b)))
    x = torch.randn(100_000)
    expected = step(x)
    with hosim.torch.offload(step, budget=2_450_000, pace=PACE, strict=True) as offloaded:
        for _ in range(5):
            total, number, is_same = offloaded(x)
            assert torch.equal(total, expected[0])
            assert (number, is_same) == expected[1:]
        assert offloaded.steps[-1].plan == "static"
        assert offloaded.steps[-1].out_bytes > 0


def test_a_tensor_elsewhere_than_on_the_cpu_is_refused_by_name():
    refused = pytest.raises(ExecutionError, match="all tensors are on the CPU, found meta")
    with hosim.torch.offload(lambda x: x + 1, budget="1 MB", pace=PACE) as offloaded, refused:
        offloaded(torch.empty(8, device="meta"))


@pytest.mark.slow
def test_if_asked_a_step_that_differs_is_an_error():
    with offloaded() as (step, x, _):
        run(step, x, 4)
        inner, step._step = step._step, lambda value: inner(value + 1)
        with pytest.raises(ExecutionError, match=r"here aten.*found aten.add.Tensor"):
            step(x)


@pytest.mark.slow
def test_inputs_of_other_shapes_have_a_plan_of_their_own():
    with offloaded() as (step, x, _):
        for value in (x, x[:4], x, x[:4], x, x[:4], x, x[:4], x, x[:4]):
            step(value)
        assert [one.plan for one in step.steps][-2:] == ["static", "static"]
        assert step.steps[-1].peak_bytes < step.steps[-2].peak_bytes


class BoomError(Exception):
    """What a model raises."""


@pytest.mark.parametrize("error", [BoomError, pytest.param(KeyboardInterrupt, marks=pytest.mark.slow)])
def test_an_error_in_the_midst_of_a_step_leaves_all_storages_there(error):
    with offloaded() as (step, x, _):
        run(step, x, 4)
        inner = step._step
        layers = inner.__closure__
        model = next(cell.cell_contents for cell in layers if isinstance(cell.cell_contents, torch.nn.Module))

        hook = model.layers[1].register_full_backward_hook(failing(error))
        with pytest.raises(error):
            step(x)
        hook.remove()
        assert all(p.untyped_storage().nbytes() for p in model.parameters())
        run(step, x, 2)
        assert step.steps[-1].plan == "static"


def failing(error):
    def fail(*_):
        raise error

    return fail


def test_a_disk_that_fails_is_an_error_and_nothing_is_lost(monkeypatch):
    with offloaded() as (step, x, now):
        run(step, x, 4)
        monkeypatch.setattr(FileTier, "_write", failing(OSError(28, "No space left on device")))
        with pytest.raises(ConfigError, match="No space left on device"):
            step(x)
        monkeypatch.undo()
        assert all(value.untyped_storage().nbytes() for value in now())
        assert all(map(torch.isfinite, (value.abs().max() for value in now())))
        run(step, x, 2)


def test_the_thread_of_a_copy_that_failed_holds_nothing_of_its_step(tmp_path, monkeypatch):
    """A traceback that it kept would take the next step's room."""
    memory = StepMemory(1000, FileTier(tmp_path))
    try:
        x = torch.arange(100.0)
        monkeypatch.setattr(FileTier, "_write", lambda *_: time.sleep(0.05) or 1 // 0)
        memory.copy_out(memory.block(x.untyped_storage(), "x"))
        with pytest.raises(ZeroDivisionError):
            memory.settle()
        del x
        gc.collect()
        assert memory.used_bytes == 0
        monkeypatch.undo()
        y = torch.arange(50.0)
        memory.copy_out(memory.block(y.untyped_storage(), "y"))
        memory.settle()
        assert memory.moved_bytes["copy out"] == 200
    finally:
        memory.close()


@pytest.mark.slow
def test_compiled_parts_run_as_they_are_written():
    model, optimizer, x = made(InPlace)
    model.layers[2].compile(backend="eager")
    with hosim.torch.offload(model, optimizer=optimizer, budget=budget_of(InPlace), pace=PACE, strict=True) as step:
        with pytest.warns(UserWarning, match="Compiled parts of Layers run as they are written"):
            losses = run(step, x)
        assert same(plain(InPlace)[0], losses)
        assert step.steps[-1].plan == "static"


@pytest.mark.slow
def test_what_is_lost_is_named(monkeypatch):
    with offloaded() as (step, x, _):
        run(step, x, 4)
        monkeypatch.setattr(FileTier, "_read", failing(OSError(5, "Input/output error")))
        with pytest.raises(
            ExecutionError, match=r"tensors in the lower tier come back, found \d+ tensors lost, layers.0.*first"
        ):
            step(x)


def test_one_step_runs_at_a_time_in_the_process_that_made_it_until_it_is_closed(monkeypatch):
    with offloaded() as (step, x, _):
        inner = step._step
        step._step = step
        with pytest.raises(ConfigError, match="one offloaded step runs at a time"):
            step(x)
        step._step = inner
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(ConfigError, match="in the process that made it"):
            step(x)
        monkeypatch.undo()
        step(x)
    with pytest.raises(ConfigError, match="found a closed one"):
        step(x)


def test_nothing_is_left(tmp_path):
    before = threading.active_count()
    with offloaded(folder=tmp_path) as (step, x, _):
        run(step, x, 5)
        assert threading.active_count() == before + 2
        assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": "6 GB/s"}, "6 GB/s"),
        ({"budget": 1000}, "each op's tensors fit the budget of 1.00 kB"),
        ({"folder": "/nowhere"}, "No such file"),
        ({"hardware": "none.yaml"}, "none.yaml: a hardware document is a file, found no such file"),
        ({"hardware": "h100_sxm"}, "computes in ram, and has disk, found hbm of hbm, ddr; take a profile of hosim cal"),
        ({"homes": "disk"}, "homes: .*'disk'"),
        ({"policy": {"policy": "static", "option": {}}}, "policies.0.*'option'.*did you mean 'options'"),
        ({"policy": "checkpointing"}, "one that there is, or the file of a plan, found 'checkpointing'"),
        ({"policy": "statik"}, r"one that there is, or the file of a plan, found 'statik'; .*did you mean 'static'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options, said):
    with pytest.raises(HosimError, match=said), offloaded(**options) as (step, x, _):
        run(step, x, 1)


def test_rows_that_are_compared_have_names_of_their_own():
    twice = ["static", {"policy": "static", "options": {"recompute": True}}]
    with pytest.raises(ConfigError, match=r"each row .* has a label of its own, found 'static' twice"):
        hosim.torch.compare(make, budget=1, policies=twice)


@pytest.mark.slow
def test_predicted_stands_beside_measured():
    compared = hosim.torch.compare(lambda: (*make(),), budget=budget_of(Attention), pace=PACE, steps=2)
    text = str(compared)
    assert "All losses are equal to the last bit. Times are medians of 2 steps" in text
    assert [row["policy"] for row in compared.rows] == ["static", "reactive"]
    for row in compared.rows:
        assert row["measured_peak_bytes"] <= budget_of(Attention)
        assert row["measured_out_bytes"] == row["out_bytes"] > 0
    assert json.loads(compared.json())["rows"][0]["policy"] == "static"


def make():
    model, _, x = made(Attention)
    return model, x, {"optimizer": torch.optim.AdamW}


BELOW = [("static", {"weight": "free", "optimizer_state": "free"})]
SLOWLY_BELOW = [
    ("static", {"optimizer_state": "disk"}),
    ("reactive", {"optimizer_state": "disk"}),
    (ON_DEMAND, {"weight": "disk", "gradient": "disk"}),
]
SLOWLY_BELOW += [("static", {"weight": "disk", "optimizer_state": "disk", "gradient": "disk"})]
MARKED = [*BELOW, *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOWLY_BELOW)]


@pytest.mark.parametrize(("policy", "homes"), MARKED)
def test_what_lives_below_between_steps_is_there_when_a_step_needs_it(policy, homes):
    """The budget is less than what lasts, which is in memory between steps without homes."""

    def made_apart():
        model, _, x = made(Tied)
        return (
            model,
            torch.optim.AdamW(model.parameters(), foreach=False),
            x[:1, :8].clone(),
        )  # else one op uses all states

    model, optimizer, x = made_apart()
    expected = run(step_of(model, optimizer, None), x, 7), state(model, optimizer)
    lasting = sum(value.nbytes for value in expected[1])
    model, optimizer, x = made_apart()
    options = {"budget": lasting * 9 // 10, "homes": homes, "tier": "memory", "strict": True}
    with hosim.torch.offload(model, optimizer=optimizer, policy=policy, **options) as step:
        losses = run(step, x, 6)
        assert step._memory.used_bytes <= lasting * 9 // 10
        with step.here():
            assert step._memory.used_bytes >= lasting
            assert all(map(torch.isfinite, map(torch.sum, state(model, optimizer))))
        losses += run(step, x, 1)
        assert same(expected[0], losses)
        assert all(one.peak_bytes <= lasting * 9 // 10 for one in step.steps[1:])
    assert same(expected[1], state(model, optimizer)), "all comes home when it is closed"


@pytest.mark.slow
def test_batches_are_the_callers_who_may_hold_them_or_let_go():
    """Those of other calls take no room of the budget, and none lives on for the step's sake."""
    model, optimizer, x = made(Tied)
    options = {"budget": budget_of(Tied), "tier": "memory", "strict": True}
    with hosim.torch.offload(model, optimizer=optimizer, **options) as step:
        batches = [x.clone() for _ in range(3)]
        for number in range(9):
            step(batches[number % 3])
        gone = weakref.ref(batches[0].untyped_storage())
        del batches
        assert gone() is None
        for _ in range(3):
            step(x.clone())
        assert all(one.peak_bytes <= options["budget"] for one in step.steps[1:])
        assert {one.plan for one in step.steps[3:]} == {"static"}


@pytest.mark.slow
def test_gradients_that_are_sparse_are_followed_by_their_parts(quick_plans):
    def embedded():
        torch.manual_seed(1)
        table, layer = torch.nn.Embedding(2000, 64, sparse=True), torch.nn.Linear(64, 64)
        model = torch.nn.Sequential(table, layer, torch.nn.Tanh(), torch.nn.Linear(64, 64))
        return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randint(0, 2000, (512,))

    options = {"budget": 1_250_000, "tier": "memory", "strict": True, "loss": lambda made: made.square().mean()}
    model, optimizer, x = embedded()
    expected = run(step_of(model, optimizer, options["loss"]), x)
    for homes in ({}, {"0.weight": "disk"}):
        model, optimizer, x = embedded()
        with hosim.torch.offload(model, optimizer=optimizer, homes=homes, **options) as step:
            assert same(expected, run(step, x))
            assert step.steps[-1].out_bytes > 0


@pytest.mark.slow
def test_what_a_step_leaves_is_within_the_budget_when_it_ends():
    """Gradients outlast a step, and the next one frees them: they are there between steps, or below."""

    def linear():
        torch.manual_seed(1)
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
        return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 64)

    loss = {"loss": lambda made: made.square().mean()}
    model, optimizer, x = linear()
    expected, weights_bytes = run(step_of(model, optimizer, **loss), x, 7), sum(p.nbytes for p in model.parameters())
    gradients = [parameter.grad for parameter in model.parameters()]
    options = {"budget": weights_bytes * 9 // 5, "tier": "memory", "strict": True, **loss}
    model, optimizer, x = linear()
    with (
        hosim.torch.offload(model, optimizer=optimizer, **options) as step,
        pytest.raises(ConfigError, match=r"infeasible: .* B short; .*homes below"),
    ):
        run(step, x)
    for policy in ("static", "reactive"):
        model, optimizer, x = linear()
        more = {"optimizer": optimizer, "homes": {"gradient": "disk"}, "policy": policy}
        with hosim.torch.offload(model, **more, **options) as step:
            assert same(expected, run(step, x, 7))
            assert all(one.peak_bytes <= options["budget"] for one in step.steps)
            assert all(parameter.grad.untyped_storage().nbytes() == 0 for parameter in model.parameters())
        assert same(gradients, [parameter.grad for parameter in model.parameters()])


def test_what_was_brought_back_and_changed_since_is_written_again():
    memory, value = StepMemory(1e6, FileTier(None)), torch.ones(1000)
    block = memory.block(value.untyped_storage(), "value")
    for number in (2, 3):
        memory.settle([block])
        assert value.untyped_storage().nbytes() == 0
        memory.settle()
        value.fill_(number)  # as an op does that no plan knows of
    memory.settle([block])
    memory.settle()
    assert torch.equal(value, torch.full((1000,), 3.0))
    memory.close()


def test_a_plan_that_was_written_is_executed_as_it_stands(tmp_path):
    with offloaded(InPlace, homes={"optimizer_state": "disk"}) as (step, x, _):
        with pytest.raises(ConfigError, match="a step that was planned has a plan, found none yet"):
            step.write_plan(tmp_path / "plan.jsonl")
        run(step, x)
        step.write_plan(tmp_path / "plan.jsonl")
        moved = step.steps[-1].out_bytes, step.steps[-1].in_bytes
    model, optimizer, x = made(InPlace)
    with hosim.torch.execute(model, tmp_path / "plan.jsonl", optimizer=optimizer, pace=PACE, strict=True) as step:
        assert same(plain(InPlace)[0], run(step, x))
        assert (step.steps[-1].plan, step.steps[-1].out_bytes, step.steps[-1].in_bytes) == ("plan", *moved)
        with step.here():
            assert same(plain(InPlace)[1], state(model, optimizer))


@pytest.mark.slow
def test_a_plan_of_another_step_is_refused_by_name(tmp_path):
    with offloaded(Tied) as (step, x, _):
        run(step, x)
        step.write_plan(tmp_path / "plan.jsonl")
    model, optimizer, x = made(InPlace)
    with (
        hosim.torch.execute(model, tmp_path / "plan.jsonl", optimizer=optimizer) as step,
        pytest.raises(HosimError, match=r"layers\.0"),
    ):
        run(step, x)
    with pytest.raises(ConfigError, match="a plan is a file, found none at"):
        hosim.torch.execute(model, tmp_path / "none.jsonl", optimizer=optimizer)


def test_times_of_ops_add_up_to_the_median_step():
    assert typical([[10, 30, 60], [20, 10, 70], [10, 10, 170]]) == [11, 11, 78]
    assert typical([[0, 0]]) == [0, 0]


@pytest.mark.slow
def test_a_step_is_recorded_with_the_times_of_its_ops():
    model, optimizer, x = made(Tied)
    recorded = hosim.torch.record(model, x, optimizer=optimizer)
    assert all(op.duration_ns for op in recorded.graph.ops)
    names = [op.name for op in recorded.graph.ops]
    assert names == [op.name for op in hosim.torch.capture(model, x, optimizer=torch.optim.AdamW).graph.ops]
    assert "layers.0.first/fwd/addmm@budgeted.py" in names[0]


@pytest.mark.slow
def test_a_plan_that_runs_an_op_again_that_cannot_is_refused_by_its_name(tmp_path, monkeypatch):
    with offloaded(InPlace, "recompute", budget=budget_of(InPlace, 7)) as (step, x, _):
        run(step, x, 7)
        step.write_plan(tmp_path / "plan.jsonl")
    options = {"budget": budget_of(InPlace, 7), "pace": PACE, "strict": True}
    model, optimizer, x = made(InPlace)
    with hosim.torch.execute(model, tmp_path / "plan.jsonl", optimizer=optimizer, **options) as step:
        assert same(plain(InPlace, 7)[0], run(step, x, 7))
    monkeypatch.setattr("simulator.execute.planning.into", lambda _: None)
    model, optimizer, x = made(InPlace)
    with (
        hosim.torch.execute(model, tmp_path / "plan.jsonl", optimizer=optimizer, **options) as step,
        pytest.raises(HosimError, match=r"compute layers\..*keep or move its outputs"),
    ):
        run(step, x, 7)


def test_what_lives_below_is_guarded_between_steps():
    model, optimizer, x = made(Tied)
    options = {"homes": {"weight": "disk", "optimizer_state": "disk"}, "tier": "memory", "pace": PACE}
    with hosim.torch.offload(model, optimizer=optimizer, budget=budget_of(Tied), **options) as step:
        run(step, x, 5)
        for use in (lambda: model(x), model.state_dict, optimizer.state_dict):
            with pytest.raises(ExecutionError, match=r"write `with step.here\(\):` around it"):
                use()
        with step.here():
            kept = {name: value.clone() for name, value in model.state_dict().items()}
        assert len(run(step, x, 1)) == 1
    assert kept.keys() == model.state_dict().keys()
    for hooks in (model._forward_pre_hooks, model._state_dict_pre_hooks, model._load_state_dict_pre_hooks):
        assert not hooks, "none is left"


@pytest.mark.slow
def test_a_storage_that_was_replaced_ends_the_plan_and_the_next_steps_are_recorded_again():
    expected = plain(Tied, 8)
    with offloaded(Tied, homes={"optimizer_state": "disk"}, strict=False) as (step, x, now):
        losses = run(step, x, 5)
        optimizer = next(iter(step._watch._optimizers))
        with step.here():
            optimizer.load_state_dict(optimizer.state_dict())
            for one in optimizer.state.values():
                one["exp_avg"] = one["exp_avg"].clone()
        with pytest.warns(UserWarning, match="another storage in place of"):
            losses += run(step, x, 1)
        losses += run(step, x, 2)
        with step.here():
            assert same(expected[0], losses)
            assert same(expected[1], now())


def test_what_numpy_shows_cannot_leave_and_is_an_error_by_name():
    model, optimizer, x = made(Tied)
    options = {"homes": {"weight": "disk"}, "tier": "memory", "pace": PACE, "budget": budget_of(Tied)}
    with hosim.torch.offload(model, optimizer=optimizer, **options) as step:
        run(step, x, 4)
        inner = step._step
        step._step = lambda x: (inner(x), model.layers[0].first.weight.detach().numpy())[0]
        with pytest.raises(ExecutionError, match="a storage that moves can be resized"):
            step(x)
        assert all(parameter.untyped_storage().nbytes() for parameter in model.parameters()), "nothing is lost"


def test_a_step_that_no_plan_fits_goes_on_on_demand_with_one_warning():
    model, optimizer, x = made(Tied)
    peak, _lasting = needed(Tied)
    with hosim.torch.offload(model, optimizer=optimizer, budget=peak - 1, policy="resident", pace=PACE) as step:
        losses = run(step, x, 1)
        with pytest.warns(UserWarning, match="Its steps run on demand"):
            losses += run(step, x, 2)
        losses += run(step, x, 2)
        assert {one.plan for one in step.steps} == {"on demand"}
    assert same(plain(Tied)[0], losses)
