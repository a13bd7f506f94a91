"""On a device with streams, a step under a plan gives the same numbers, whenever its work comes."""

from __future__ import annotations

import threading
import time
import weakref
from itertools import pairwise
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import hosim.torch  # noqa: E402 - it needs torch
from budgeted import (  # noqa: E402
    KINDS,
    THREADS,
    Attention,
    Deep,
    Experts,
    InPlace,
    budget_of,
    made,
    plain,
    run,
    same,
    state,
)
from lagging import Lagging, LaggingDevice  # noqa: E402

from simulator.errors import ConfigError, HosimError  # noqa: E402
from simulator.execute import accelerator as devices  # noqa: E402
from simulator.execute.held import IN, OUT, HeldStorage  # noqa: E402
from simulator.execute.measured import measured_row  # noqa: E402
from simulator.execute.offloaded import Offloaded  # noqa: E402
from simulator.execute.on_demand import may_leave  # noqa: E402
from simulator.execute.storages import StepMemory  # noqa: E402
from simulator.importers.torch_run import step_of  # noqa: E402

PACE = ("200 MB/s", "200 MB/s")
ON_DEMAND = {"policy": "reactive", "label": "on demand", "options": {"look_ahead": 0, "evict": "lru"}}
MIXED = {"policy": "static", "options": {"recompute": True}}
ROWS = [("reactive", InPlace, {"pace": PACE})]
SLOW = [(MIXED, Experts, {"tier": "disk"}), ("static", Attention, {})]
SLOW += [(policy, kind, {"pace": PACE}) for policy in ("static", "reactive", MIXED) for kind in KINDS]


@pytest.fixture
def device(monkeypatch):
    """An accelerator that there is not, found in place of one that there is."""
    device = LaggingDevice()
    monkeypatch.setattr(devices, "device_of", lambda name: devices.Processor() if name == "cpu" else device)
    return device


def lagging(device, model, optimizer):
    """A step whose ops run on the device."""
    step = step_of(model, optimizer, None)

    def run_late(x):
        with Lagging(device):
            return step(x)

    return run_late


@pytest.mark.parametrize(
    ("policy", "kind", "more"), [*ROWS, *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW)]
)
def test_a_step_gives_the_same_numbers_within_its_budget(device, policy, kind, more):
    model, optimizer, x = made(kind)
    budget = budget_of(kind)
    step = lagging(device, model, optimizer)
    with hosim.torch.offload(step, budget=budget, policy=policy, strict=True, **more) as step:
        losses, expected = run(step, x, 7), plain(kind, 7)
        assert same(expected[0], losses)
        assert same(expected[1], state(model, optimizer))
        row, last = step.predicted, step.steps[-1]
        assert last.plan == row.label
        assert last.out_bytes > 0
        assert all(one.peak_bytes <= budget for one in step.steps[1:])
        assert list(row.hardware.tiers) == ["hbm", "disk" if "tier" in more else "ram"]
        assert all(op.duration_ns > 0 for op in step.recorded.graph.ops), "each op was timed by the device"


@pytest.mark.slow
def test_backward_runs_in_threads_of_pytorch(device):
    model, optimizer, x = made(Deep)
    options = {"budget": budget_of(Deep), "strict": True, "pace": PACE}
    expected = plain(Deep, 7)
    THREADS.clear()
    with hosim.torch.offload(lagging(device, model, optimizer), **options) as step:
        assert same(expected[0], run(step, x, 7))
        assert same(expected[1], state(model, optimizer))
        assert step.steps[-1].plan == "static"
        assert step.steps[-1].out_bytes > 0
    assert {threading.get_ident()} < THREADS


@pytest.mark.slow
def test_optimizer_states_live_below_between_steps(device):
    model, optimizer, x = made(InPlace)
    options = {"budget": budget_of(InPlace), "homes": {"optimizer_state": "ram"}, "pace": PACE, "strict": True}
    with hosim.torch.offload(lagging(device, model, optimizer), **options) as step:
        assert same(plain(InPlace, 7)[0], run(step, x, 7))
        assert all(value["exp_avg"].untyped_storage().nbytes() == 0 for value in optimizer.state.values())
    assert same(plain(InPlace, 7)[1], state(model, optimizer))


@pytest.mark.slow
def test_what_was_measured_is_told_by_the_device(device):
    model, optimizer, x = made(InPlace)
    with hosim.torch.offload(lagging(device, model, optimizer), budget=budget_of(InPlace), pace=PACE) as step:
        step.keep_traces()
        run(step, x, 7)
        last = step.steps[-1]
        measured = measured_row(step.predicted, last.trace, round(last.step_s * 1e9))
        figures = [measured.summary[key] for key in ("peak_hbm_bytes", "moved_d2h_bytes", "moved_h2d_bytes")]
        assert figures == [last.peak_bytes - step.beside_bytes, last.out_bytes, last.in_bytes]
        assert 0 < measured.summary["stall_ns"] < measured.summary["step_ns"]
        assert measured.summary["stall_ns"] == pytest.approx(last.stall_s * 1e9, rel=0.01)


@pytest.mark.slow
def test_policies_have_turns_on_a_device_and_make_way_for_each_other(device, monkeypatch):
    held = []
    make_way = Offloaded.make_way

    def noted(step):
        back = make_way(step)
        held.append(step._memory.used_bytes)
        return back

    monkeypatch.setattr(Offloaded, "make_way", noted)

    def make():
        model, optimizer, x = made(Attention)
        return lagging(device, model, optimizer), x

    budget = budget_of(Attention)
    compared = hosim.torch.compare(make, budget=budget, policies=("static", ON_DEMAND, "resident"), steps=2, pace=PACE)
    assert [row["is_equal"] for row in compared.rows] == [True, True, True]
    assert [row["is_within"] for row in compared.rows] == [True, True, False]
    assert compared.rows[0]["measured_out_bytes"] == compared.rows[0]["out_bytes"] > 0
    weights_bytes = sum(parameter.nbytes for parameter in made(Attention)[0].parameters())
    assert max(held) <= weights_bytes, "what a step without a plan makes anew is not followed"
    assert 0 in held


@pytest.fixture
def memory(device):
    """Room for 1 MB, with pinned memory below."""
    memory = StepMemory(1e6, device.lower(None, None), device)
    yield memory
    memory.close()


def late(stream, time_s=0.05):
    """Let all work of a stream come so late from now on."""
    stream.random.choice = lambda _: time_s


def test_a_copy_out_starts_behind_the_ops_that_were_issued_before_it(device, memory):
    late(device._torch.compute)
    with Lagging(device):
        made = torch.arange(1000.0)
    memory.copy_out(block := memory.block(made.untyped_storage(), "made"))
    memory.free(block)
    memory.copy_in(block)
    memory.wait(block)
    device.finish()
    assert torch.equal(made, torch.arange(1000.0))


def test_a_copy_in_starts_behind_the_ops_that_may_still_use_its_memory(device, memory):
    """What an op has read, and PyTorch has freed, is memory that the copy may get."""
    value = torch.arange(1000.0)
    memory.copy_out(block := memory.block(value.untyped_storage(), "value"))
    memory.free(block)
    memory.wait(block, writes=True)
    late(device._torch.compute)
    device._torch.compute.put(lambda: None)
    before = device.now()
    memory.notes = []
    memory.copy_in(block)
    memory.wait(block)
    ((began, ended),) = [note[2:4] for note in memory.notes if note[0] == IN and note[4]]
    device.finish()
    assert device.seconds(before) <= device.seconds(began) <= device.seconds(ended)


def test_the_host_is_a_few_ops_ahead_and_no_more(device):
    """Else it would give room in an order of its own."""
    late(device._torch.compute, 0.002)
    ended = []
    for _ in range(40):
        device._torch.compute.put(lambda: None)
        ended.append((device.ended(), time.perf_counter()))
    device.finish()
    behind = [sum(device.seconds(op) > issued_s for op, _ in ended[: n + 1]) for n, (_, issued_s) in enumerate(ended)]
    assert 8 <= max(behind) <= devices._AHEAD + 1


def test_what_the_host_holds_is_never_moved(device, memory):
    """A count of steps, say: it takes no room here."""
    count = torch.tensor(3.0)
    block = memory.block(count.untyped_storage(), "count")
    memory.copy_out(block)
    memory.free(block)
    memory.wait(block, writes=True)
    assert (memory.used_bytes, memory.moved_bytes[OUT], count.item()) == (0, 0, 3)
    memory.copy_in(block)
    memory.wait(block)
    assert count.item() == 3


def test_memory_is_given_back_and_taken_on_the_stream_of_the_ops(device):
    """Whatever stream a thread was on: else an op that is still to come might get memory that one before it reads."""
    torch_, on = device._torch, []
    storage = SimpleNamespace(nbytes=lambda: 100, resize_=lambda size: on.append((size, torch_.current_stream(None))))
    for stream in (torch_.compute, other := torch_.Stream()):
        torch_.set_stream(stream)
        device.resize(storage, 0)
        device.resize(storage, 100)
    assert on == [(0, torch_.compute), (100, torch_.compute)] * 2
    assert torch_.current_stream(None) is other, "and then the thread is on its own again"


def test_an_op_on_another_stream_is_an_error_by_name(device):
    """No copy would wait for it."""
    device._torch.set_stream(device._torch.Stream())
    with pytest.raises(HosimError, match="a step computes on the stream that was current when it began"):
        device.ended()


def test_storages_leave_though_an_accelerator_calls_all_of_them_shared(monkeypatch):
    block = HeldStorage(
        lambda: SimpleNamespace(device=torch.device("cuda:0"), is_shared=lambda: True, resizable=lambda: 1), "x", 1
    )
    assert may_leave(block)
    x = torch.ones(100).share_memory_()
    assert not may_leave(HeldStorage(weakref.ref(x.untyped_storage()), "x", 400))


def test_an_error_of_the_device_ends_the_step(device, memory, monkeypatch):
    """And no thread, for which the step would wait."""
    value = torch.arange(1000.0)
    memory.copy_out(block := memory.block(value.untyped_storage(), "value"))
    memory.free(block)
    memory.wait(block, writes=True)
    ours, now = threading.get_ident(), device.now

    def fails(*stream):
        if threading.get_ident() != ours:
            raise RuntimeError("device-side assert")
        return now(*stream)

    monkeypatch.setattr(device, "now", fails)
    memory.copy_in(block)
    with pytest.raises(RuntimeError, match="device-side assert"):
        memory.wait(block)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="device-side assert"):
        memory.settle()
    assert torch.equal(value, torch.arange(1000.0))


def test_moments_of_a_step_are_in_order(device, memory):
    moments = [device.now() for _ in range(3)]
    device.finish()
    assert all(device.seconds(early) <= device.seconds(late) for early, late in pairwise(moments))


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_copy_out_takes_its_time_once_the_ops_before_it_have_ended(device, tier, tmp_path):
    """What it waits for is no time of its link: a paced one takes as long as it says all the same."""
    pace = (4e5, 4e5) if tier == "memory" else None
    memory = StepMemory(1e6, device.lower(tmp_path if tier == "disk" else None, pace), device)
    memory.notes = []
    late(device._torch.compute)
    with Lagging(device):
        made = torch.arange(1000.0)
    op_ended = device.now()
    memory.copy_out(memory.block(made.untyped_storage(), "made"))
    memory.settle()
    ((begun, ended),) = [note[2:4] for note in memory.notes if note[0] == OUT and note[4]]
    device.finish()
    assert device.seconds(begun) >= device.seconds(op_ended) - 1e-3
    assert device.seconds(ended) - device.seconds(begun) >= (4000 / 4e5 if pace else 0)
    memory.close()


def test_pinned_memory_has_an_end(device, monkeypatch):
    monkeypatch.setattr(devices, "free_memory", lambda: 5000)
    memory = StepMemory(1e6, device.lower(None, None), device)
    value = torch.ones(1500)
    memory.copy_out(memory.block(value.untyped_storage(), "value"))
    with pytest.raises(ConfigError, match="pinned memory has room for 6,000 B, found 5,000 B left"):
        memory.settle()
    memory.close()


def test_a_device_that_is_not_there_is_refused():
    for name in ("cuda:7", "mps", "tpu", "cuda:x", 5):
        with pytest.raises(ConfigError, match=f"a device is there, found '{name}'"):
            hosim.torch.offload(lambda: None, budget="1 GB", device=name)


def test_a_step_whose_tensors_are_elsewhere_is_refused(device):
    """Its budget would say nothing."""
    with (
        hosim.torch.offload(lambda count: count + 1, budget="1 GB") as step,
        pytest.raises(HosimError, match="a step has tensors on cpu, found none"),
    ):
        step(torch.tensor(1.0))
