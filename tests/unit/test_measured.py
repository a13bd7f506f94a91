"""What was measured of a step is a trace like a predicted one: counted, drawn and written by the same code."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

import hosim.torch  # noqa: E402 - it needs torch

from simulator.execute.measured import measured_row  # noqa: E402
from simulator.plan import COMPUTE, COPY  # noqa: E402
from simulator.report.timeline import scene  # noqa: E402

PACE = ("100 MB/s", "100 MB/s")


def made():
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)) for _ in "abcd"]
    options = {"optimizer": torch.optim.SGD, "loss": lambda made: made.square().mean()}
    return torch.nn.Sequential(*layers), torch.randn(256, 64), options


@pytest.fixture(scope="module")
def compared(quickly):
    """A small step under two policies, on a link that is slow enough to be waited for."""
    policies = ("static", "reactive", "resident")
    with quickly():
        return hosim.torch.compare(made, budget="2.6 MB", policies=policies, steps=2, pace=PACE)


def columns(table, *names):
    rows = table.whole()
    return zip(*(rows[name].tolist() for name in names), strict=True)


def test_rows_are_held_against_the_fastest_of_all(compared):
    for rows in ([*compared.results.values()], [row.measured for row in compared.results.values()]):
        steps = [row.summary["step_ns"] for row in rows]
        assert [row.summary["slowdown_vs_fastest"] for row in rows] == [step / min(steps) for step in steps]


def test_compute_and_waits_fill_the_time_until_the_last_op_has_ended(compared):
    assert any(len(row.measured.trace.waits) for row in compared.results.values())
    for row in compared.results.values():
        trace = row.measured.trace
        computes = [(a, b) for kind, a, b in columns(trace.spans, "kind", "start_ns", "end_ns") if kind == COMPUTE]
        parts = sorted([*computes, *columns(trace.waits, "start_ns", "end_ns")])
        assert parts[0][0] == 0
        assert all(end == start for (_, end), (start, _) in pairwise(parts))
        summary = row.measured.summary
        spent = summary["compute_ns"] + summary["stall_ns"] + summary["drain_ns"]
        assert spent == summary["step_ns"]


@pytest.mark.slow
@pytest.mark.parametrize("homes", [{}, {"optimizer_state": "disk"}], ids=["all above", "states below"])
def test_it_moves_and_holds_what_was_counted(homes):
    model, x, options = made()
    options["optimizer"] = torch.optim.Adam
    with hosim.torch.offload(model, budget="3.3 MB", pace=PACE, homes=homes, **options) as step:
        step.keep_traces()
        for _ in range(4):
            step(x)
        ran = step.steps[-1]
        summary = measured_row(step.predicted, ran.trace, round(ran.step_s * 1e9)).summary
        assert (summary["moved_d2h_bytes"], summary["moved_h2d_bytes"]) == (ran.out_bytes, ran.in_bytes)
        assert summary["peak_ram_bytes"] == ran.peak_bytes - step.beside_bytes <= step.predicted.budget_bytes
        assert summary["peak_disk_bytes"] == step.predicted.summary["peak_disk_bytes"] > 0
        assert summary["step_ns"] == round(ran.step_s * 1e9)


def test_copies_are_those_of_the_plan_one_after_the_other(compared):
    for row in compared.results.values():
        planned, ran = (
            [(item, track) for kind, item, track in columns(one.trace.spans, "kind", "item", "track") if kind == COPY]
            for one in (row, row.measured)
        )
        assert set(planned) <= set(ran)
        for link in (0, 1):
            spans = columns(row.measured.trace.spans, "kind", "track", "start_ns", "end_ns")
            times = sorted((start, end) for kind, track, start, end in spans if (kind, track) == (COPY, link))
            assert times
            assert all(end <= start for (_, end), (start, _) in pairwise(times))


def test_what_was_measured_is_drawn_under_what_was_predicted(compared):
    shown = scene(compared.results["static"])
    assert [lane.name for lane in shown.lanes] == [
        *("compute", "d2h", "h2d"),
        *("compute, measured", "d2h, measured", "h2d, measured"),
    ]
    assert [usage.tier for usage in shown.memories] == ["ram", "ram, measured", "disk", "disk, measured"]


def test_results_are_those_of_a_run_and_each_policy_predicts_again(compared, tmp_path):
    compared.write(tmp_path / "out", "hosim torch run")
    with gzip.open(tmp_path / "out" / "trace.perfetto.json.gz") as file:
        events = json.load(file)["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    kinds = [f"{policy}{kind}, process" for policy in ("static", "reactive") for kind in ("", ", measured")]
    assert names == dict(enumerate(kinds))
    assert {event["pid"] for event in events if event["ph"] == "X"} == {0, 1, 2, 3}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "compute, measured" in page
    assert "but for what was measured" in page
    assert len((tmp_path / "out" / "compared.csv").read_text().splitlines()) == 4
    assert (tmp_path / "out" / "static" / "measured" / "waits.csv").exists()
    again = hosim.run(tmp_path / "out" / "reactive" / "scenario.yaml")["reactive"]
    assert again.summary["step_ns"] == compared.results["reactive"].summary["step_ns"]


@pytest.mark.slow
def test_the_first_op_is_not_charged_for_what_an_earlier_step_waited():
    model, x, options = made()
    model = torch.nn.Sequential(*model, torch.nn.Flatten(0))
    with hosim.torch.offload(model, budget="2.6 MB", pace=("20 MB/s", "20 MB/s"), **options) as step:
        seen, step.timed = [], 1  # so that the first step under the plan tells the times of its ops
        plan, step._plan = step._plan, lambda key, made, took_ns: (seen.append(sum(took_ns)), plan(key, made, took_ns))
        for _ in range(4):
            step(x)
        timed = next(one for one in step.steps if one.plan != "on demand")
        assert seen[-1] <= (timed.step_s - timed.stall_s) * 1e9


@pytest.mark.slow
def test_nothing_is_kept_unless_it_is_asked_for():
    model, x, options = made()
    with hosim.torch.offload(model, budget="2.6 MB", pace=PACE, **options) as step:
        for _ in range(4):
            step(x)
        assert step.steps[-1].plan == "static"
        assert step.steps[-1].trace is None
        names = {block.name for block in step._memory.blocks()}
        assert "0.0.weight" in names, "messages name what was there before the first plan, too"
