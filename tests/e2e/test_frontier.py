"""`hosim frontier`, `hosim crossover` and `hosim run --what-if`: how far a field may go, and where two rows swap."""

from __future__ import annotations

import json
import re
import sys
from itertools import pairwise

import documents
import pytest
from examples import some
from pages import printed

import simulator as hosim_api
from simulator import catalog
from simulator.catalog.settings import amounts
from simulator.errors import ConfigError
from simulator.report.answers import FREE, crossover_view, frontier_view, is_bound
from simulator.report.expectations import condition, unmet
from simulator.run import what_if
from simulator.run.bisection import Search
from simulator.run.case import prepare
from simulator.run.questions import undominated
from simulator.run.sweep import sweep
from simulator.scenario import Question
from simulator.units import FieldError

STORY = """\
schema: hosim/scenario/1
name: story
hardware: box.yaml
workload: job.yaml
homes: {activation: free}
set: {tiers.hbm.capacity: 60 MB}
policies: [static, reactive]
assumed: {tiers.hbm.capacity: a toy}
"""
JOB = """\
schema: hosim/workload/1
name: job
model: {layers: 4, hidden: 256, heads: 4, kv_heads: 2, ffn: 512, vocabulary: 1024}
sequence: 512
assumed: {model: a toy, sequence: a toy}
"""
WIRE, STALL = "links.*.bandwidth", "stall <= 0.1 %"


@pytest.fixture(scope="module", autouse=True)
def runs_end_with_their_rows():
    """They end with what would make them free, too."""


def lay(folder, story=STORY):
    return documents.lay(folder, JOB, story) / "story.yaml"


@pytest.fixture
def story(tmp_path):
    return lay(tmp_path)


@pytest.fixture(scope="module")
def laid(tmp_path_factory):
    return lay(tmp_path_factory.mktemp("laid"))


@pytest.fixture(scope="module")
def wires(laid):
    """The least bandwidth without a stall, for the two rows and for any plan."""
    return {row["policy"]: row for row in hosim_api.frontier(laid, of=WIRE, such_that=[STALL]).rows}


def stalls(path, policy, **changes):
    """The share of a step that is a stall."""
    row = hosim_api.run(path, set=changes["set"], policies=[policy])[policy].summary
    return row["stall_ns"] / row["step_ns"]


@pytest.mark.parametrize("policy", ["static", "reactive"])
def test_the_answer_holds_when_it_is_run_and_the_next_value_does_not(laid, wires, policy):
    row = wires[policy]
    value, beyond = row[f"least_{WIRE}"], row["next"]
    assert value / beyond - 1 <= 0.01, "three digits"
    assert stalls(laid, policy, set={WIRE: f"{value} B/s"}) == row["stall_ns"] / row["step_ns"] <= 0.001
    assert stalls(laid, policy, set={WIRE: f"{beyond} B/s"}) > 0.001
    assert row["holes"] == []


def test_no_plan_does_with_less_than_the_bound(laid, wires):
    """The bound at the next lower value has a step that is too long for any plan."""
    bound = wires["bound"]
    rates = [wires[who][f"least_{WIRE}"] for who in ("bound", "static", "reactive")]
    assert rates == sorted(rates)
    loaded, axis = catalog.resolve(laid).without_questions(), catalog.Axis(WIRE, (WIRE,), "a test", "B/s")
    for rate, is_enough in ((rates[0], True), (bound["next"], False)):
        case = prepare(catalog.at(loaded, {axis: rate}))
        step_ns = case.bound(may_repeat=False).ns
        assert (step_ns - case.compute_ns <= 0.001 * step_ns) is is_enough


def test_values_beside_an_answer_are_tried(wires):
    """Six decades of three digits take 13 halvings at most; the rest is the bracket and what is beside the answer."""
    assert 8 < wires["static"]["tried"] < 25


@pytest.mark.slow
def test_a_ratio_is_of_the_fastest_row_as_documented(laid):
    found = hosim_api.frontier(laid, of="peak.hbm", such_that=["step <= 1.2x"])
    pace_ns = min(row.summary["step_ns"] for row in hosim_api.run(laid).values())
    for row in found.rows:
        if row["policy"] != "bound":
            assert row["step_ns"] <= 1.2 * pace_ns
            assert row["slowdown"] == row["step_ns"] / pace_ns
            room = {"tiers.hbm.capacity": f"{row['next']} B"}
            less = hosim_api.run(laid, set=room, policies=[row["policy"]])[row["policy"]].summary
            assert less["status"] != "ok" or less["step_ns"] > 1.2 * pace_ns
    static, reactive, bound = (row["least_peak.hbm"] for row in found.rows)
    assert bound <= static <= 60_000_000
    assert bound <= reactive


def test_a_budget_is_not_in_the_way_of_a_peak(tmp_path):
    budgeted = lay(tmp_path, STORY.replace("set:", "budget: 50 MB\nset:"))
    asked = {"of": "peak.hbm", "such_that": ["stall <= 0 %"], "policies": ["static"]}
    row, bound = hosim_api.frontier(budgeted, **asked).rows
    assert row["least_peak.hbm"] > 50_000_000
    assert row["stall_ns"] == 0
    assert bound["least_peak.hbm"] <= row["least_peak.hbm"]


def test_a_budget_is_searched_up_to_what_can_be_used(laid):
    (row,) = hosim_api.frontier(laid, of="scenario.budget", policies=["recompute"], resolution=1).rows[:1]
    usable = catalog.resolve(laid).hardware.tiers["hbm"].usable_bytes
    assert 0 < row["next"] < row["least_scenario.budget"] <= usable


def test_what_is_not_met_by_less_than_three_digits_show_is_told_in_full(laid):
    asked = [condition("peak.hbm <= 59.9 MB", catalog.resolve(laid).hardware)]
    assert unmet(asked, {"status": "ok", "peak_hbm_bytes": 59_934_208}, {}) == ("peak hbm", "59,934,208 B")
    assert unmet(asked, {"status": "ok", "peak_hbm_bytes": 60_034_208}, {}) == ("peak hbm", "60.0 MB")
    texts = ["step <= 1.01x", "stall <= 1 %", "stall <= 2 %"]
    for text, said in zip(texts, [("step", "1.01001x"), ("stall", "1.0001 %"), None], strict=True):
        asked = [condition(text, catalog.resolve(laid).hardware)]
        row = {"status": "ok", "step_ns": 101_001_000, "stall_ns": 1_010_111}
        assert unmet(asked, row, {"step_ns": 100_000_000}) == said


@pytest.mark.slow
def test_a_budget_is_lifted_for_the_capacity_that_it_is_of_and_that_is_told(tmp_path):
    budgeted = lay(tmp_path, STORY.replace("set:", "budget: 50 MB\nset:"))
    asked = {"of": "tiers.hbm.capacity", "such_that": ["stall <= 0 %"], "policies": ["static"]}
    found = hosim_api.frontier(budgeted, **asked)
    assert found.rows[0]["least_tiers.hbm.capacity"] > 50_000_000
    assert "All this is without the budget of the scenario, 50 MB." in str(found)


@pytest.mark.slow
def test_what_is_met_only_between_two_values_that_were_tried_is_found():
    """Tokens in a second rise with the sequence up to 800 or so, and fall behind; 512 and 1,024 are tried first."""
    asked = {"of": "workload.sequence", "such_that": ["tokens/s >= 1250000"], "policies": ["static"]}
    (row, _) = hosim_api.frontier("tiny_train_910c", **asked).rows
    assert 724 <= row["largest_sequence"] < 1024
    assert 512 in row["holes"]


@pytest.mark.slow
def test_the_largest_of_a_workload_and_several_conditions(laid):
    asked = {"of": "workload.sequence", "such_that": ["step <= 2x", "stall <= 20 %"], "policies": ["static"]}
    (row, _) = hosim_api.frontier(laid, **asked, resolution=2).rows
    value = row["largest_sequence"]
    pace_ns = hosim_api.run(laid, policies=["static"])["static"].summary["step_ns"]

    def meets(sequence):
        ran = hosim_api.run(laid, set={"workload.sequence": sequence}, policies=["static"])["static"].summary
        return ran["status"] == "ok" and ran["step_ns"] <= 2 * pace_ns and ran["stall_ns"] <= 0.2 * ran["step_ns"]

    assert value > 512
    assert meets(value)
    assert not meets(row["next"])


@pytest.mark.slow
def test_fields_that_differ_are_multiplied(tmp_path):
    uneven = lay(tmp_path, STORY.replace("set: {", "set: {links.d2h.bandwidth: 3 GB/s, "))
    row, bound = hosim_api.frontier(uneven, of=WIRE, such_that=[STALL], policies=["static"]).rows
    factor = row[f"least_{WIRE}"]
    assert bound[f"least_{WIRE}"] <= factor
    loaded = catalog.resolve(uneven)
    rates = {name: link.bandwidth_bytes_per_s for name, link in loaded.hardware.links.items()}
    assert len({*rates.values()}) > 1
    more = {f"links.{name}.bandwidth": f"{round(rate * factor)} B/s" for name, rate in rates.items()}
    assert stalls(uneven, "static", set=more) <= 0.001


def test_where_the_range_ends_the_answer_is_at_most_that(hosim, story):
    asked = ("--of", WIRE, "--policy", "static", "--such-that")
    done = hosim("frontier", story, *asked, "stall <= 99 %", "--at-least", "10 GB/s")
    assert "10 GB/s or less" in done.out
    assert "the least tried; lower --at-least to go on." in done.out
    assert "assuming that a row that fits also fits with more, and checked that beside each answer." in done.out
    done = hosim("frontier", story, *asked, "stall <= 0.1 %", "--at-most", "1 GB/s", "--at-least", "0.5 GB/s")
    assert (done.code, done.err) == (1, "hosim: no row has an answer\n")
    assert "static meets stall <= 0.1 % at no links.*.bandwidth tried" in done.out
    assert "bound: no plan that runs each op once meets stall <= 0.1 % at any links.*.bandwidth tried" in done.out
    assert done.out.endswith("that a row that fits also fits with more.\n")  # there was no answer to try beside
    done = hosim("frontier", story, *asked, "stall <= 99 %", "--of", "links.h2d.channels")
    assert "static meets stall <= 99 % at links.h2d.channels 1, the least possible." in done.out


def test_what_is_narrower_than_all_that_was_tried_is_told(hosim, tmp_path):
    bus = "set: {buses: {wire: {links: [d2h, h2d], bandwidth: 1 GB/s}}, "
    path = lay(tmp_path, STORY.replace("set: {", bus).replace("assumed: {", "assumed: {buses: a toy, "))
    for of in (WIRE, "links.d2h.bandwidth + links.h2d.bandwidth"):
        asked = ("--of", of, "--such-that", STALL, "--policy", "static", "--at-most", "4 GB/s")
        done = hosim("frontier", path, *asked)
        assert done.code == 1, done.err
        assert "but buses.wire.bandwidth is 1.00 GB/s: set both" in done.out


@pytest.mark.slow
def test_it_is_told_and_written(hosim, story, tmp_path):
    asked = ("--of", WIRE, "--such-that", STALL, "--policy", "static", "--resolution", 2, "--workers", 1)
    done = hosim("frontier", story, *asked, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert done.out.startswith("policy  least links.*.bandwidth")
    assert "bound: no plan that runs each op once meets stall <= 0.1 % below links.*.bandwidth" in done.out
    assert "values of 2 significant digits" in done.out
    assert {"summary.json", "report.html"} <= {path.name for path in (tmp_path / "out").iterdir()}
    told = json.loads(hosim("frontier", story, *asked, "--json").out)
    assert [row["policy"] for row in told["rows"]] == ["static", "bound"]


class Jagged(Search):
    """A row that stalls below 30 GB/s, and again within a band."""

    band = (36e9, 45e9)

    def _run(self, label, decide, value):
        stall = 0 if value >= 30e9 and not self.band[0] <= value <= self.band[1] else 10
        return {"policy": label, "status": "ok", "step_ns": 1000, "stall_ns": stall}


class Smooth(Jagged):
    """The same without the band."""

    band = (0, 0)


@pytest.mark.parametrize(("row", "holes"), [(Smooth, []), (Jagged, [36_000_000_000, 45_000_000_000])])
def test_where_it_does_not_go_on_to_hold_is_told(laid, row, holes):
    """The search finds 30 GB/s, and tries 1.25 times that: of what is found not to do the ends are searched, too."""
    loaded = catalog.resolve(laid)
    search = row(loaded, {"of": WIRE, "such_that": (STALL,)}, ["static"], is_bounded=False)
    question = search.question
    found = search.answer(sweep([search.edge("static")]), float("inf"))
    assert found[f"least_{WIRE}"] == 30_000_000_000
    assert [*found["holes"][:1], *found["holes"][-1:]] == holes[::-1]
    said = frontier_view([found], [], question, "hbm", [], "a test").sentences[0]
    assert ("and perhaps at values not tried" in said) is bool(holes)


@pytest.mark.parametrize(
    ("text", "row", "holds"),
    [
        ("stall <= 0.1 %", {"stall_ns": 1, "step_ns": 1000}, True),
        ("stall <= 0.1 %", {"stall_ns": 2, "step_ns": 1000}, False),
        ("stall + recompute <= 50 %", {"stall_ns": 2, "recompute_ns": 3, "step_ns": 10}, True),
        ("stall + recompute <= 49 %", {"stall_ns": 2, "recompute_ns": 3, "step_ns": 10}, False),
        ("peak.hbm <= 32 GB", {"peak_hbm_bytes": 32_000_000_001}, False),
        ("peak_hbm_bytes <= 32 GB", {"peak_hbm_bytes": 32_000_000_000}, True),
        ("tokens/s >= 3000", {"tokens_per_s": 2999.5}, False),
        ("MFU >= 30 %", {"mfu": 0.31}, True),
        ("step <= 1.01x", {"step_ns": 101}, True),
        ("step <= +1 %", {"step_ns": 102}, False),
        ("step <= 5 s", {"step_ns": None}, False),
    ],
)
def test_a_condition_is_an_expectation_of_a_row(laid, text, row, holds):
    asked = condition(text, catalog.resolve(laid).hardware)
    assert (unmet([asked], {"status": "ok", **row}, {"step_ns": 100}) is None) is holds


@pytest.mark.parametrize("text", ["stall", "stahl <= 1 %", "peak.hbm <= 3 s", "step <= soon", "step = 3 s"])
def test_what_is_no_condition_is_refused(laid, text):
    with pytest.raises(FieldError):
        condition(text, catalog.resolve(laid).hardware)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("--of", "links.*.bandwith"), "--of: a change names a field of the hardware, found 'links.*.bandwith'"),
        (("--of", "tiers"), "--of: the field searched is a quantity or a number"),
        (
            ("--of", WIRE, "--such-that", "stahl <= 1 %"),
            "--such-that: a condition is on a figure of the table, found 'stahl'; did you mean 'stall'?",
        ),
        (("--of", WIRE, "--at-most", "3 parsecs"), "--at-most: a rate is"),
        (("--of", WIRE, "--at-most", "1 GB/s", "--at-least", "2 GB/s"), "--at-most: at_most is more than at_least"),
        (("--of", WIRE, "--over", "nobody"), "--over: steps are compared with those of a row"),
        ((), "--of: a question names the field to search"),
        (("--of", "peak.hmb"), "--of: a peak is that of a tier, found 'peak.hmb'; use one of peak.hbm, peak.ddr"),
        (
            ("--of", WIRE, "--such-that", "status <= ok"),
            "a condition is on a number, or on a sum of numbers of one unit, found 'status': text; name a figure",
        ),
        (
            ("--of", WIRE, "--such-that", "stall + peak.hbm <= 1 s"),
            "one unit, found 'stall + peak.hbm': B and ns; name",
        ),
        (("--of", WIRE, "--such-that", "tokens/s >= nan"), "the amount of tokens/s is a finite number, found 'nan'"),
        (
            ("--of", WIRE, "--such-that", "stall <= inf"),
            "a condition has a limit, found 'stall <= inf'; write a finite",
        ),
        (
            ("--pareto", "--such-that", STALL),
            "--pareto asks for all amounts, found --such-that; leave one of the two out",
        ),
        (
            ("--pareto", "--of", "workload.batch"),
            "a cost that the machine states, found 'workload.batch'; use one of peak.hbm; or leave --pareto out",
        ),
    ],
)
def test_a_wrong_question_is_one_message(hosim, story, asked, told):
    done = hosim("frontier", story, *asked)
    assert done.code in (1, 2)
    assert told in done.err
    assert done.out == ""


def test_a_ratio_needs_a_row_that_runs(laid):
    with pytest.raises(ConfigError, match="such-that: a ratio is of a row that runs"):
        hosim_api.frontier(laid, of=WIRE, such_that=["step <= 1.01x"], policies=["resident"])


@pytest.fixture(scope="module")
def front(laid):
    """The steps of both rows, and of any plan, with all the room that helps down to the least."""
    return hosim_api.pareto(laid, rooms=3)


def test_a_front_falls_and_the_bound_is_its_edge(front):
    own = {}
    for row in front.rows:
        own.setdefault(row["policy"], []).append((row["peak_hbm_bytes"], row["step_ns"]))
    assert list(own) == ["static", "reactive", "bound"]
    for falls in own.values():
        assert all(low[0] < high[0] and low[1] > high[1] for low, high in pairwise(falls))
    every = {(row["policy"], row["peak.hbm"]): row for row in front.tables["points"]}
    for (policy, room), row in every.items():
        if row["status"] == "ok":
            _, more = min(key for key in every if key[0] == "bound" and key[1] >= room)
            assert row["step_ns"] >= every["bound", more]["step_ns"], policy
            assert row["peak_hbm_bytes"] <= room
    assert any("(lower bounds: bound, " in one for one in front.sentences)


def test_between_rooms_whose_steps_differ_more_rooms_are_tried(front):
    """Steps of neighbours differ by a quarter at most, unless there is no room between them: 1/16 of the way."""
    tried = front.tables["points"]
    for who in ("static", "bound"):
        own = [row for row in tried if row["policy"] == who]
        assert len(own) > 3
        rooms = [row["peak.hbm"] for row in own]
        least = (rooms[-1] - rooms[0]) / 16
        for less, more in pairwise(own):
            near = more["peak.hbm"] - less["peak.hbm"] < 1.01 * least
            assert near or max(less["step_ns"], more["step_ns"]) <= 1.25 * min(less["step_ns"], more["step_ns"])


PRICED = STORY.replace("set: {", "set: {compute.price: 3.6 USD/h, tiers.ddr.price: 2 USD/GB/month, ").replace(
    "assumed: {", "assumed: {compute.price: a toy, tiers.ddr.price: a toy, "
)


@pytest.mark.slow
def test_a_front_of_costs_is_of_what_rows_cost(tmp_path):
    path = lay(tmp_path, PRICED)
    found = hosim_api.pareto(path, of="cost", rooms=3, policies=["static", "recompute"])
    assert {row["policy"] for row in found.rows} == {"static", "recompute"}, "no bound is known of costs"
    for row in found.rows:
        room = {"tiers.hbm.capacity": f"{row['peak.hbm']} B"}
        assert (
            hosim_api.run(path, set=room, policies=[row["policy"]])[row["policy"]].summary["step_usd"]
            == row["step_usd"]
        )
        beaten = [
            one
            for one in found.tables["points"]
            if one["policy"] == row["policy"] and one["status"] == "ok"
            if one["step_usd"] < row["step_usd"] and one["step_ns"] <= row["step_ns"]
        ]
        assert not beaten
    assert " the lowest cost tried, " in found.sentences[0]
    (panel,) = found.view.panels
    assert (panel.axis, panel.axis_unit) == ("cost", "USD")


@pytest.mark.usefixtures("pictures_are_blank")
def test_a_page_has_the_front_the_bound_the_costs_what_limits_and_what_is_assumed(hosim, tmp_path):
    """All that one needs to trust the answer; what limits is found with the least room of each row."""
    path = lay(tmp_path, PRICED)
    asked = ("--policy", "static", "--workers", 1, "--out", tmp_path / "out")
    done = hosim("frontier", path, "--pareto", *asked)
    assert done.code == 0, done.err
    assert done.out.startswith("policy  least peak  step there  vs compute  within 1.01x")
    assert {"frontier.png", "points.csv", "report.html"} <= {path.name for path in (tmp_path / "out").iterdir()}
    text = (tmp_path / "out" / "report.html").read_text()
    for part in ("data:image/png", "(lower bounds: bound, ", "What limits each row with its least peak.hbm"):
        assert part in text
    assert '<td class="left no">assumed</td>' in text
    assert "a toy" in text.partition("Where the numbers come from")[2]
    assert "static has a cost/1M tokens of " in done.out
    told = json.loads((tmp_path / "out" / "summary.json").read_text())
    least = min((row for row in told["rows"] if row["policy"] == "static"), key=lambda row: row["peak_hbm_bytes"])
    assert told["limits"]["steps_ns"] == {"static": least["step_ns"]}
    assert {row["figure"] for row in told["limits"]["rows"]} >= {"links.h2d.bandwidth", "tiers.hbm.capacity"}


@pytest.mark.slow
def test_the_page_of_a_search_has_a_picture_with_the_bound_and_what_limits_at_the_answer(laid, tmp_path):
    found = hosim_api.frontier(laid, of="peak.hbm", such_that=["stall <= 50 %"], policies=["static"], resolution=1)
    (panel,) = found.view.panels
    assert {row["policy"] for row in panel.rows} == {"static", "bound"}
    places = [row[panel.x] for row in panel.rows]
    assert places == sorted(places)
    (also,) = found.also()
    assert also.more["steps_ns"] == {"static": found.rows[0]["step_ns"]}
    found.write(tmp_path / "out")
    assert (tmp_path / "out" / "frontier.png").exists()


@pytest.mark.parametrize(
    "policies", some([(["static"],), (["static", "reactive", "lookahead", "offload_saved"],)], 2), ids=len
)
def test_a_run_searches_what_would_free_it_if_that_takes_no_longer_than_its_rows(laid, policies, monkeypatch):
    """By the plans that were tried: the clock would say another thing each time."""
    monkeypatch.setattr(what_if, "_QUICK", 0)
    found = hosim_api.run(laid, policies=policies, what_if=None)
    tries = {label: row.tries + 1 for label, row in found.items()}
    fastest = min(found.values(), key=lambda row: row.summary["step_ns"]).label
    is_searched = " to be as fast as if nothing moved" in found.sentences[-1]
    assert is_searched == (2 * tries[fastest] <= sum(tries.values())) == (len(policies) > 1)
    assert is_searched or found.sentences[-1].endswith(f", ask with --policy {fastest} --what-if.")


@pytest.mark.slow
def test_a_page_has_what_is_quick_to_find_and_says_how_to_get_the_rest(hosim, story, tmp_path, monkeypatch):
    def heads(limit):
        monkeypatch.setattr(what_if, "_PAGE", limit)
        assert hosim("run", story, "--policy", "static", "--out", tmp_path / "out").code == 0
        text = (tmp_path / "out" / "report.html").read_text()
        return re.findall("<h2>((?:What|Further) [^<]*)</h2>", text), re.findall("To see (what .*?), run", text)

    front, limits, rest = "What a lower peak costs static", "What limits static", "Further questions"
    assert heads(10**9) == ([front, limits], [])
    (row,) = hosim_api.run(story, policies=["static"]).values()
    ops = len(row.case.graph.ops) * row.case.graph.steps * (row.tries + 1)
    figures = len(amounts(row.hardware))  # of a toy: fewer than a front takes rows
    assert heads(figures * ops) == ([limits, rest], ["what a lower peak costs static"])
    assert heads(figures * ops - 1) == ([rest], ["what a lower peak costs static and what limits static"])


@pytest.mark.slow
def test_the_page_of_a_run_that_is_asked_what_if_has_the_front_and_what_limits(hosim, story, tmp_path):
    done = hosim("run", story, "--policy", "static", "--what-if", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    text = (tmp_path / "out" / "report.html").read_text()
    assert "<h2>What a lower peak costs static</h2>" in text
    assert "<h2>What limits static</h2>" in text
    assert "(lower bounds: bound, " in text
    assert text.count('alt="Curves over what varies') == 1


@pytest.mark.slow
def test_the_front_of_a_page_has_the_table_of_all_capacities_from_fewer(story):
    """It tries where a row comes within a limit of the table, and where it bends, but nothing where it is flat."""
    asked = {"set": {"links.*.bandwidth": "400 GB/s"}, "policies": ["static"]}
    whole, page = (hosim_api.pareto(story, **asked, sparse=sparse) for sparse in (False, True))
    assert [str(found.view.sections[0]) for found in (whole, page)] == [str(whole.view.sections[0])] * 2
    assert len(page.tables["points"]) < len(whole.tables["points"]) / 2
    steps = [{row["step_ns"] for row in found.rows if row["policy"] == "static"} for found in (whole, page)]
    assert steps[1] <= steps[0]
    assert min(steps[1]) <= FREE * min(steps[0])


def test_on_a_front_is_only_what_nothing_beats():
    amounts = [(5, 50), (3, 70), (4, 70), (4, 60), (6, 55), (5, 45)]
    rows = [{"status": "ok", "peak_hbm_bytes": peak, "step_ns": step} for peak, step in amounts]
    rows += [{"status": "infeasible"}, {"status": "ok", "step_ns": 1}]
    assert [(row["peak_hbm_bytes"], row["step_ns"]) for row in undominated(rows, "peak_hbm_bytes")] == [
        (3, 70),
        (4, 60),
        (5, 45),
    ]


def test_a_row_whose_name_only_begins_like_that_of_a_bound_is_a_plan():
    names = ("bound", "bound with recompute", "boundless")
    assert [is_bound({"policy": name}) for name in names] == [True, True, False]


def swapping(found):
    return [row["faster"] for row in found.rows]


@pytest.mark.slow
def test_a_crossover_is_where_the_faster_row_changes(laid):
    """Where little bandwidth is there, running ops again is faster than moving what they made."""
    asked = {"of": WIRE, "policies": ["static", "recompute"], "at_least": "0.1 GB/s", "at_most": "1000 GB/s"}
    found = hosim_api.crossover(laid, **asked)
    assert len(found.rows) > 1
    for before, after in pairwise(found.rows):
        assert before["faster"] != after["faster"]
        assert after["from"] / before["to"] - 1 <= 0.011
    for row in found.rows:
        for end in ("from", "to"):
            ran = hosim_api.run(laid, set={WIRE: f"{round(row[end])} B/s"}, policies=["static", "recompute"])
            steps = {who: one.summary["step_ns"] for who, one in ran.items()}
            assert steps == {who: row[f"{end}_{who}_ns"] for who in steps}
            least = min(steps, key=steps.__getitem__) if len({*steps.values()}) > 1 else "tie"
            assert row["faster"] == least


def test_a_range_of_one_value_is_told_as_one(laid):
    question = catalog.question(catalog.resolve(laid), Question, {"of": "workload.batch"})
    rows = [{"faster": who, "from": low, "to": high} for who, low, high in (("a", 1, 1), ("tie", 2, 3))]
    told = crossover_view(rows, [], ["a", "b"], question, "").sentences[0]
    assert told == "Over workload.batch, at 1 a is faster; from 2 to 3 both take equally long."


@pytest.mark.slow
def test_rows_that_do_not_swap_are_told_with_both_ends(hosim, story):
    asked = ("--policy", "static", "--policy", "reactive", "--of", WIRE, "--at-least", "2 GB/s", "--at-most", "4 GB/s")
    done = hosim("crossover", story, *asked)
    assert done.code == 0, done.err
    assert "do not swap between links.*.bandwidth 2 GB/s and 4 GB/s: " in done.out


@pytest.mark.usefixtures("pictures_are_blank")
def test_what_would_make_a_plan_from_a_file_free_is_not_searched(hosim, story, tmp_path):
    assert hosim("plan", story, "--out", tmp_path / "plan").code == 0
    of_file = STORY.replace("[static, reactive]", "[{policy: plan/plan.jsonl, label: mine}]")
    (tmp_path / "mine.yaml").write_text(of_file, encoding="utf-8")
    assert "as fast as" not in hosim("run", tmp_path / "mine.yaml").out
    asked = hosim("run", tmp_path / "mine.yaml", "--what-if")
    assert "No bandwidth or capacity is searched for mine: its plan is for one machine.\n" in asked.out


def test_a_crossover_is_of_two_rows(hosim, story):
    done = hosim("crossover", story, "--policy", "static", "--of", WIRE)
    assert (done.code, done.out) == (1, "")
    assert "--policy: a crossover is of two rows, found 1: static" in done.err


@pytest.fixture(scope="module")
def freed(laid):
    """A run that searches what would make its row free."""
    return hosim_api.run(laid, policies=["static"], what_if=True)


@pytest.mark.slow
def test_the_table_is_there_before_what_would_free_a_row_is_searched(hosim, laid, freed, capsys, monkeypatch):
    """Nobody waits for a search before the first figure; in the end the output is one text, with what was found."""
    asked, before = ("run", laid, "--policy", "static"), list[str]()

    def searched(rows, *more, **asked):
        before.append(capsys.readouterr().out)
        return what_would_free(rows, *more, **asked)

    what_would_free = what_if.what_would_free
    monkeypatch.setattr(sys.modules["simulator.run"], "what_would_free", searched)
    rest = hosim(*asked).out
    assert len(before) == 1
    assert "\n\nstatic " in before[0]
    assert before[0] + rest == printed(freed)


@pytest.mark.slow
def test_a_run_ends_with_what_would_make_its_fastest_row_free(laid, freed):
    wire, room = freed.sentences[-2:]
    assert wire.startswith("static needs links.*.bandwidth ")
    assert room.startswith("static needs tiers.hbm.capacity ")
    for path, said in ((WIRE, wire), ("tiers.hbm.capacity", room)):
        amount, less = (" ".join(said.partition(word)[2].split()[:2]) for word in (f"{path} ", "; at "))
        assert stalls(laid, "static", set={path: amount}) <= 0.001
        assert stalls(laid, "static", set={path: less}) > 0.001


@pytest.mark.parametrize(
    ("field", "direction"),
    [("links.*.latency", "largest"), pytest.param("links.*.bandwidth", "least", marks=pytest.mark.slow)],
)
def test_more_of_a_time_is_harder_and_more_of_a_rate_easier_also_as_factors(tmp_path, field, direction):
    path = lay(tmp_path, PRICED.replace("set: {", "set: {links.d2h.latency: 1 us, links.h2d.latency: 2 us, "))
    rows = hosim_api.frontier(path, of=field, such_that=["step <= 1.1x"], policies=["static"], resolution=1).rows
    assert all(f"{direction}_{field}" in row for row in rows)


ZERO = {"of": "links.h2d.latency", "policies": ["static"], "such_that": ["step <= 1.1x"]}


def test_a_field_that_is_zero_asks_where_to_look(tmp_path):
    with pytest.raises(ConfigError, match=r"--of: .* above 0, found '0 ns'; say where to look: at_least and at_most"):
        hosim_api.frontier(lay(tmp_path, PRICED), **ZERO)


@pytest.mark.slow
def test_a_field_that_is_zero_is_searched_between_ends_that_are_given(tmp_path):
    rows = hosim_api.frontier(lay(tmp_path, PRICED), at_least="1 ns", at_most="1 ms", resolution=1, **ZERO).rows
    assert rows[0]["largest_links.h2d.latency"] > 1


@pytest.mark.parametrize("label", ["bound", "bound with recompute", "compute", "fastest", "unmoved"])
def test_no_row_has_a_name_that_a_frontier_gives(tmp_path, label):
    rows = f"policies: [{{policy: reactive, label: {label}}}]"
    path = lay(tmp_path, re.sub("policies: .*", rows, STORY))
    with pytest.raises(ConfigError, match=r"policies\.0: a row has a name of its own; a frontier uses"):
        catalog.resolve(path)


@pytest.mark.parametrize("asked", [["--of", "peak.hbm"], ["--of", "tiers.hbm.capacity"], ["--pareto"]])
def test_room_is_searched_only_where_all_devices_have_the_same(hosim, asked):
    """A factor would cut what the search sets."""
    more = ["--policy", "static", "--set", "budget=null", "--set", "ranks.0.capacity=0.5"]
    ended = hosim("frontier", "tiny_train_910c", *asked, *more)
    assert ended.code == 1
    assert "the room in hbm is searched where all devices have the same, found ranks with a capacity" in ended.err


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_are_blank")
def test_a_page_of_unlike_memories_has_no_front(hosim, story, tmp_path):
    more = ["--policy", "static", "--set", "ranks.0.capacity=0.8", "--what-if"]
    ended = hosim("run", story, *more, "--out", tmp_path / "out")
    assert ended.code == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "What limits static" in page
    assert "What a lower peak costs static" not in page
    assert "static needs links.*.bandwidth" in ended.out
    assert "tiers.hbm.capacity" not in ended.out
