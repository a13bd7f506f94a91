"""`hosim frontier` with slowdowns, and the key `frontier:`: how far a row fits, and what its step is there."""

from __future__ import annotations

import json
from functools import partial

import pytest

import simulator as hosim_api
from simulator import catalog
from simulator.errors import ConfigError
from simulator.report.answers import frontier_view
from simulator.run.bisection import Search
from simulator.run.case import prepare

pytestmark = pytest.mark.usefixtures("pictures_are_blank")

MACHINE = """\
schema: hosim/hardware/1
name: small
compute_tier: hbm
compute:
  peak: {bf16: 1 TFLOP/s}
tiers:
  hbm: {capacity: 10 MB, bandwidth: 1 TB/s}
  ddr: {capacity: 100 MB}
links:
  d2h: {source: hbm, target: ddr, bandwidth: 4 GB/s}
  h2d: {source: ddr, target: hbm, bandwidth: 4 GB/s}
assumed: {compute: a test, tiers: a test, links: a test}
"""
WORKLOAD = """\
schema: hosim/workload/1
name: decode
model: {family: llama, layers: 4, hidden: 256, heads: 4, kv_heads: 2, ffn: 512, vocabulary: 1024}
phase: decode
sequence: 512
new_tokens: 3
kv: {block: 256}
assumed: {model: a test, sequence: a test, new_tokens: a test, kv: a test}
"""
SCENARIO = """\
schema: hosim/scenario/1
name: longest
hardware: machine.yaml
workload: workload.yaml
homes: {kv_cache: free}
policies: [resident, static]
frontier: {of: workload.sequence, at_most: 8192, multiple_of: 256, slowdown: [inf]}
assumed: {}
"""
TOKEN_BYTES = 4 * 256 * 2


def write(folder, old="", new=""):
    for name, text in (("machine", MACHINE), ("workload", WORKLOAD), ("longest", SCENARIO)):
        (folder / f"{name}.yaml").write_text(text.replace(old, new) if old else text)
    return folder / "longest.yaml"


@pytest.fixture
def longest(tmp_path):
    """Write a scenario with its documents; `old` in one of them may become `new`."""

    return partial(write, tmp_path)


def fits(path, sequence, policy):
    """Whether a row runs with a sequence as long."""
    workload = path.parent / "workload.yaml"
    workload.write_text(WORKLOAD.replace("sequence: 512", f"sequence: {sequence}"))
    (path.parent / "one.yaml").write_text(SCENARIO.replace("frontier:", "#"))
    return hosim_api.run(path.parent / "one.yaml", policies=[policy])[policy].status == "ok"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What comes of it as it is written."""
    return hosim_api.frontier(write(tmp_path_factory.mktemp("longest")))


@pytest.mark.parametrize("policy", ["resident", "static"])
def test_it_is_where_a_run_still_fits_and_the_next_does_not(found, longest, policy):
    path = longest()
    (row,) = (row for row in found.rows if row["policy"] == policy)
    value = row["largest_sequence"]
    assert row["next"] == value + 256
    assert fits(path, value, policy)
    assert not fits(path, value + 256, policy)


def test_what_offloads_goes_further_and_the_row_is_that_of_its_largest_value(found):
    resident, static, _ = found.rows
    assert resident["largest_sequence"] < static["largest_sequence"]
    assert 10e6 - 256 * TOKEN_BYTES < resident["peak_hbm_bytes"] <= 10e6
    assert resident["limit"] == "hbm"
    assert resident["limit_demand_bytes"] > resident["limit_capacity_bytes"] == 10_000_000
    tried = [row["workload.sequence"] for row in found.tables["points"] if row["policy"] == "resident"]
    assert resident["largest_sequence"] in tried


def test_no_plan_goes_beyond_the_bound(found, longest):
    """Where `resident` ends is its own doing; where `static` ends is nearly that of any plan, and is proved."""
    path = longest()
    resident, static, any_plan = found.rows
    bound = any_plan["largest_sequence"]
    assert any_plan["policy"] == "bound"
    assert resident["largest_sequence"] < static["largest_sequence"] <= bound
    loaded, axis = catalog.resolve(path).without_questions(), catalog.Axis("sequence", ("workload.sequence",), "a test")
    for value, is_proved in ((bound, False), (bound + 256, True)):
        case = prepare(catalog.at(loaded, {axis: value}))
        assert (case.unfit() is not None) is is_proved


def test_the_search_halves(found):
    row = found.rows[0]
    assert row["tried"] <= 1 + (8192 // 256).bit_length()


def test_the_command_prints_a_line_for_each_policy_and_why(hosim, found, longest):
    done = hosim("frontier", longest(), "--policy", "resident")
    assert done.code == 0
    head, row, bound, _, why, proved, premise = done.out.splitlines()
    assert head.split()[:4] == ["policy", "within", "largest", "workload.sequence"]
    value, most = (row["largest_sequence"] for row in found.rows[::2])
    assert row.split()[:4] == ["resident", "any", "step", f"{value:,}"]
    assert bound.split()[:4] == ["bound", "any", "step", f"{most:,}"]
    assert proved == f"bound: no plan that runs each op once fits within any step above workload.sequence {most:,}."
    assert why.startswith(
        f"resident fits within any step at workload.sequence {value:,}, with a step of 1.00x compute; "
        f"at {value + 256:,} hbm is "
    )
    assert "assuming that a row that fits also fits with less" in premise


def test_what_fits_everywhere_and_what_fits_nowhere_are_told(hosim, longest):
    done = hosim("frontier", longest(), "--policy", "resident", "--at-most", 768)
    assert "768 or more" in done.out
    assert "sequence 768, with a step of 1.00x compute, the largest tried; raise --at-most to go on." in done.out
    done = hosim("frontier", longest(), "--policy", "resident", "--set", "tiers.hbm.capacity=1 MB")
    assert done.code == 1
    assert "resident fits within any step at no workload.sequence tried; at 256 hbm is " in done.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--at-most", "3 parsecs"), "--at-most: the field searched is a finite number above 0, found '3 parsecs'"),
        (("--over", "nosuch"), "--over: steps are compared with those of a row, compute or unmoved, found 'nosuch'"),
        (("--slowdown", "soon"), "--slowdown: a ratio is written as '2.7x'"),
        (("--slowdown", "0x"), "--slowdown: a limit on a step is more than 0x"),
        (("--of", "workload.sequense"), "--of: a change names a field of the workload"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_option_is_said_of_the_option(hosim, longest, options, message):
    done = hosim("frontier", longest(), *options)
    assert done.code == 1
    assert done.err.startswith(f"hosim: {message}")
    assert ".yaml" not in done.err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("at_most: 8192", "at_most: 8192, over: nosuch", "frontier.over: steps are compared with those of a row"),
        ("of: workload.sequence", "of: workload.sequense", "frontier.of: a change names a field"),
        ("[inf]", "[soon]", "slowdown: a ratio is written as '2.7x'"),
    ],
)
def test_what_is_wrong_in_the_scenario_is_said_of_its_line(hosim, longest, old, new, message):
    done = hosim("frontier", longest(old, new))
    assert done.code == 1
    assert "longest.yaml:" in done.err
    assert message in done.err


def test_it_may_be_another_field(hosim, longest):
    path = longest("frontier:", "#")
    done = hosim("frontier", path, "--of", "workload.batch", "--at-most", 64, "--policy", "resident")
    assert done.code == 0
    assert done.out.startswith("policy    largest workload.batch")


def test_a_run_adds_the_column_which_may_be_expected(hosim, found, longest):
    value = found.rows[0]["largest_sequence"]
    expect = f"expect: [{{row: resident, column: largest_sequence, equals: {value}}}]\nassumed: {{}}"
    done = hosim("run", longest("assumed: {}", expect), "--policy", "resident", "--json")
    assert done.code == 0
    summary = json.loads(done.out)
    assert any("resident fits within any step at workload.sequence" in sentence for sentence in summary["sentences"])
    assert [judged["holds"] for judged in summary["expectations"]] == [True]
    assert summary["rows"][0]["largest_sequence"] == value


def test_a_plan_from_a_file_is_not_searched(hosim, longest, tmp_path):
    hosim("plan", longest("frontier:", "#"), "--policy", "static", "--out", tmp_path / "out")
    plan = tmp_path / "out" / "plan.jsonl"
    done = hosim("frontier", longest("[resident, static]", f"[{plan}]"))
    assert done.code == 1
    assert "was not searched: a plan from a file is of one graph" in done.out


LEAST = """\
frontier:
  of: tiers.hbm.capacity
  at_least: 5 MB
  at_most: 12 MB
  multiple_of: 100 kB
  over: resident
  slowdown: [1.01x, 2x, inf]
"""
LIMITS = (1.01, 2, float("inf"))


@pytest.fixture(scope="module")
def least(tmp_path_factory):
    """The least memory for the same: the scenario, and what is answered."""
    path = write(tmp_path_factory.mktemp("least"), "bandwidth: 4 GB/s", "bandwidth: 100 GB/s")
    largest = "frontier: {of: workload.sequence, at_most: 8192, multiple_of: 256, slowdown: [inf]}\n"
    path.write_text(path.read_text().replace(largest, LEAST).replace("static", "reactive"))
    return path, hosim_api.frontier(path)


def answers(found, policy):
    return {row["within"]: row for row in found.rows if row["policy"] == policy}


def test_the_least_memory_is_where_a_step_is_short_enough_and_with_less_it_is_not(least):
    path, found = least
    plain = path.parent / "plain.yaml"
    plain.write_text(path.read_text().replace(LEAST, ""))

    def step_ns(policy, room_bytes):
        found = hosim_api.run(plain, set={"tiers.hbm.capacity": f"{room_bytes} B"}, policies=[policy])[policy]
        return found.summary["step_ns"] if found.is_ok else None

    pace_ns = step_ns("resident", 12_000_000)
    for limit, row in answers(found, "reactive").items():
        value = row["least_tiers.hbm.capacity"]
        assert row["next"] == value - 100_000
        assert step_ns("reactive", value) == row["step_ns"] == row["slowdown"] * pace_ns <= limit * pace_ns
        next_ns = step_ns("reactive", row["next"])
        assert next_ns == (row["next_slowdown"] and round(row["next_slowdown"] * pace_ns))
        assert next_ns is None or next_ns > limit * pace_ns
        assert row["peak_hbm_bytes"] <= value


def test_the_longer_a_step_may_be_the_less_memory_is_enough(least):
    _, found = least
    reactive = answers(found, "reactive")
    assert tuple(reactive) == LIMITS
    rooms = [row["least_tiers.hbm.capacity"] for row in reactive.values()]
    assert rooms == sorted(rooms, reverse=True)
    assert rooms[0] > rooms[-1]
    assert {row["limit"] for row in reactive.values()} == {"step", "hbm"}
    for row in answers(found, "resident").values():
        peak = row["peak_hbm_bytes"]
        assert row["slowdown"] == 1
        assert peak <= row["least_tiers.hbm.capacity"] < peak + 100_000
    bound = [row["least_tiers.hbm.capacity"] for row in answers(found, "bound").values()]
    assert all(one <= room for one, room in zip(bound, rooms, strict=True))
    assert bound[-1] < bound[0]


@pytest.mark.slow
def test_a_run_adds_columns_for_each_slowdown_which_may_be_expected(least, hosim):
    path, found = least
    expect = "expect:\n  - {row: reactive, column: at_1.01x_peak_hbm_bytes, over: resident, at_most: 1.0}\n"
    expect += "  - {row: reactive, column: at_2x_slowdown, at_most: 2.0}\nassumed: {}"
    one = path.parent / "expected.yaml"
    one.write_text(path.read_text().replace("assumed: {}", expect))
    done = hosim("run", one)
    assert done.code == 0, done.err
    assert "Expectations of the scenario: 2 of 2 hold." in done.out
    summary = hosim_api.run(path)["reactive"].summary
    for limit, row in answers(found, "reactive").items():
        at = "at_least" if limit == LIMITS[-1] else f"at_{limit:g}x"
        named = {column: summary[f"{at}_{column}"] for column in ("step_ns", "slowdown", "peak_hbm_bytes")}
        assert named == {column: row[column] for column in named}
    assert summary["least_tiers.hbm.capacity"] == answers(found, "reactive")[LIMITS[-1]]["least_tiers.hbm.capacity"]


def test_the_command_searches_the_least_of_any_machine_whatever_rows_set(hosim, longest):
    own = "{policy: resident, set: {tiers.hbm.capacity: 11 MB}}"
    path = (
        longest("[resident, static]", f"[{own}, static]").read_text().replace("assumed: {}", "assumed: {tiers: a test}")
    )
    (one := longest().parent / "own.yaml").write_text(path)
    asked = ("--of", "tiers.hbm.capacity", "--at-least", "9 MB", "--at-most", "12 MB", "--multiple-of", "1 MB")
    done = hosim("frontier", one, *asked, "--over", "resident", "--slowdown", "+1 %", "--policy", "resident")
    assert done.code == 0, done.err
    head, row, bound, why, rest, premise = filter(None, done.out.splitlines())
    assert bound.startswith("bound     1.01x resident")
    not_ruled_out = "a plan that fits within 1.01x resident is not ruled out at tiers.hbm.capacity 9 MB"
    assert rest == f"bound: {not_ruled_out}, where the search ended."
    assert "within" in head
    assert row.startswith("resident  1.01x resident")
    assert "9 MB or less" in row
    assert why.endswith("the least tried; lower --at-least to go on.")
    assert "from 9 MB to 12 MB" in premise
    assert "assuming that a row that fits also fits with more" in premise
    done = hosim("frontier", one, *asked, "--over", "resident", "--slowdown", "0x")
    assert (done.code, "is more than 0x of another one, found 0x; write for example 1.01x" in done.err) == (1, True)


def test_where_a_search_ends_is_no_answer(hosim, longest):
    expect = "expect: [{row: resident, column: largest_sequence, equals: 5}]\nassumed: {}"
    path = longest("assumed: {}", expect)
    path.write_text(path.read_text().replace("at_most: 8192", "at_most: 512"))
    done = hosim("run", path, "--policy", "resident")
    assert done.code == 1
    assert "largest_sequence must be 5, found at least 512" in done.err
    table, sentences = done.out.index("largest workload.sequence"), done.out.index("resident fits within any step at")
    assert done.out.index("policy    status") < table < done.out.index("resident takes ") < sentences


def test_what_fits_with_more_and_not_with_less_is_told(longest):
    """Halving sees it by chance only: of rows as they may turn out, the hardest that fits counts; the gap is told."""
    loaded = catalog.resolve(longest())
    search = Search(loaded, {}, None)
    question = search.question
    lacks = {
        "status": "infeasible",
        "limit": "hbm",
        "limit_at": "op 'x'",
        "limit_demand_bytes": 2,
        "limit_capacity_bytes": 1,
    }
    states = {256: {"status": "ok"}, 512: lacks, 768: {"status": "ok"}, 1024: lacks}
    rows = [{"policy": "resident", "workload.sequence": at, "slowdown": None, **state} for at, state in states.items()]
    answer = search.answer(rows, float("inf"))
    assert (answer["largest_sequence"], answer["next"], answer["holes"]) == (768, 1024, [512])
    (said, _) = frontier_view([answer], [], question, "hbm", [], "a test").sentences
    assert "at workload.sequence 768, but not at 512, and perhaps at values not tried; at 1,024 hbm is " in said


@pytest.mark.slow
def test_a_row_that_others_are_held_against_must_run(longest):
    """At lengths at which all does not stay there is no step to hold others against, so that none is short enough."""
    found = hosim_api.frontier(longest(), policies=["reactive"], over="resident", slowdown=["1.5x", "inf"])
    held, free, *_ = found.rows
    resident = hosim_api.frontier(longest(), policies=["resident"]).rows[0]["largest_sequence"]
    assert held["largest_sequence"] == resident < free["largest_sequence"]
    assert held["next_slowdown"] is None
    assert free["slowdown"] is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("frontier:", "#", "--of: a question names the field to search, found nothing"),
        ("of: workload.sequence", "of: workload.sequense", "a change names a field of the workload, found 'sequense'"),
        ("of: workload.sequence", "of: sequence", "found 'sequence'; write workload.sequence"),
        ("of: workload.sequence", "of: workload.phase", "the field searched is a quantity or a number"),
        ("at_most: 8192", "at_most: 0", "at_most"),
        ("at_most: 8192", "at_most: 32", "at_most is more than at_least, 32, found 32"),
        ("at_most: 8192", "at_mots: 8192", "at_mots"),
        ("at_most: 8192", "at_most: 8 kB", "frontier.at_most"),
        ("[inf]", "[fast]", "frontier.slowdown: a ratio is written as"),
        ("[inf]", "[1.1x], over: nobody", "nobody"),
        ("[inf]", "[inf], such_that: [stall <= 1 %]", "by slowdowns, or by conditions, found both"),
    ],
)
def test_a_wrong_question_is_one_message(old, new, said, hosim, longest):
    done = hosim("frontier", longest(old, new))
    assert done.code == 1
    assert said in done.err
    assert done.err.count("hosim: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize("field", ["links.*.bandwidth", "links.h2d.bandwidth"])
def test_the_least_bandwidth_is_where_a_step_is_short_enough(longest, field):
    path = longest(
        "frontier: {of: workload.sequence, at_most: 8192, multiple_of: 256, slowdown: [inf]}", "budget: 9 MB"
    )
    path.with_name("workload.yaml").write_text(WORKLOAD.replace("sequence: 512", "sequence: 2048"))
    asked = {"of": field, "at_most": "500 GB/s", "multiple_of": "1 GB/s", "slowdown": ["2x"]}
    row, _ = hosim_api.frontier(path, policies=["static"], **asked).rows
    value = row[f"least_{field}"]
    assert 10**9 < value < 500 * 10**9
    assert row["next"] == value - 10**9

    def slowdown(bandwidth):
        ran = hosim_api.run(path, set={field: f"{bandwidth} B/s"}, policies=["static"])["static"].summary
        return ran["slowdown_vs_compute"]

    assert slowdown(value) == row["slowdown"] <= 2 < slowdown(row["next"])


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"at_most": "3 parsecs"}, "--at-most"),
        ({"at_most": "200 GB/s", "at_least": "1 GB"}, "--at-least"),
        ({"at_most": "200 GB/s", "at_least": 10}, "--at-least: a rate is a number and a unit"),
        ({"at_most": "inf"}, "the field searched is a finite number above 0"),
    ],
)
def test_amounts_that_are_none_are_told_at_the_option(longest, asked, told):
    with pytest.raises(ConfigError, match=told):
        hosim_api.frontier(longest(), of="links.*.bandwidth", **asked)


def test_the_key_of_a_scenario_is_about_what_it_searches(hosim, longest):
    """Who searches another field does not get its multiples, nor its slowdowns."""
    done = hosim("frontier", longest(), "--of", "workload.batch", "--at-most", 8, "--policy", "resident")
    assert done.code == 0
    assert done.out.startswith("policy    largest workload.batch")
    assert "hosim tried values of 3 significant digits from 1 to 8" in done.out
