"""Delays: they hold their stream and compute nothing, while copies and other streams go on."""

from __future__ import annotations

import chain
import orjson
import pytest
from matplotlib.colors import to_rgba
from matplotlib.text import Text
from rank_stories import cluster, perform, spans, stalls, team
from stories import graph, machine, steps, timeline, waits

import simulator as hosim
from simulator import engine, metrics
from simulator.errors import ConfigError, InvariantError
from simulator.formats import graph_jsonl
from simulator.graph import Graph, Job, Op, OpKind
from simulator.graph_builder import GraphBuilder
from simulator.metrics import RankRun, rank_figures
from simulator.plan import NOWHERE, Plan
from simulator.referee import check_trace
from simulator.report import drawing, perfetto, tables

TOOL = graph("w 40 persistent, o 8", "f: ->, 10 ns", "tool: -> o, 50 ns, delay", "g: o w ->, 5 ns")
PLAN = "compute f; copy w ddr hbm; compute tool; compute g; detach w hbm"


def test_copies_go_on_beside_a_delay_and_its_time_is_its_own():
    h = machine("48 B")
    t = perform(h, [(TOOL, PLAN)], "w ddr")
    assert timeline(t, TOOL, h) == ["0-10 f", "0-40 h2d w", "10-60 tool", "60-65 g"]
    assert waits(t, TOOL) == []
    row = rank_figures(TOOL, h, RankRun.of(TOOL, h, t))
    assert (row["compute_ns"], row["recompute_ns"], row["delay_ns"], row["stall_ns"]) == (15, 0, 50, 0)
    assert row["step_ns"] == 65
    assert (row["transfer_ns"], row["hidden_fraction"]) == (40, 1)


def test_a_delay_waits_for_what_it_reads_and_for_room_like_any_compute():
    g = graph("w 40 persistent, o 30", "tool: w -> o, 50 ns, delay", "g: o ->, 5 ns")
    h = machine("70 B")
    t = perform(h, [(g, "copy w ddr hbm; compute tool; detach w hbm; compute g")], "w ddr")
    assert timeline(t, g, h) == ["0-40 h2d w", "40-90 tool", "90-95 g"]
    assert waits(t, g) == ["0-40 tool transfer"]


def test_a_delay_shares_the_device_with_nobody():
    """Two kernels would share the unit and take twice their time; a delay on the other stream leaves it to one."""
    h = machine("1 kB", compute={"peak": {"bf16": "1 GFLOP/s"}})
    g = Graph("ops", (), (Op("m", flops=40, op_class="matmul"), Op("tool", kind=OpKind.DELAY, duration_ns=30)))
    t = perform(h, [(g, "compute m 0; compute tool 1")])
    assert timeline(t, g, h) == ["0-40 m", "0-30 tool"]


def test_peers_wait_for_a_rank_that_is_delayed_and_a_delay_masks_no_collective():
    slow = team("x 1 persistent", "tool: ->, 30 ns, delay", "sum: ->, all_reduce all 40", "after: ->, 20 ns, delay",
                groups={"all": ((0, 1),)})  # fmt: skip
    quick = team("x 1 persistent", "sum: ->, all_reduce all 40", groups={"all": ((0, 1),)})
    h, programs = cluster(2), [(slow, "compute tool; compute sum 1; compute after"), (quick, "compute sum 1")]
    t = perform(h, programs)
    assert spans(t, programs, h) == ["0: 0-30 tool", "0: 0-40 sum", "0: 30-50 after", "1: 0-40 sum"]
    assert stalls(t, programs) == []
    rows = metrics.by_rank(Job("story", (slow, quick), (0, 1), ("slow", "quick")), h, t)
    assert (rows[0]["collective_ns"], rows[0]["masked_ns"], rows[0]["utilisation"]) == (40, 0, 0)


@pytest.mark.parametrize("took", [49, 51])
def test_a_delay_takes_its_time_to_the_nanosecond(took):
    h, home = machine("48 B"), (1, NOWHERE)
    plan = Plan("story", h.tier_names, home, steps(TOOL, h, f"{PLAN}; detach o hbm"))
    t = engine.run([engine.Program(TOOL, plan, [10, took, 5])], h)
    with pytest.raises(InvariantError, match="a compute takes its own time"):
        check_trace(TOOL, h, [plan], t)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {},
            "says how long it takes and varies, and computes nothing, found kind delay, duration_ns None",
        ),
        ({"duration_ns": None}, "found kind delay, duration_ns None"),
        ({"duration_ns": -1}, "duration_ns is a whole number from 0 to 2\\*\\*62, found -1"),
        ({"duration_ns": 5, "flops": 9}, "found flops"),
        ({"duration_ns": 5, "read_bytes": 9}, "found read_bytes; correct it"),
        ({"duration_ns": 5, "workspace_bytes": 9}, "found workspace_bytes"),
        ({"duration_ns": 5, "op_class": "matmul"}, "found op_class"),
        ({"duration_ns": 5, "device": "host"}, "an op of the host is of kind compute, .*, found delay"),
    ],
)
def test_what_no_delay_is(fields, message):
    with pytest.raises(ConfigError, match=message):
        GraphBuilder("g").op("tool", kind="delay", **fields)


def test_a_file_has_delays_and_reads_back_equal(tmp_path):
    builder = GraphBuilder("g")
    builder.tensor("o", 8)
    builder.op("tool", (), ("o",), kind="delay", duration_ns=200, phase="decode")
    builder.op("f", ("o",), duration_ns=5)
    g, path = builder.build(), tmp_path / "g.jsonl"
    graph_jsonl.write(g, path)
    again = graph_jsonl.read(path)
    assert again.ops == g.ops
    assert (again.ops[0].kind, again.ops[0].write_bytes, again.delays) == (OpKind.DELAY, 0, {0})


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The chain, with a tool of 600 us in forward and one in backward."""
    path = chain.write(tmp_path_factory.mktemp("tool"))
    lines = chain.graph_lines()
    for name, before in (("tool", "fwd/4"), ("again", "bwd/4")):
        place = next(i for i, line in enumerate(lines) if line.get("op") == before)
        lines.insert(place, {"op": name, "kind": "delay", "duration_ns": 600_000, "phase": "forward"})
    chain.write_lines(path.parent / "graph.jsonl", lines)
    return hosim.run(path)


def test_what_is_spent_on_delays_has_a_column_and_a_look_of_its_own(results):
    row = results["static"]
    assert (row.summary["compute_ns"], row.summary["delay_ns"]) == (1_300_000, 1_200_000)
    assert sum(row.spent.values()) == row.summary["step_ns"]
    assert row.summary["bound_ns"] >= 2_500_000
    assert "delay" in tables.plain([row])
    slices = [e for e in map(orjson.loads, perfetto.events(row)) if e["ph"] == "X" and e["cat"] == "delay"]
    assert [e["name"] for e in slices] == ["step0/tool", "step0/again", "step1/tool", "step1/again"]
    assert set(row.spans.query("name.str.contains('tool')")["kind"]) == {"delay"}
    legend = {text.get_text() for text in row.timeline().figure.findobj(Text)}
    assert {"delay", "forward"} <= legend
    assert to_rgba(drawing.PHASE["delay"]) in {p.get_facecolor() for p in results.comparison().figure.axes[0].patches}


def test_policies_hide_copies_under_delays(results, tmp_path):
    """Without tools the chain cannot hide what it has to move; with them, all of it."""
    plain = hosim.run(chain.write(tmp_path), policies=["static"])["static"].summary
    assert plain["stall_ns"] > 0
    assert results["static"].summary["stall_ns"] == 0
