"""A step whose optimizer runs on the host, as its user meets it: a graph, a machine with cores, a table, a picture."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import simulator as hosim
from simulator import catalog
from simulator.cli import main
from simulator.errors import ConfigError
from simulator.report.readings import largest

MACHINE = """
schema: hosim/hardware/1
name: box
compute_tier: hbm
compute: {peak: {fp16: 71 TFLOP/s}}
host_compute: {tier: ddr, peak: {fp32: 1 TFLOP/s}}
tiers:
  hbm: {capacity: 24 GB, bandwidth: 936 GB/s}
  ddr: {scope: node, capacity: 128 GB, bandwidth: 100 GB/s}
links:
  d2h: {source: hbm, target: ddr, bandwidth: 12 GB/s}
  h2d: {source: ddr, target: hbm, bandwidth: 12 GB/s}
"""
LAYERS, PARAMETERS = 3, 100_000_000


def write(folder: Path, machine: str = MACHINE, dtype: str = "fp32") -> Path:
    """A scenario of a few layers; Adam of each reads and writes 14 B a parameter where the host is."""
    lines: list[dict[str, object]] = [{"schema": "hosim-graph/1", "name": "adam", "steps": 2}]
    for i in range(LAYERS):
        lines.append({"tensor": f"L{i}/w", "size_bytes": 2 * PARAMETERS, "kind": "weight", "persistent": True})
        lines.append(
            {"tensor": f"L{i}/m", "size_bytes": 12 * PARAMETERS, "kind": "optimizer_state", "persistent": True}
        )
        lines.append({"tensor": f"L{i}/g", "size_bytes": 2 * PARAMETERS, "kind": "gradient"})
    for i in reversed(range(LAYERS)):
        lines.append({"op": f"L{i}/bwd", "reads": [f"L{i}/w"], "writes": [f"L{i}/g"], "duration_ns": 20_000_000})
        adam = {"reads": [f"L{i}/g", f"L{i}/m"], "writes": [f"L{i}/m", f"L{i}/w"], "device": "host", "dtype": dtype}
        traffic = {"read_bytes": 14 * PARAMETERS, "write_bytes": 14 * PARAMETERS, "flops": 10 * PARAMETERS}
        lines.append({"op": f"L{i}/adam", **adam, **traffic})
    (folder / "adam.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (folder / "machine.yaml").write_text(machine)
    (folder / "workload.yaml").write_text("schema: hosim/workload/1\nname: adam\ngraph: adam.jsonl\n")
    rows = "[resident, static, reactive, lookahead, optimal, hybrid]"
    scenario = f"hardware: machine.yaml\nworkload: workload.yaml\npolicies: {rows}\n"
    (folder / "scenario.yaml").write_text(f"schema: hosim/scenario/1\nname: adam\n{scenario}")
    return folder / "scenario.yaml"


def test_an_update_on_the_host_takes_at_least_what_its_memory_does(tmp_path):
    """28 B a parameter at 100 GB/s: 84 ms, and more where copies share the memory; state and weights stay at home."""
    rows = hosim.run(write(tmp_path), policies=["resident", "static", "reactive", "lookahead"])
    floor_ns = LAYERS * 28 * PARAMETERS // 100
    for row in (rows[name].summary for name in ("resident", "static", "reactive", "lookahead")):
        assert row["status"] == "ok"
        assert floor_ns < row["host_compute_ns"] < 1.3 * floor_ns
        assert row["moved_d2h_bytes"] == row["moved_h2d_bytes"] == LAYERS * 2 * PARAMETERS
        assert row["wait_host_compute_ns"] > 0
        assert row["step_ns"] == row["compute_ns"] + row["stall_ns"] >= row["bound_ns"]
    waits = rows["static"].waits.query("cause == 'host_compute'")
    assert len(waits)
    assert set(waits["blocker"]) <= {f"L{i}/adam" for i in range(LAYERS)}, "the op that was under way, by its name"


def test_the_table_the_lanes_and_the_files_tell_of_it(tmp_path, capsys):
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        main(["run", str(write(tmp_path)), "--policy", "static", "--policy", "optimal", "--out", str(out)])
    told = capsys.readouterr()
    assert ended.value.code == 0, told.err
    assert "host compute" in told.out
    assert "optimal  refused" in told.out
    with gzip.open(out / "static" / "trace.perfetto.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"stream 0", "host, stream 1", "host, stream 1 stalls"} <= names
    assert (out / "static" / "timeline.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("machine", "dtype", "message"),
    [
        (MACHINE.replace("host_compute:", "# host_compute:"), "fp32", "op 'L2/adam' is of the host"),
        (MACHINE, "bf16", "host_compute.peak: the data type of every op has a peak rate"),
        (MACHINE.replace(", bandwidth: 100 GB/s", ""), "fp32", "cores of the host work in has a bandwidth, found none"),
        (MACHINE.replace("{tier: ddr,", "{tier: hbm,"), "fp32", "work in another tier than the compute tier"),
    ],
)
def test_a_machine_that_cannot_is_refused_before_anything_runs(machine, dtype, message, tmp_path):
    with pytest.raises(ConfigError) as caught:
        hosim.run(write(tmp_path, machine, dtype))
    assert message in str(caught.value)


def test_a_row_that_does_not_fit_says_what_would_be_enough(tmp_path):
    """The rooms are tried with what the host needs, too."""
    row = hosim.run(write(tmp_path), set={"budget": "150 MB"}, policies=["static"])["static"]
    assert row.status == "infeasible"
    assert row.shortfall is not None
    assert row.shortfall.rooms
    assert hosim.run(write(tmp_path), set={"budget": f"{row.shortfall.rooms[0]['hbm']} B"}, policies=["static"])[
        "static"
    ].is_ok


def test_a_plan_of_hosim_has_no_fault_where_the_host_reads_what_was_copied_down(tmp_path, capsys):
    hosim.run(write(tmp_path), policies=["static"]).write(tmp_path / "out")
    plan = next((tmp_path / "out").rglob("plan.jsonl"))
    with pytest.raises(SystemExit) as ended:
        main(["lint", str(plan), "--scenario", str(tmp_path / "scenario.yaml")])
    assert ended.value.code == 0, capsys.readouterr().out


def test_the_longest_stalls_are_not_those_of_the_host(tmp_path):
    row = hosim.run(write(tmp_path), policies=["static"])["static"]
    stalls = largest(row)
    assert stalls
    assert not {stall["stream"] for stall in stalls} & row.graph.host_streams


def test_experts_on_the_host_run_beside_those_on_the_accelerator():
    """What both read is freed below only behind the op that reads it above."""
    changes = {
        "workload.on": {"experts": {"host": 0.75, "choices": 0.4}},
        "tiers.ddr.bandwidth": "400 GB/s",
        "host_compute": {"tier": "ddr", "peak": {"bf16": "5 TFLOP/s"}},
        "workload.model.layers": 4,
    }
    loaded = catalog.resolve(catalog.scenario_of("h100_sxm", "qwen3_30b_decode", ["static"]), changes)
    spans = hosim.run(loaded)["static"].spans
    ops = spans[(spans["kind"] == "compute") & (spans["step"] == 1)].set_index("name")
    host, above = (ops.loc[f"step1/L01/decode/ffn.experts.{side}"] for side in ("host", "accelerator"))
    assert above["start_ns"] < host["end_ns"]
