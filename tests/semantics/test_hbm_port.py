"""Kernels, copies and collectives that share the bandwidth of the memory, each with an exact timeline.

They do where kernels of a device run on more than one stream, as here two ops that do nothing and end each story, on
streams of their own; or on one stream, where the machine says so, with the same result. The first three are cases of
XLA's own simulator of copies beside memory-bound kernels, with 1 byte per ns here for the 1 byte per second there:
totals and shares are counted by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bounding import bound
from pydantic import ValidationError
from rank_stories import cluster, perform, spans, team
from stories import graph, machine, timeline

from simulator.cost import durations_ns
from simulator.engine.reference.kernels import Kernels
from simulator.errors import InvariantError
from simulator.graph import Graph, Op
from simulator.hardware import Hardware
from simulator.metrics import summarise
from simulator.trace import Trace

TICK = "; compute tick 8; compute tock 9"


def port(**links: dict[str, Any]) -> Hardware:
    """A memory of 1 byte per ns, and links that would be faster."""
    fast = {"bandwidth": "inf"}
    document = machine(
        "1 kB", compute={"peak": {"bf16": "inf"}}, h2d=fast | links.get("h2d", {}), d2h=fast | links.get("d2h", {})
    )
    made = document.model_dump(by_alias=True)
    made["tiers"]["hbm"]["bandwidth"] = "1 GB/s"
    return Hardware.model_validate(made)


PAIR = {"pair": ((0, 1),)}


def by_traffic(g: Graph, *names: str) -> Graph:
    """The same ops, the named ones as long as their traffic takes."""
    return replace(g, ops=tuple(replace(op, duration_ns=None) if op.name in names else op for op in g.ops))


def beside(g: Graph) -> Graph:
    """The same ops, and two more that do nothing."""
    return replace(g, ops=(*g.ops, Op("tick"), Op("tock")))


def told(trace: Trace, g: Graph, hardware: Hardware) -> list[str]:
    """The timeline without these."""
    return [line for line in timeline(trace, beside(g), hardware) if not line.endswith((" tick", " tock"))]


def test_a_copy_beside_a_memory_bound_kernel_takes_as_long_as_both_together():
    """XLA: a copy of 32 bytes beside a kernel that reads 16 takes 48 in all."""
    g = by_traffic(graph("w 32 persistent, x 16 persistent", "f: x ->, 0 ns", "g: w ->, 1 ns"), "f")
    t = judged(port(), g, "copy w ddr hbm; compute f; compute g; detach w hbm", "w ddr, x hbm")
    assert told(t, g, port()) == ["0-48 h2d w", "0-32 f", "48-49 g"]


def test_a_short_copy_out_beside_a_long_copy_in():
    """XLA: 512 bytes in and 128 out: the copy out takes 256, 384 of the copy in remain and take 384 alone."""
    g = graph("w 512 persistent, a 128 persistent", "f: w ->, 1 ns")
    plan = "copy a hbm ddr; copy w ddr hbm; compute f; detach a ddr; detach w hbm"
    t = judged(port(), g, plan, "w ddr, a hbm")
    assert told(t, g, port()) == ["0-256 d2h a", "0-640 h2d w", "640-641 f"]


@pytest.mark.parametrize(("copies", "each"), [(1, 64), (2, 32)])
def test_a_kernel_that_is_busy_elsewhere_leaves_the_memory_to_copies(copies, each):
    """XLA: while a kernel works for 64 in other memory, 64 bytes of one copy come, or 32 of each of two."""
    tensors = ", ".join(f"w{i} {each} persistent" for i in range(copies))
    g = graph(tensors, "f: ->, 64 ns", f"g: {' '.join(f'w{i}' for i in range(copies))} ->, 1 ns")
    named = [f"w{i}" for i in range(copies)]
    plan = "; ".join(
        [*(f"copy {w} ddr hbm" for w in named), "compute f; compute g", *(f"detach {w} hbm" for w in named)]
    )
    h = port(h2d={"channels": 2, "sharing": "fair"})
    t = judged(h, g, plan, ", ".join(f"{w} ddr" for w in named))
    assert told(t, g, h) == [*(f"0-64 h2d {w}" for w in named), "0-64 f", "64-65 g"]


def test_a_launch_and_arithmetic_take_no_bandwidth():
    """Traffic of 16 bytes begins after a launch of 10, and the kernel ends with its arithmetic if that takes longer."""
    document = port().model_dump(by_alias=True)
    document["compute"] = {"peak": {"bf16": "1 TFLOP/s"}, "launch": "10 ns"}
    h = Hardware.model_validate(document)
    g = by_traffic(graph("w 32 persistent, x 16 persistent", "f: x ->, 0 ns", "g: w ->, 1 ns"), "f")
    g = replace(g, ops=(replace(g.ops[0], flops=100_000), g.ops[1]))
    t = judged(h, g, "copy w ddr hbm; compute f; compute g; detach w hbm", "w ddr, x hbm")
    assert told(t, g, h) == ["0-48 h2d w", "0-110 f", "110-111 g"], "10 alone, 32 beside, 6 alone; 10 + 100"


def judged(hardware: Hardware, g: Graph, text: str, home: str) -> Trace:
    """Run a plan beside ops on other streams, and have the referee judge it; on one stream it is the same if said."""
    trace = perform(hardware, [(beside(g), text + TICK)], home)
    alone = perform(shared(hardware), [(g, text)], home)
    assert timeline(alone, g, hardware) == told(trace, g, hardware)
    return trace


def shared(hardware: Hardware) -> Hardware:
    """The same machine, whose kernels of one stream share its memory with copies."""
    hbm = hardware.tiers["hbm"].model_copy(update={"shared": True})
    return hardware.model_copy(update={"tiers": {**hardware.tiers, "hbm": hbm}})


def test_on_one_stream_copies_take_nothing_unless_the_machine_says_so():
    g = by_traffic(graph("w 32 persistent, x 16 persistent", "f: x ->, 0 ns", "g: w ->, 1 ns"), "f")
    plan = "copy w ddr hbm; compute f; compute g; detach w hbm"
    fast = port(h2d={"bandwidth": "1 GB/s"})
    assert timeline(perform(fast, [(g, plan)], "w ddr, x hbm"), g, fast) == ["0-32 h2d w", "0-16 f", "32-33 g"]
    fast = shared(fast)
    assert timeline(perform(fast, [(g, plan)], "w ddr, x hbm"), g, fast) == ["0-48 h2d w", "0-32 f", "48-49 g"]


def test_only_the_memory_that_kernels_work_in_is_shared_with_them():
    document = port().model_dump(by_alias=True)
    document["tiers"]["ddr"]["shared"] = True
    with pytest.raises(ValidationError, match="kernels share the memory of the compute tier, no other"):
        Hardware.model_validate(document)


def cluster_port(memory: str) -> Hardware:
    """Two ranks whose ports carry 1 byte per ns each way, and whose memory has so much."""
    document = cluster(2, compute={"peak": {"bf16": "inf"}}).model_dump(by_alias=True)
    document["tiers"]["hbm"]["bandwidth"] = memory
    return Hardware.model_validate(document)


def test_a_member_of_a_collective_reads_what_it_sends_and_writes_what_it_receives():
    """A sum of 32 bytes sends 32 and receives 32: 64 bytes of memory, shared with a kernel beside it."""
    tensors, ops = "a 32 persistent, x 19 persistent", ("sum: a -> a, all_reduce all 32", "f: x ->, 0 ns")
    g = by_traffic(team(tensors, *ops, groups={"all": ((0, 1),)}), "f")
    programs = [(g, "compute sum 1; compute f")] * 2
    h = cluster_port("2 GB/s")
    apart = perform(h, programs, "a hbm, x hbm")
    assert spans(apart, programs, h)[:2] == ["0: 0-32 sum", "0: 0-10 f"], "a port's 1 byte per ns; 19 at 2"
    together = [(beside(g), text + TICK) for g, text in programs]
    t = perform(h, together, "a hbm, x hbm")
    found = [span for span in spans(t, together, h) if not span.endswith((" tick", " tock"))][:2]
    assert found == ["0: 0-42 sum", "0: 0-29 f"], "2/3 each until 28.5, then the rest of the sum at 1"


def test_a_message_is_read_where_it_is_sent_and_written_where_it_is_received():
    """Rank 0 sends 30 beside a kernel of 15 in a memory of 1 byte per ns; rank 1 has nothing else to do."""
    out = by_traffic(
        team("a 30 persistent, x 15 persistent", "give: a ->, send pair 30", "f: x ->, 0 ns", groups=PAIR), "f"
    )
    into = team("a 30 persistent", "take: a -> a, recv pair 30", groups=PAIR)
    programs = [(out, "compute give 1; compute f"), (into, "compute take 1")]
    h = cluster_port("1 GB/s")
    programs = [(beside(g), text + TICK) for g, text in programs]
    t = perform(h, programs, "a hbm, x hbm")
    found = [span for span in spans(t, programs, h) if not span.endswith((" tick", " tock"))]
    assert found == ["0: 0-45 give", "0: 0-30 f", "1: 0-45 take"]


def test_the_referee_counts_what_passes_the_memory(monkeypatch):
    """If kernels did not let copies take their bandwidth, 48 bytes would pass a memory of 1 byte per ns in 32."""
    monkeypatch.setenv("HOSIM_ENGINE", "simpy")
    monkeypatch.setattr(Kernels, "run", lambda self, compute: iter([self.rank.clock.end_after(compute.duration_ns)]))
    g = by_traffic(graph("w 32 persistent, x 16 persistent", "f: x ->, 0 ns", "g: w ->, 1 ns"), "f")
    with pytest.raises(InvariantError, match="a memory carries at most its bandwidth"):
        judged(port(), g, "copy w ddr hbm; compute f; compute g; detach w hbm", "w ddr, x hbm")


def test_a_step_may_be_shorter_than_its_last_op_is_late_in_the_step_before():
    """What stretches g more in the first step brings the ends of the two steps closer than their starts."""
    h = shared(port(h2d={"bandwidth": "300 MB/s"}, d2h={"bandwidth": "1 GB/s"}))
    ops = ("f: v -> u, 10 ns", "g: x ->, 0 ns")
    g = by_traffic(graph("v 60 persistent, u 50 persistent, x 50 persistent", *ops, steps=2), "g")
    plan = "copy v ddr hbm; compute f; detach u ddr; detach v hbm; compute g; copy u hbm ddr; detach u hbm"
    t = perform(h, [(g, plan)], "v ddr, u ddr, x hbm")
    lines = ["0-200 h2d v", "200-210 f", "210-353 g", "210-353 d2h u", "210-410 h2d v"]
    assert timeline(t, g, h)[:5] == lines
    step_ns, homes = summarise(g, h, t)["step_ns"], [1, 1, 0]
    assert step_ns >= bound(g, h, durations_ns(g, h), homes, 10**3).ns
