"""Kineto traces: steps, streams, copies, memory, and how far the replay is from them."""

from dataclasses import replace

import pytest
from recorded import ABSENT, DATA, Profile, of_1_9, profiled, saved

import simulator as hosim
from simulator.errors import ConfigError
from simulator.importers.kineto import UNTIMED
from simulator.importers.recordings import blocks, collective_kind, short
from simulator.run.stories import as_recorded, replay_recording, replayed, step_shares


def read(tmp_path, profile, **options):
    return hosim.read_kineto(saved(tmp_path / "profile.json", profile.document), **options)


def ops(found):
    """Name, stream and duration of all ops but those of the host and the end of the step."""
    named = [(op.name.partition("/")[2], op.stream, op.duration_ns) for op in found.graph.ops]
    return [one for one in named if one[0] not in ("host", "end")]


def off(found, graph=None):
    """By what the replay of a step is longer than the recording [ns]."""
    return replay_recording(graph or found.graph)[0] - found.recorded_ns


def longer(graph, name, times):
    """The graph in which the ops of a name take so many times as long."""
    changed = (replace(op, duration_ns=op.duration_ns * (times if op.name.endswith(name) else 1)) for op in graph.ops)
    return replace(graph, ops=tuple(changed))


def test_kernels_are_replayed_on_their_streams_as_the_host_launched_them(tmp_path):
    found = read(tmp_path, profiled())
    assert ops(found) == [
        ("gemm", 0, 10_000),
        ("splitK", 0, 5_000),  # 2 us from the end of the one before it to its start
        ("relu_kernel", 0, 5_000),
        ("fill", 0, 1_000),
        ("gemm", 0, 20_000),
        ("add", 2, 15_000),
        ("Memset", 0, 12_000),
        ("add", 0, 8_000),
    ]
    host = [op for op in found.graph.ops if op.name.endswith("host")]
    assert [op.duration_ns for op in host] == [0, 1000, 9000, 10_000, 10_000, 10_000, 8000, 2000]
    assert {op.stream for op in host} == {1}
    assert found.recorded_ns == 70_000
    assert found.kept["kernels, copies, fills"] == "8 on 2 streams"
    assert found.derived == (
        "The profiler marked no steps: all that is recorded is one step.",
        "Waits between streams: 0 are recorded, 0 inferred, from ops that had just ended.",
        "The host works for 50.0 us from launch to launch; it waits for the device 0 times.",
    )
    assert found.dropped == {"names of threads": 1, "operators of the host": 6}
    assert "(+0.00 %)" in as_recorded(found.graph, found.recorded_ns)


def two_streams(*waits):
    """Two kernels of 100 us on one stream, and one of 50 us that begins on another once the first has ended."""
    profile = Profile()
    profile.kernel("a", 10, 100, 100)
    profile.kernel("b", 12, 200, 100)
    for told in waits:
        profile.wait(14, 8, **told)
    profile.kernel("c", 16, 202, 50, stream=8)
    return profile


@pytest.mark.parametrize("told", [{"source": 7, "marked": 11}, {}])
def test_a_stream_waits_for_what_it_was_told_to_wait_for(tmp_path, told):
    """As recorded; or, if only the call is, for what had just ended."""
    found = read(tmp_path, two_streams(told))
    assert ops(found) == [("a", 0, 100_000), ("b", 0, 100_000), ("c", 1, 52_000)]
    assert off(found) == 0
    assert off(found, longer(found.graph, "c", 3)) == 56_000  # it ends 256 us after a kernel of 100 us
    assert off(found, longer(found.graph, "/a", 3)) == 200_000
    told, seen = (1, 0) if told else (0, 1)
    assert f"Waits between streams: {told} are recorded, {seen} inferred" in str(found)


def test_a_stream_did_not_wait_for_what_ended_after_it_had_begun(tmp_path):
    profile = Profile()
    profile.kernel("a", 10, 100, 100)
    profile.wait(14, 8, source=7, marked=11)
    profile.kernel("c", 16, 150, 100, stream=8)
    found = read(tmp_path, profile)
    assert "Waits between streams: 0 are recorded" in str(found)
    assert off(found) == 0


def test_what_is_cut_where_kernels_of_one_stream_overlap_is_told(tmp_path):
    profile = Profile()
    for number in range(3):
        profile.kernel("abc"[number], 1 + number, 100 + 20 * number, 100)
    found = read(tmp_path, profile)
    assert "160 us of overlap on one stream were cut: it runs one at a time." in found.derived
    assert not any("overlaps" in line for line in read(tmp_path, two_streams()).derived)


def test_what_nothing_explains_is_idle_time_of_the_stream(tmp_path):
    found = read(tmp_path, two_streams())
    assert ops(found) == [("a", 0, 100_000), ("b", 0, 100_000), ("idle", 1, 96_000), ("c", 1, 50_000)]
    assert off(found) == 0
    assert off(found, longer(found.graph, "/a", 3)) == 200_000


def test_the_host_goes_on_once_what_it_synchronised_with_has_ended(tmp_path):
    profile = Profile()
    profile.kernel("a", 10, 20, 100)
    profile.call("cudaStreamSynchronize", 15, 110)
    profile.kernel("b", 140, 150, 10)
    found = read(tmp_path, profile)
    assert ops(found) == [("a", 0, 100_000), ("b", 0, 10_000)]
    assert off(found) == 0
    assert off(found, longer(found.graph, "/a", 2)) == 100_000  # the host is 30 us behind it, as it was
    del profile.events[3]
    assert off(found, longer(read(tmp_path, profile).graph, "/a", 2)) == 70_000


def test_the_host_waits_for_a_copy_that_its_call_outlasts(tmp_path):
    """As with pageable memory, whatever the call is named; a kernel may end before its call returns otherwise."""
    profile = Profile()
    profile.kernel("a", 10, 20, 100)
    profile.kernel("out", 15, 121, 4, cat="gpu_memcpy", call=115)
    profile.kernel("b", 140, 150, 10)
    found = read(tmp_path, profile)
    assert off(found) == 0
    assert off(found, longer(found.graph, "/a", 2)) == 100_000
    profile.events[-3]["cat"] = "kernel"
    assert off(found, longer(read(tmp_path, profile).graph, "/a", 2)) < 100_000


@pytest.mark.parametrize(
    ("start", "host"),
    [(150, [2000, 128_000, 62_000, 100_000]), (135, [2000, 124_000, 66_000, 100_000])],
    ids=["once the call has returned", "while the call lasts"],
)
def test_a_kernel_is_launched_when_its_call_returns_or_it_starts(tmp_path, start, host):
    """From launch to start it takes 11 us, as for c (more than for b, or less than for d), so that the host is at work
    since 9 us: until a is launched at 11, b at 139 (or 135, when it starts), c at 201, d at 301."""
    profile = Profile()
    profile.kernel("a", 10, 20, 100)
    profile.kernel("b", 130, start, 10, call=9)
    profile.kernel("c", 200, 212, 10)
    profile.kernel("d", 300, 332, 10)
    found = read(tmp_path, profile)
    assert [op.duration_ns for op in found.graph.ops if op.name.endswith("host")] == host
    assert off(found) == 0


def test_a_kernel_is_of_the_step_in_which_its_call_began(tmp_path):
    profile = Profile()
    for number in range(3):
        profile.mark(number, 100 * number, 90)
        profile.kernel("a", 100 * number + 50, 100 * number + 60, 10)
        profile.kernel("b", 100 * number + 99, 100 * number + 105, 10)
    assert [name for name, *_ in ops(read(tmp_path, profile, step=1))][:2] == ["a", "b"]


def test_what_was_launched_before_the_step_begins_at_once(tmp_path):
    """The device is behind by more than a step: the host is none of its business."""
    profile = Profile()
    for number in range(3):
        profile.mark(number, 100 * number, 90)
        for kernel in range(4):
            profile.kernel("k", 100 * number + 20 * kernel + 1, 1000 + 100 * (4 * number + kernel), 100)
    found = read(tmp_path, profile)
    assert ops(found) == [("k", 0, 100_000)] * 4
    assert (found.recorded_ns, off(found)) == (400_000, 0)


def steps():
    """Three steps of which the kernels run 100 us behind; each has one of 10, 20 and 30 us."""
    profile = Profile()
    for number in range(3):
        profile.mark(number + 7, 1000 * number, 900)
        profile.kernel("k", 1000 * number + 5, 1000 * number + 105, 10 * (number + 1))
    return profile


def test_the_last_step_with_one_behind_it_is_taken(tmp_path):
    found = read(tmp_path, steps())
    assert ops(found) == [("k", 1, 20_000)]
    assert off(found) == 0
    assert found.recorded_ns == 1_000_000
    assert found.derived[0] == "The step is ProfilerStep#8 of 3 marked steps (--step)."
    assert found.dropped["ops of other steps"] == 2


def test_a_step_can_be_named_and_the_last_one_ends_with_its_kernels(tmp_path):
    assert ops(read(tmp_path, steps(), step=7)) == [("k", 1, 10_000)]
    assert ops(read(tmp_path, steps(), step=9)) == [("k", 0, 30_000)]
    with pytest.raises(ConfigError, match="the step is one that the profiler marked, found 6; choose of 7, 8, 9"):
        read(tmp_path, steps(), step=6)
    with pytest.raises(ConfigError, match="marked by the profiler, found no ProfilerStep; leave --step out"):
        read(tmp_path, profiled(), step=1)


def test_a_step_without_kernels_is_told(tmp_path):
    profile = steps()
    profile.mark(10, 3000, 900)
    profile.mark(11, 4000, 900)
    with pytest.raises(ConfigError, match="something runs in the step, found nothing in ProfilerStep#10"):
        read(tmp_path, profile)


def test_copies_are_ops_of_their_time_and_are_counted(tmp_path):
    profile = profiled()
    profile.kernel("Memcpy HtoD (Pageable -> Device)", 70, 180, 10, cat="gpu_memcpy", bytes=4_000_000)
    found = read(tmp_path, profile)
    assert ops(found)[-1] == ("Memcpy HtoD", 0, 20_000)  # 10 us after the one before it
    assert found.kept["kernels, copies, fills"] == "9 on 2 streams, of which 1 copies of 4.00 MB"


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)", {}, "collective"),
        ("ncclKernel_Generic", {"Collective name": "_allgather_base"}, "collective"),
        ("ncclKernel_Generic", {}, "compute"),
        ("all_reduce_by_hand", {}, "compute"),
    ],
)
def test_kernels_of_nccl_are_collectives_of_recorded_time(tmp_path, name, args, expected):
    profile = Profile()
    profile.kernel(name, 1, 5, 10, **args)
    _, op, _ = read(tmp_path, profile).graph.ops
    assert (str(op.kind), op.collective, op.duration_ns) == (expected, None, 10_000)


def test_without_a_device_the_outermost_operators_are_the_ops(tmp_path):
    profile = Profile()
    profile.op("aten::linear", 10, 30)
    profile.op("aten::addmm", 12, 20)
    profile.op("aten::relu", 50, 5)
    found = read(tmp_path, profile)
    assert ops(found) == [("aten::linear", 0, 30_000), ("idle", 0, 10_000), ("aten::relu", 0, 5_000)]


def test_without_a_device_what_an_operator_allocates_is_its_own(tmp_path):
    profile = Profile()
    profile.op("aten::linear", 10, 30)
    profile.op("aten::relu", 50, 5)
    profile.memory(20, 64, 0xA, 64, kind=0)
    profile.memory(52, 32, 0xB, 96, kind=0)
    profile.memory(54, -64, 0xA, 32, kind=0)
    graph = read(tmp_path, profile).graph
    assert [t.size_bytes for t in graph.tensors] == [64, 32]
    assert [(op.name.partition("/")[2], op.reads, op.writes) for op in graph.ops if op.name[-4:] != "idle"] == [
        ("aten::linear", (), (0,)),
        ("aten::relu", (0,), (1,)),
    ]


def test_times_have_parts_of_microseconds(tmp_path):
    profile = Profile()
    profile.kernel("a", 1, 5.25, 0.5)
    profile.kernel("b", 2, 5.751, 2.057)  # in floating point 2 + 56.99999999999994 / 1000
    assert ops(read(tmp_path, profile)) == [("a", 0, 500), ("b", 0, 2057)]


def test_times_are_exact_to_the_nanosecond_however_late_they_are(tmp_path):
    profile = Profile()
    profile.kernel("a", 1, 1712195495519689, 100)
    profile.kernel("b", 2, 1712195495519689.5 + 100, 63.813)
    assert ops(read(tmp_path, profile)) == [("a", 0, 100_000), ("b", 0, 64_313)]


@pytest.mark.parametrize(
    "bad", [{"dur": "5"}, {"dur": None}, {"dur": True}, {"ts": "12.5"}, {"ts": -1}, {"dur": 1e300}]
)
@pytest.mark.parametrize("cat", ["kernel", "gpu_memcpy", "cpu_op"])
def test_what_has_no_time_is_named_counted_and_told_beside_the_replay(tmp_path, bad, cat):
    profile = Profile()
    profile.kernel("a", 1, 5, 10)
    profile.kernel("b", 2, 20, 10, cat=cat)
    profile.events[-1] |= bad
    found = read(tmp_path, profile)
    assert ops(found) == [("a", 0, 10_000)]
    name = UNTIMED if cat != "cpu_op" else "events 'cpu_op' whose ts or dur is no number from 0"
    assert found.dropped == {name: 1, "names of threads": 1}
    said = as_recorded(found.graph, found.recorded_ns, found.dropped.get(UNTIMED, 0))
    assert said.endswith("; both lack 1 kernels, copies and fills without a time") == (cat != "cpu_op")


def test_a_kernel_without_a_duration_has_no_time(tmp_path):
    profile = Profile()
    profile.kernel("a", 1, 5, 10)
    profile.kernel("b", 2, 20, 10)
    del profile.events[-1]["dur"]
    assert read(tmp_path, profile).dropped[UNTIMED] == 1


def test_of_several_devices_the_busiest_is_taken(tmp_path):
    profile = Profile()
    for number, device in enumerate((0, 1, 1)):
        profile.kernel(f"on{device}", number, 10 + 10 * number, 5, device=device)
    found = read(tmp_path, profile)
    assert [name for name, *_ in ops(found)] == ["on1", "on1"]
    assert found.dropped["ops of other devices than the busiest"] == 1


def test_a_kernel_of_any_name_is_no_idle_time(tmp_path):
    profile = Profile()
    profile.kernel("host", 5, 10, 5)
    profile.memory(1, 64, 0xA, 64)
    graph = read(tmp_path, profile).graph
    assert [[graph.tensors[t].size_bytes for t in op.writes] for op in graph.ops] == [[0], [64], [0]]


def test_allocations_live_from_the_next_launch_to_the_last_one_before_their_end(tmp_path):
    profile = Profile()
    for n in range(4):
        profile.kernel(f"k{n}", 10 * n + 5, 100 + 10 * n, 10)
    profile.memory(1, 100, 0xA, 1100)  # before k0, 1000 B are there
    profile.memory(12, 50, 0xB, 1150)  # before k1
    profile.memory(18, -100, 0xA, 1050)  # after k1
    profile.memory(28, -300, 0xC, 750)  # after k2, from before
    profile.memory(29, 7, 0xD, 757)  # before k3, stays
    profile.memory(30, 9, 0xE, 9, kind=0)  # of the host
    found = read(tmp_path, profile)
    graph = found.graph
    uses = {
        (t.size_bytes, str(t.kind), t.persistent, number in graph.outputs): (
            [op.name for op in graph.ops if number in op.writes],
            [op.name for op in graph.ops if number in op.reads],
        )
        for number, t in enumerate(graph.tensors)
        if t.size_bytes
    }
    assert uses == {
        (100, "activation", False, False): (["1/k0"], ["3/k1"]),
        (50, "activation", False, True): (["3/k1"], []),
        (300, "input", False, False): ([], ["5/k2"]),
        (7, "activation", False, True): (["7/k3"], []),
        (700, "weight", True, False): ([], ["0/host"]),
    }
    assert found.workload.steps == 1
    assert found.kept["recorded peak"] == "1.15 kB"
    assert "peak 1.15 kB" in as_recorded(graph, found.recorded_ns)


def remembered():
    """Three steps of two kernels, a copy and a fill, each of which allocates, and frees it again."""
    profile = Profile()
    for number in range(3):
        begin = 100 * number
        profile.mark(number, begin, 95)
        for at, cat in enumerate(("kernel", "gpu_memcpy", "kernel", "gpu_memset")):
            profile.memory(begin + 10 * at + 1, 512 << at, begin + at, 1000 + (512 << at))
            profile.kernel(f"k{at}", begin + 10 * at + 5, begin + 10 * at + 20, 8, cat=cat, bytes=5)
            profile.memory(begin + 10 * at + 9, -512 << at, begin + at, 1000)
    return profile


def test_a_trace_of_1_9_is_read_as_if_it_were_written_today(tmp_path):
    """Copies, fills, calls and steps have other names there, and what is freed is known by its size alone."""
    profile = remembered()
    today = read(tmp_path, profile)
    then = hosim.read_kineto(saved(tmp_path / "old.json", of_1_9(profile.document)))
    assert (ops(then), then.recorded_ns, then.marked_ns) == (ops(today), today.recorded_ns, 100_000)
    assert [name for name, *_ in ops(then)] == ["k0", "k1", "k2", "k3"]
    assert then.kept["kernels, copies, fills"] == today.kept["kernels, copies, fills"]
    sizes = [sorted(t.size_bytes for t in one.graph.tensors if t.size_bytes) for one in (then, today)]
    assert sizes == [[512, 1024, 2048, 4096], [512, 1000, 1024, 2048, 4096]]
    assert (then.recorded_bytes, today.recorded_bytes) == (4096, 5096)
    assert replay_recording(then.graph)[1] == 4096
    assert "states no totals" in str(then)
    assert "states no totals" not in str(today)


def test_without_addresses_each_free_ends_the_newest_allocation_of_its_size(tmp_path):
    """So the sum is right at any time, however many of one size there are; what was there before the step, too."""
    profile = Profile()
    for number in range(6):
        profile.kernel(f"k{number}", 10 * number + 5, 100 + 10 * number, 10)
    for at, change in ((1, 100), (11, 100), (21, -100), (22, 30), (31, 100), (41, -100), (42, -100), (51, -100)):
        profile.memory(at, change, 0)
    found = hosim.read_kineto(saved(tmp_path / "old.json", of_1_9(profile.document)))
    assert found.recorded_bytes == 100 + 100 + 100 + 30
    assert replay_recording(found.graph)[1] == found.recorded_bytes
    assert sorted(t.size_bytes for t in found.graph.tensors if t.size_bytes) == [30, 100, 100, 100, 100]
    assert [found.graph.tensors[t].size_bytes for t in found.graph.outputs] == [30]
    held = [t for t, tensor in enumerate(found.graph.tensors) if tensor.size_bytes == 100]
    used = [[op.name[-2:] for op in found.graph.ops if t in (*op.reads, *op.writes)] for t in held]
    assert used == [["k1"], ["k3"], ["k0", "k3"], ["k4"]], "the second is freed first"


def test_the_memory_is_that_of_the_device_that_is_read(tmp_path):
    profile = Profile()
    profile.kernel("k", 5, 10, 5)
    profile.memory(1, 64, 0xA, 64)
    profile.memory(2, 1 << 30, 0xB, 1 << 30)
    profile.events[-1]["args"]["Device Id"] = 1
    assert read(tmp_path, profile).recorded_bytes == 64


def test_ids_of_kernels_and_of_allocations_need_not_be_the_same(tmp_path):
    """A process that sees one of eight devices calls it 0, and the profiler of ROCm its place in the machine."""
    profile = Profile()
    profile.kernel("k", 5, 10, 5, device=6)
    profile.memory(1, 64, 0xA, 64, kind=6)
    assert read(tmp_path, profile).recorded_bytes == 64


def test_a_replay_that_contradicts_the_recording_is_told(tmp_path):
    found = read(tmp_path, remembered())
    own = {"peak_bytes": found.recorded_bytes, "marked_ns": found.marked_ns}
    assert "warning" not in as_recorded(found.graph, found.recorded_ns, **own)
    told = as_recorded(found.graph, found.recorded_ns * 102 // 100, peak_bytes=6000, marked_ns=80_000).splitlines()[1:]
    assert [line.partition(" differ")[0] for line in told] == [
        "warning: replay and recording of the step",
        "warning: peaks of replay and recording",
        "warning: the step on the device and the step from mark to mark",
    ]
    assert told[1].endswith(": 5.10 kB and 6.00 kB (-15.1 %)")


def test_the_share_that_ops_explain_is_what_remains_without_what_fills_the_step_up(tmp_path):
    """In the second case the host is late by 100 us; in the third, operators of such names count as others."""

    def shares(profile):
        return tuple(step_shares(read(tmp_path, profile).graph).values())

    profile = two_streams()
    assert shares(profile) == (1, 0, 0)  # idle on a stream, while the other one computes
    profile.kernel("d", 380, 400, 100)
    assert shares(profile) == (300 / 400, 100 / 400, 0)
    profile = Profile()
    profile.op("aten::linear", 10, 30)
    profile.op("host", 50, 5)
    profile.op("idle", 70, 5)
    assert shares(profile) == pytest.approx((40 / 65, 0, 25 / 65))
    assert list(replayed(read(tmp_path, profile))) == ["explained", "replay", "warnings"]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "a Kineto trace is an object with a list traceEvents, found none"),
        (3, "a Kineto trace is an object with a list traceEvents, found int"),
        ({"traceEvents": [{}, 1]}, r"traceEvents\[1\]: an event is an object, found 1; record the trace again"),
        ({"traceEvents": [{}, {"ts": "\ud800"}]}, r"an event is an object, found DecodeError|the file is JSON"),
        ({"traceEvents": []}, "something runs in a recording, found neither kernels, nor operators of the host"),
        ({"traceEvents": [{"ph": "X", "cat": "kernel", "ts": -1, "dur": 1}]}, "some op of a device has times"),
        ({"traceEvents": [{"ph": "X", "cat": "kernel", "ts": "1", "dur": 1}]}, "has times, found 1 kernels"),
        ({"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1e300}]}, "no number from 0; record it again"),
    ],
)
def test_what_is_no_kineto_trace_is_told(tmp_path, document, message):
    with pytest.raises(ConfigError, match=message):
        hosim.read_kineto(saved(tmp_path / "profile.json", document))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "all_reduce"),
        ("ALL_REDUCE", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("reduce_scatter_tensor", "reduce_scatter"),
        ("AllToAll_v", "all_to_all"),
        ("broadcast_oop", "broadcast"),
        ("barrier", "all_reduce"),
        ("wait", None),
        (None, None),
    ],
)
def test_names_of_collectives(name, kind):
    found = collective_kind(name)
    assert (found and str(found)) == kind


def test_groups_cut_all_ranks_where_they_can():
    assert blocks(8, [0, 1, 2, 3]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert blocks(8, [0, 4]) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert blocks(8, [0, 1, 4, 5]) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert blocks(8, [4, 5, 6, 7]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert blocks(6, [0, 1, 2, 3]) == [[0, 1, 2, 3]]
    assert blocks(8, [1, 2]) == [[1, 2]]
    assert blocks(10, [0, 2, 3]) == [[0, 2, 3]], "its shifts cover all ranks, some of them twice"
    assert blocks(1 << 62, [0, 1]) == [[0, 1]]
    assert blocks(8, [6, 10]) == [[6, 10]], "what reaches beyond the ranks is no part of them"


def test_names_of_kernels_are_short():
    assert (
        short("void at::native::(anonymous namespace)::softmax_warp<float, 10>(float*)") == "at::native::softmax_warp"
    )
    assert short("Memcpy DtoD (Device -> Device)") == "Memcpy DtoD"
    assert short("<lambda>") == "<lambda>"


SAMPLES = sorted(f for f in (DATA / "kineto").glob("*.gz") if ".raw" not in f.name) if DATA else []


@pytest.mark.skipif(not DATA, reason=ABSENT)
def test_published_traces_replay_within_one_per_cent():
    for one in map(hosim.read_kineto, SAMPLES):
        assert abs(off(one)) <= one.recorded_ns / 10_000
