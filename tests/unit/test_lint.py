"""`hosim lint`: every fault of a plan that was written elsewhere, by the referee's own rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stories import graph, machine, steps

from simulator import catalog, cli, formats
from simulator.cli.check import lint
from simulator.errors import PlanError
from simulator.formats import graph_jsonl, plan_jsonl
from simulator.graph import Graph
from simulator.plan import NOWHERE, Plan
from simulator.referee import check_plan

MACHINE = machine()
GRAPH = graph(
    "w 10 persistent, v 10 persistent, a 30, b 30, c 30", "f: w -> a, 10 ns", "g: a -> b, 10 ns", "h: a v b -> c, 10 ns"
)
GOOD = (
    "copy w ddr hbm; compute f; detach w hbm; compute g; copy v ddr hbm; compute h; detach v hbm; detach a hbm;"
    "detach b hbm; detach c hbm"
)


def write(folder: Path, text: str, ops: Graph = GRAPH) -> tuple[Path, Path]:
    """Write a plan, whose weights live in ddr, and its graph."""
    home = tuple(1 if t.persistent else NOWHERE for t in ops.tensors)
    plan = Plan("elsewhere", MACHINE.tier_names, home, steps(ops, MACHINE, text))
    plan_jsonl.write(plan, ops, folder / "plan.jsonl")
    graph_jsonl.write(ops, folder / "graph.jsonl")
    return folder / "plan.jsonl", folder / "graph.jsonl"


def found(folder: Path, text: str, budget: str | None = "100 B", ops: Graph = GRAPH) -> list[tuple[str, str, str]]:
    plan, of = write(folder, text, ops)
    return [(fault.kind, fault.op, fault.tensor) for fault in lint(plan, None, of, None, budget)]


def test_a_good_plan_has_no_fault(tmp_path: Path) -> None:
    assert found(tmp_path, GOOD) == []


CASES = {
    "use before the prefetch": (
        GOOD.replace("copy v ddr hbm; compute h", "compute h; copy v ddr hbm"), ("use before the prefetch", "h", "v")),
    "detach before the store": (
        GOOD.replace("compute g;", "detach a hbm; compute g;").replace("detach a hbm;detach", "detach"),
        ("detach before the store", "g", "a")),
    "copy that nobody waits for": (
        GOOD.replace("compute g;", "copy w ddr hbm; compute g; detach w hbm;"),
        ("copy that nobody waits for", "", "w")),
    "store that nothing reads": (
        GOOD.replace("compute g;", "copy a hbm ddr; compute g; detach a ddr;"),
        ("copy that nobody waits for", "", "a")),
    "double prefetch": (
        GOOD.replace("compute f;", "copy w ddr hbm; compute f;"), ("double prefetch", "", "w")),
    "double detach": (GOOD.replace("detach w hbm;", "detach w hbm; detach w hbm;"), ("double detach", "", "w")),
    "left behind": (GOOD.replace("; detach v hbm", ""), ("not as the step began", "", "v")),
    "op left out": (GOOD.replace("compute h;", "").replace("detach c hbm", ""), ("op left out", "", "")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_fault_is_told_in_the_words_of_who_wrote_the_plan(tmp_path: Path, name: str) -> None:
    text, fault = CASES[name]
    assert fault in found(tmp_path, text.rstrip("; "))


def test_all_faults_are_told_and_each_once(tmp_path: Path) -> None:
    text = (
        "compute f; copy w ddr hbm; copy w ddr hbm; detach a hbm; compute g; copy v ddr hbm; detach v hbm; compute h;"
        "detach b hbm; detach c hbm"
    )
    assert found(tmp_path, text) == [
        ("use before the prefetch", "f", "w"),
        ("double prefetch", "", "w"),
        ("detach before the store", "g", "a"),
        ("use before the prefetch", "h", "v"),
        ("not as the step began", "", "w"),
        ("not as the step began", "", "v"),
        ("not as the step began", "", "a"),
        ("copy that nobody waits for", "", "v"),
    ]


def test_a_weight_that_a_step_updates_is_not_written_after_its_end(tmp_path: Path) -> None:
    """Though the step has another fault, by which it does not end as it began."""
    ops = graph("w 10 persistent, a 30", "f: w -> a, 10 ns", "update: a -> w, 10 ns")
    text = "copy w ddr hbm; compute f; compute update; copy w hbm ddr; detach w hbm"
    assert found(tmp_path, f"{text}; detach a hbm", ops=ops) == []
    assert found(tmp_path, text, ops=ops) == [("not as the step began", "", "a")]


def test_a_late_prefetch_is_named_as_the_mend(tmp_path: Path) -> None:
    plan, of = write(tmp_path, GOOD.replace("copy v ddr hbm; compute h", "compute h; copy v ddr hbm"))
    (fault,) = [fault for fault in lint(plan, None, of, None, None) if fault.op == "h"]
    assert "it comes by action 5" in fault.error.found
    assert fault.error.do == "issue action 5 before this one"


def test_the_budget_is_that_of_the_compute_tier_as_issued(tmp_path: Path) -> None:
    assert found(tmp_path, GOOD, "100 B") == []
    assert found(tmp_path, GOOD, "99 B") == [("budget exceeded", "h", "c")]
    assert found(tmp_path, GOOD, None) == []


def test_the_first_fault_is_the_referees(tmp_path: Path) -> None:
    """One set of rules: what the referee refuses first is the first fault."""
    for name, (text, _) in CASES.items():
        plan_file, of = write(tmp_path, text.rstrip("; "))
        plan = formats.read_plan(plan_file, GRAPH, MACHINE.tier_names)
        faults = lint(plan_file, None, of, None, None)
        if {fault.kind for fault in faults} <= {"copy that nobody waits for"}:
            check_plan(GRAPH, MACHINE, plan)
            continue
        with pytest.raises(PlanError) as caught:
            check_plan(GRAPH, MACHINE, plan)
        assert faults[0].error.must == caught.value.must, name


def test_the_command_ends_with_0_1_or_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: object) -> int:
        with pytest.raises(SystemExit) as end:
            cli.main(["lint", *map(str, words)])
        return int(end.value.code or 0)

    plan, of = write(tmp_path, GOOD)
    assert run(plan, "--graph", of) == 0
    assert "no fault" in capsys.readouterr().out
    plan, of = write(tmp_path, GOOD.replace("compute f;", "copy w ddr hbm; compute f;"))
    assert run(plan, "--graph", of, "--json") == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert row["kind"] == "double prefetch"
    assert row["action"] == 1
    assert row["tensor"] == "w"
    assert row["mend"] == "drop this copy"
    assert run(of, "--graph", of) == 2
    assert run(plan) == 2
    assert run(plan, "--graph", of, "--scenario", "tiny_train_910c") == 2
    text = plan.read_text().replace('"tiers":["hbm","ddr"],', "")
    plan.write_text(text)
    assert run(plan, "--graph", of) == 2
    assert "a plan's header names its tiers" in capsys.readouterr().err


def test_plans_of_hosim_have_no_fault(tmp_path: Path) -> None:
    from simulator.run.case import prepare

    case = prepare(catalog.resolve("tiny_train_910c"), with_bounds=False)
    rows = case.rows()
    for name in ("offload_saved", "recompute"):
        plan = rows[name](case.problem)
        plan_jsonl.write(plan, case.graph, tmp_path / "plan.jsonl")
        assert lint(tmp_path / "plan.jsonl", "tiny_train_910c", None, None, None) == [], name
