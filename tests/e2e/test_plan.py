"""`hosim plan`: the plan, its reasons, its files; and the way back from the file."""

import csv
import json
import re

import chain
import pandas as pd
import pytest

import simulator
from simulator.report import tables


def test_plan_tells_what_moves_and_why(hosim, scenario):
    done = hosim("plan", scenario)
    assert done.code == 0
    for part in ("move: ", "keep: ", "cache operators, the cost terms", "links, in 64 slots", "oversubscribed"):
        assert part in done.out
    assert len(done.out.splitlines()) < 60


def test_plan_tells_one_tensor_in_full(hosim, scenario):
    done = hosim("plan", scenario, "--tensor", "a0")
    assert done.code == 0
    assert "idle from fwd/1 to bwd/0" in done.out
    assert "prefetch before" in done.out
    missing = hosim("plan", scenario, "--tensor", "a00")
    assert missing.code == 1
    assert "did you mean" in missing.err


@pytest.mark.usefixtures("pictures_are_blank")
def test_plan_writes_a_folder_and_replaces_it(hosim, scenario, tmp_path):
    out = tmp_path / "out"
    for _ in range(2):
        assert hosim("plan", scenario, "--out", out).code == 0
    names = {path.name for path in out.iterdir()}
    assert names == {
        "plan.jsonl", "augmented.json", "explanation.txt", "decisions.csv", "cache_ops.csv", "ledger.csv",
        "plan.png", "summary.csv", "summary.json",
    }  # fmt: skip
    assert set(json.loads((out / "summary.json").read_bytes())["files"]) == names
    with (out / "decisions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["decision"] for row in rows} == {"keep", "move"}
    for row in rows:
        terms = sum(float(value) for key, value in row.items() if key.startswith("term_"))
        assert abs(terms - float(row["score"])) < 1e-3 * max(1, abs(terms))


@pytest.mark.slow
def test_a_written_plan_replays_to_the_same_bytes(hosim, scenario, tmp_path):
    assert hosim("plan", scenario, "--out", tmp_path / "planned").code == 0
    text = chain.SCENARIO.replace("- static", "- static\n  - planned/plan.jsonl")
    (tmp_path / "again.yaml").write_text(text, encoding="utf-8")
    if scenario.parent != tmp_path:
        chain.write(tmp_path)
    asked = ("--policy", "static", "--policy", "plan", "--out", tmp_path / "ran")
    assert hosim("run", tmp_path / "again.yaml", *asked).code == 0
    for table in ("spans.csv", "waits.csv", "memory.csv"):
        one, other = ((tmp_path / "ran" / row / table).read_bytes() for row in ("static", "plan"))
        assert one == other
    one, other = ((tmp_path / "ran" / row / "plan.jsonl").read_bytes() for row in ("static", "plan"))
    assert one == other
    drawn = (tmp_path / "planned" / "plan.png").read_bytes()
    assert drawn == (tmp_path / "ran" / "static" / "timeline.png").read_bytes()
    plan = tmp_path / "planned" / "plan.jsonl"
    (tmp_path / "wrong.jsonl").write_text(
        plan.read_text().replace('{"copy":"a0"', '{"copy":"nope"', 1), encoding="utf-8"
    )
    wrong = hosim("check", tmp_path / "wrong.jsonl", "--scenario", scenario)
    assert wrong.code == 1
    assert "a plan names tensors of its run, found 'nope'" in wrong.err


@pytest.mark.usefixtures("pictures_are_blank")
def test_another_policy_is_planned_without_reasons(hosim, scenario, tmp_path):
    done = hosim("plan", scenario, "--policy", "reactive", "--out", tmp_path / "out")
    assert done.code == 0
    assert "Only 'static' explains" in done.out
    assert (tmp_path / "out" / "plan.jsonl").exists()
    assert (tmp_path / "out" / "plan.png").exists()
    assert hosim("plan", scenario, "--policy", "reactive", "--tensor", "a0").code == 1


@pytest.mark.usefixtures("pictures_are_blank")
def test_a_plan_is_called_written_only_if_it_is(hosim, scenario, tmp_path):
    assert "written" not in hosim("plan", scenario, "--policy", "reactive").out
    assert f"Plan: {tmp_path / 'out' / 'plan.jsonl'}" in hosim("plan", scenario, "--out", tmp_path / "out").out


def test_what_does_not_fit_is_told_with_a_way_out(hosim, scenario):
    small = scenario.with_name("small.yaml")
    small.write_text(chain.SCENARIO.replace("4.3 MB", "1 MB"), encoding="utf-8")
    done = hosim("plan", small)
    assert done.code == 1
    assert "must fit in hbm" in done.err


def test_a_plan_that_blocks_itself_says_who_waits_for_whom(hosim, scenario):
    chain.write_lines(scenario.with_name("mine.jsonl"), chain.plan_lines())
    mine = scenario.with_name("mine.yaml")
    mine.write_text(chain.SCENARIO.replace("- static", "- mine.jsonl"), encoding="utf-8")
    told = hosim("plan", mine, "--policy", "mine").out.splitlines()
    assert told[0] == "mine on chain: blocked"
    assert told[1].startswith("op 'fwd/4' (action 4) waits for 1.00 MB of room in hbm")


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_are_blank")
def test_what_runs_again_is_told_and_written(hosim, tmp_path):
    out = tmp_path / "out"
    done = hosim("plan", "tiny_train_910c", "--policy", "static with recompute", "--out", out)
    assert done.code == 0
    assert "recompute: 4 idle intervals, 50.3 MB" in done.out
    assert "-" not in done.out.splitlines()[0].split("a step, ")[1].split(" % above")[0]
    steps = [json.loads(line) for line in (out / "plan.jsonl").read_text(encoding="utf-8").splitlines()]
    assert steps[0]["policy"] == "static with recompute"
    runs = [step["compute"] for step in steps if "compute" in step]
    assert len(runs) > len(set(runs))
    with (out / "decisions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    again = [row for row in rows if row["decision"] == "recompute"]
    assert {row["made_by"] for row in again} == {f"L0{i}/fwd/ffn.silu#2" for i in range(4)}
    assert all(0 < int(row["remake_ns"]) < int(row["out_ns"]) + int(row["in_ns"]) for row in again)
    assert any(row["remake_ns"] for row in rows if row["decision"] == "move")
    told = hosim("plan", "tiny_train_910c", "--policy", "static with recompute", "--tensor", "L00/ffn.silu.out")
    assert "recompute: remaking it takes less time than its copies" in told.out
    assert "remaking it by L00/fwd/ffn.silu#2 takes 18.7 us, its copies 752 us" in told.out
    told = hosim("plan", "tiny_train_910c", "--policy", "static with recompute", "--tensor", "embed/tokens.out")
    assert "remaking it takes " in told.out


@pytest.mark.slow
def test_a_plan_is_called_by_its_row_and_read_by_any(hosim, tmp_path):
    out = tmp_path / "ran"
    assert hosim("run", "tiny_train_910c", "--policy", "static with recompute", "--out", out).code == 0
    (path,) = out.glob("*/plan.jsonl")
    with path.open(encoding="utf-8") as file:
        assert json.loads(file.readline())["policy"] == "static with recompute"
    again = hosim("plan", out / "scenario.yaml", "--policy", "static with recompute", "--out", tmp_path / "planned")
    assert again.code == 0
    assert (tmp_path / "planned" / "plan.jsonl").read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_plan_says_what_run_says_of_what_cannot_fit(hosim):
    less = ("--set", "tiers.ddr.capacity=10 MB")
    planned, ran = hosim("plan", "tiny_train_910c", *less), hosim("run", "tiny_train_910c", *less)
    assert planned.code == 1
    assert "must fit in hbm" in planned.err
    assert "71,131,008 B short" in planned.err
    assert "offload_saved and static do not fit in hbm: 71.1 MB short" in ran.out


@pytest.mark.usefixtures("pictures_are_blank")
def test_what_a_prefetch_is_waited_for_is_what_the_run_waits(hosim, tmp_path):
    name = "tiny_train_910c"
    assert hosim("plan", name, "--out", tmp_path / "plan").code == 0
    told = pd.read_csv(tmp_path / "plan" / "cache_ops.csv")
    row = simulator.run(name, policies=["static"])["static"]
    waits = row.waits[row.waits["step"] == row.waits["step"].max()]
    lacked = waits[waits["tensor"].isin(set(told.loc[told["role"] == "prefetch", "tensor"]))]
    expected = (lacked["end_ns"] - lacked["start_ns"]).groupby(lacked["tensor"]).sum()
    found = told[told["waited_ns"] > 0].groupby("tensor")["waited_ns"].sum()
    assert found.to_dict() == expected.to_dict()
    assert found.sum() > 0


def test_planning_tells_how_far_it_is(hosim, scenario, monkeypatch):
    monkeypatch.setattr(tables, "SELDOM_S", 0)
    done = hosim("plan", "tiny_train_910c")
    assert re.search(r"hosim: after \d+ s: static, plan 2 is tried\n", done.err)
    less = hosim("plan", "tiny_train_910c", "--set", "tiers.ddr.capacity=10 MB")
    assert re.search(r"hosim: after \d+ s: static, how much room is enough", less.err)
    monkeypatch.undo()
    assert hosim("plan", scenario).err == ""
