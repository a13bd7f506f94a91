"""`hosim export`: other programs get the plan whole, or a refusal with its reason."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import chakra_replay
import jsonschema
import pytest
from stories import graph, machine, steps

from simulator import catalog, cli, formats
from simulator.errors import ConfigError
from simulator.exporters import to_chakra, to_residency
from simulator.formats import graph_jsonl, plan_jsonl, residency_json
from simulator.graph import Job
from simulator.importers.chakra import read_chakra
from simulator.plan import COMPUTE, COPY, NOWHERE, Actions, Plan
from simulator.policies.static import improve
from simulator.referee import check_plan
from simulator.run.case import execute, prepare
from simulator.trace import tuples

ROWS = ("reactive", "lookahead", "offload_saved", "recompute", "static", "static with recompute")


@pytest.fixture(autouse=True)
def plans_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(improve, "REPLAYS", 10)


def case_of(scenario: str, factor: float = 1):
    links = catalog.resolve(scenario).hardware.links.items()
    rates = {f"links.{name}.bandwidth": f"{int(link.bandwidth_bytes_per_s * factor)} B/s" for name, link in links}
    return prepare(catalog.resolve(scenario, rates if factor != 1 else None), with_bounds=False)


def plan_of(case, row: str) -> Plan:
    """The plan of a row; of a reactive one, what it issued."""
    plan = case.rows()[row](case.problem)
    if plan.fixed is None:
        issued = zip(*tuples(execute(case, [plan]).issued[0].whole(), "kind", "a", "b", "c"), strict=True)
        plan = replace(plan, actions=Actions.from_columns(*issued), repeats=1)
    return plan


def end_ns(case, plan: Plan) -> int:
    return int(execute(case, [plan]).spans.whole()["end_ns"].max())


def freed(case, plan: Plan) -> list[tuple[int, ...]]:
    """What gives its room back, in this order."""
    changes = tuples(execute(case, [plan]).residencies.whole(), "tier", "tensor", "delta_bytes")
    return [change for change in changes if change[2] < 0]


def replayed(case, plan: Plan, path: Path, factor: float = 1) -> int:
    """Export, and end of the trace in a replay that knows nothing of hosim."""
    sentences = to_chakra.write(case, case.tasks[0], plan, path)
    latency, rate = map(int, re.findall(r'latency": (\d+), "remote-mem-bw": (\d+)', sentences[1])[0])
    return chakra_replay.replay_ns(path, rate, latency // 1000, factor)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["tiny_train_910c", "tiny_train_t4"])
def test_a_replay_of_the_nodes_ends_at_the_same_nanosecond(tmp_path: Path, scenario: str) -> None:
    case, cases = case_of(scenario), {factor: case_of(scenario, factor) for factor in (2, 0.5)}
    exact = []
    for row in sorted(set(ROWS) & {*case.rows()}):
        plan = plan_of(case, row)
        assert replayed(case, plan, tmp_path / "plan.et") == end_ns(case, plan), row
        for factor, other in cases.items():
            found = replayed(case, plan, tmp_path / "plan.et", factor)
            exact.append(found == pytest.approx(end_ns(other, plan), rel=1e-5))  # a time is whole, a share here is not
            assert exact[-1] or freed(case, plan) != freed(other, plan), (row, factor)
    assert sum(exact) >= 0.9 * len(exact)


def test_a_dependency_that_does_not_bind_is_written(tmp_path: Path) -> None:
    """Without what frees room, or the compute that a copy starts with, another bandwidth would come out short."""
    hardware = machine("100 B")
    g = graph("w 40 persistent, a 40, b 40, c 10", "f: w -> a, 100 ns", "g: a -> b, 100 ns", "h: b w -> c, 10 ns")
    text = (
        "copy w ddr hbm; compute f; detach w hbm; compute g; copy a hbm ddr; detach a hbm; copy w ddr hbm; compute h;"
        "detach w hbm; detach b hbm; detach c hbm; detach a ddr"
    )
    plan = Plan("hand", hardware.tier_names, (1, NOWHERE, NOWHERE, NOWHERE), steps(g, hardware, text))
    case = own_case(g, hardware)
    to_chakra.write(case, case.tasks[0], plan, tmp_path / "plan.et")
    nodes = chakra_replay.nodes(tmp_path / "plan.et")
    names = {node["id"]: f"{node['name'].decode()}{'' if node['type'] == 4 else node['type']}" for node in nodes}
    after = [(names[node["id"]], sorted(names[other] for other in node["deps"])) for node in nodes]
    assert after == [
        ("w2", []),
        ("f", ["w2"]),
        ("g", ["f", "w2"]),  # w leaves before b has room
        ("a3", ["f", "w2"]),  # as g
        ("w2", ["a3", "g", "w2"]),  # its room is that of a, which g reads and the store copies
        ("h", ["a3", "g", "w2"]),
    ]
    assert [node["is_cpu_op"] for node in nodes] == [0, 0, 0, 1, 0, 0]


def test_a_compute_without_time_is_skipped(tmp_path: Path) -> None:
    """Else ASTRA-sim gives it a cycle or none, by what an unset number happens to be."""
    hardware, g = machine("100 B"), graph("a 40, b 40", "f: -> a, 0 ns", "g: a -> b, 7 ns")
    text = "compute f; compute g; detach a hbm; detach b hbm"
    plan = Plan("hand", hardware.tier_names, (NOWHERE,) * 2, steps(g, hardware, text))
    assert replayed(own_case(g, hardware), plan, tmp_path / "t.et") == 7


def test_more_nodes_than_astra_sim_runs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("tiny_train_910c")
    plan = plan_of(case, "recompute")
    to_chakra.write(case, case.tasks[0], plan, tmp_path / "whole.et")
    monkeypatch.setattr(to_chakra, "_WINDOW", len(chakra_replay.nodes(tmp_path / "whole.et")))
    with pytest.raises(ConfigError, match=r"ASTRA-sim runs fewer than \d+ nodes, found \d+; export fewer steps"):
        to_chakra.write(case, case.tasks[0], plan, tmp_path / "t.et")
    assert [path.name for path in tmp_path.iterdir()] == ["whole.et"]


def own_case(g, hardware):
    case = prepare(catalog.resolve("tiny_train_910c"), with_bounds=False)
    loaded = replace(case.loaded, hardware=hardware, is_job_given=True)
    story = loaded.scenario.model_copy(update={"homes": {}, "budget_bytes": None, "expect": ()})
    return prepare(replace(loaded, scenario=story), Job.of(g), with_bounds=False)


def test_it_imports_again_as_the_same_graph_and_plan(tmp_path: Path) -> None:
    case = case_of("tiny_train_910c")
    plan = plan_of(case, "static with recompute")
    to_chakra.write(case, case.tasks[0], plan, tmp_path / "t.et")
    written = read_chakra(tmp_path / "t.et").write(tmp_path / "t.yaml")
    assert [path.name for path in written] == ["t.yaml", "t.jsonl", "t.plan.jsonl"]
    assert graph_jsonl.read(tmp_path / "t.jsonl") == case.graph
    again = formats.read_plan(tmp_path / "t.plan.jsonl", case.graph, plan.tiers)
    assert (again.home, again.actions, again.repeats) == (plan.home, plan.actions, plan.repeats)


def test_a_trace_that_lost_nodes_is_refused(tmp_path: Path) -> None:
    case = case_of("tiny_train_910c")
    to_chakra.write(case, case.tasks[0], plan_of(case, "offload_saved"), tmp_path / "t.et")
    data = (tmp_path / "t.et").read_bytes()
    parts, offset = [], 0
    while offset < len(data):
        size, start = chakra_replay.varint(data, offset)
        parts.append(data[offset : start + size])
        offset = start + size
    (tmp_path / "t.et").write_bytes(b"".join(parts[:5] + parts[8:]))
    with pytest.raises(ConfigError, match=r"t\.et: lines that hosim wrote: the file has the"):
        read_chakra(tmp_path / "t.et")


def test_what_nodes_cannot_say_is_refused(tmp_path: Path) -> None:
    case = case_of("tiny_train_four_tiers")
    with pytest.raises(ConfigError, match="between the compute tier and one other"):
        to_chakra.write(case, case.tasks[0], plan_of(case, "offload_saved"), tmp_path / "t.et")
    assert [*tmp_path.iterdir()] == []
    case = prepare(catalog.resolve("tiny_train_910c", {"tiers.hbm.shared": True}), with_bounds=False)
    with pytest.raises(ConfigError, match="copies that take no bandwidth from kernels"):
        to_chakra.write(case, case.tasks[0], plan_of(case, "static"), tmp_path / "t.et")


def test_a_schedule_reads_again_as_the_same_moves(tmp_path: Path) -> None:
    case = case_of("tiny_train_910c")
    plan = plan_of(case, "static")
    to_residency.write(case, case.tasks[0], plan, tmp_path / "t.json")
    g = residency_json.read(tmp_path / "t.json", "writes")
    again = residency_json.read_plan(tmp_path / "t.json", g, plan.tiers)
    check_plan(g, case.hardware, again)

    def moves(of: Plan, names: list[str]) -> list[tuple[int, str, int, int]]:
        found, op = [], -1
        for kind, a, b, c in of.fixed or ():
            op = a if kind == COMPUTE else op
            if kind == COPY:
                found.append((op, names[a], b, c))
        return sorted(found)

    before = [f"s{t:0{len(str(len(case.graph.tensors) - 1))}d}" for t in range(len(case.graph.tensors))]
    assert moves(again, [t.name for t in g.tensors]) == moves(plan, before)
    schedule = json.loads((tmp_path / "t.json").read_bytes())["schedule"]
    assert {action for _, action, _ in schedule["pre"]} == {"COPY_H2D"}
    assert {action for _, action, _ in schedule["post"]} == {"COPY_D2H", "RELEASE_DEVICE", "RELEASE_HOST"}


def test_a_store_of_what_is_stale_below_releases_the_old_copy_first(tmp_path: Path) -> None:
    hardware = machine("100 B")
    g = graph("a 10, b 10", "f: -> a", "g: a -> a", "h: -> b", "k: a b ->")
    text = (
        "compute f; copy a hbm ddr; compute g; copy a hbm ddr; detach a hbm; compute h; copy a ddr hbm; compute k;"
        "detach a hbm; detach b hbm; detach a ddr"
    )
    plan = Plan("hand", hardware.tier_names, (NOWHERE, NOWHERE), steps(g, hardware, text))
    case = own_case(g, hardware)
    to_residency.write(case, case.tasks[0], plan, tmp_path / "t.json")
    schedule = json.loads((tmp_path / "t.json").read_bytes())["schedule"]
    assert schedule["pre"] == [[3, "COPY_H2D", 0]]
    assert schedule["post"][:4] == [
        [0, "COPY_D2H", 0], [1, "RELEASE_HOST", 0], [1, "COPY_D2H", 0], [1, "RELEASE_DEVICE", 0],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "must"),
    [("static with recompute", "all ops run once, in program order"), ("reactive", "")],
)
def test_what_a_schedule_cannot_say_is_refused(tmp_path: Path, row: str, must: str) -> None:
    case = case_of("tiny_train_910c")
    plan = plan_of(case, row)
    if not must:
        must = "there is one tier below"
        case = case_of("tiny_train_four_tiers")
        plan = plan_of(case, "offload_saved")
    with pytest.raises(ConfigError, match=must):
        to_residency.write(case, case.tasks[0], plan, tmp_path / "t.json")
    assert [*tmp_path.iterdir()] == []


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main([*map(str, words)])
    return int(end.value.code or 0)


def test_the_command_writes_each_form_or_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = case_of("tiny_train_910c")
    plan_jsonl.write(plan_of(case, "static"), case.graph, tmp_path / "plan.jsonl")
    options = tmp_path / "plan.jsonl", "--scenario", "tiny_train_910c"
    for form in ("chakra", "residency"):
        assert run("export", *options, "--to", form, "-o", tmp_path / form) == 0
        assert "written: " in capsys.readouterr().out
    assert run("export", *options, "--to", "sac", "-o", tmp_path / "sac.py") == 1
    assert "captured from PyTorch" in capsys.readouterr().err
    assert not (tmp_path / "sac.py").exists()
    text = (tmp_path / "plan.jsonl").read_text().splitlines()
    (tmp_path / "plan.jsonl").write_text(
        "\n".join([line for line in text if '"copy"' not in line]).replace('"actions"', '"x"')
    )
    assert run("export", *options, "--to", "chakra", "-o", tmp_path / "bad.et") == 1
    assert not (tmp_path / "bad.et").exists()


def test_the_schema_of_plans_accepts_what_is_read_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("schema", "plan") == 0
    check = jsonschema.Draft202012Validator(json.loads(capsys.readouterr().out)).is_valid
    case = case_of("tiny_train_910c")
    for row in ("static with recompute", "reactive"):
        plan = replace(plan_of(case, row), starts_ns=(0, 5), notes=("a note",))
        plan_jsonl.write(plan, case.graph, tmp_path / "plan.jsonl")
        lines = [json.loads(line) for line in (tmp_path / "plan.jsonl").read_text().splitlines()]
        assert all(map(check, lines))
    wrong = [
        {"schema": "hosim-plan/2"},
        {"schema": "hosim-plan/1", "repeats": 0},
        {"schema": "hosim-plan/1", "tiers": ["hbm", "hbm"]},
        {"copy": "w", "from": "ddr"},
        {"copy": "w", "from": "ddr", "to": "hbm", "more": 1},
        {"compute": 3},
        {"compute": "f", "stream": 1000},
        {},
    ]
    assert not any(map(check, wrong))
