"""`hosim largest`, `hosim.largest` and the key `largest:`: how far a row fits."""

from __future__ import annotations

import json
from functools import partial

import pytest

import simulator as hosim_api
from simulator import catalog
from simulator.run.case import prepare

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
kv: {block: 256}
assumed: {model: a test, sequence: a test, kv: a test}
"""
SCENARIO = """\
schema: hosim/scenario/1
name: longest
hardware: machine.yaml
workload: workload.yaml
homes: {kv_cache: free}
policies: [resident, static]
largest: {field: sequence, at_most: 8192, multiple_of: 256}
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
    (path.parent / "one.yaml").write_text(SCENARIO.replace("largest:", "#"))
    return hosim_api.run(path.parent / "one.yaml", policies=[policy])[policy].status == "ok"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What comes of it as it is written."""
    return hosim_api.largest(write(tmp_path_factory.mktemp("longest")))


@pytest.mark.parametrize("policy", ["resident", "static"])
def test_it_is_where_a_run_still_fits_and_the_next_does_not(found, longest, policy):
    path = longest()
    (row,) = (row for row in found.rows if row["policy"] == policy)
    value = row["largest_sequence"]
    assert row["next"] == value + 256
    assert fits(path, value, policy)
    assert not fits(path, value + 256, policy)


def test_what_offloads_goes_further_and_the_row_is_that_of_its_largest_value(found):
    resident, static = found.rows
    assert resident["largest_sequence"] < static["largest_sequence"]
    assert 10e6 - 256 * TOKEN_BYTES < resident["peak_hbm_bytes"] <= 10e6
    assert resident["limit"] == "hbm"
    assert resident["limit_demand_bytes"] > resident["limit_capacity_bytes"] == 10_000_000
    assert list(found.table["largest_sequence"]) == [row["largest_sequence"] for row in found.rows]


def test_no_plan_goes_beyond_the_bound(found, longest):
    """Where `resident` ends is its own doing; where `static` ends is nearly that of any plan, and is proved."""
    path = longest()
    resident, static = found.rows
    bound = resident["bound_sequence"]
    assert resident["largest_sequence"] < static["largest_sequence"] <= bound == static["bound_sequence"]
    loaded, axis = catalog.resolve(path).asking_nothing(), catalog.Axis("sequence", ("workload.sequence",), "a test")
    for value, is_proved in ((bound, False), (bound + 256, True)):
        case = prepare(catalog.at(loaded, {axis: value}))
        assert (case.unfit() is not None) is is_proved


def test_the_search_halves(longest):
    (row,) = hosim_api.largest(longest(), policies=["resident"]).rows
    assert row["tried"] <= 1 + (8192 // 256).bit_length()


def test_the_command_prints_a_line_for_each_policy_and_why(hosim, longest):
    done = hosim("largest", longest(), "--policy", "resident")
    assert done.code == 0
    head, row, _, why, premise = done.out.splitlines()
    assert head.split()[:7] == ["policy", "largest", "sequence", "no", "plan", "beyond", "step"]
    (value,) = (row["largest_sequence"] for row in hosim_api.largest(longest(), policies=["resident"]).rows)
    assert row.split()[:2] == ["resident", f"{value:,}"]
    assert why.startswith(f"resident fits with sequence {value:,}: ")
    assert f": with {value + 256:,} hbm is short by " in why
    assert "what fits is taken to fit with less, too" in premise


def test_what_fits_everywhere_and_what_fits_nowhere_are_told(hosim, longest):
    done = hosim("largest", longest(), "--policy", "resident", "--at-most", 768)
    assert "768 or more" in done.out
    assert "resident fits with sequence 768, the largest that was tried; raise at_most to go on." in done.out
    done = hosim("largest", longest(), "--policy", "resident", "--set", "tiers.hbm.capacity=1 MB")
    assert done.code == 1
    assert "resident fits with no sequence that was tried: with 256 hbm is short by" in done.out


def test_it_may_be_another_field(hosim, longest):
    path = longest("largest:", "#")
    done = hosim("largest", path, "--field", "batch", "--at-most", 64, "--policy", "resident")
    assert done.code == 0
    assert done.out.startswith("policy    largest batch")


def test_a_run_adds_the_column_which_may_be_expected(hosim, found, longest, tmp_path):
    value = found.rows[0]["largest_sequence"]
    expect = f"expect: [{{row: resident, column: largest_sequence, equals: {value}}}]\nassumed: {{}}"
    done = hosim("run", longest("assumed: {}", expect), "--policy", "resident", "--out", tmp_path / "out")
    assert done.code == 0
    assert "resident fits with sequence" in done.out
    assert "Expectations of the scenario: 1 of 1 hold." in done.out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["rows"][0]["largest_sequence"] == value
    assert (
        hosim("run", longest("assumed: {}", expect.replace("equals: ", "equals: 9")), "--policy", "resident").code == 1
    )


def test_a_plan_from_a_file_is_not_searched(hosim, longest, tmp_path):
    hosim("run", longest("largest:", "#"), "--policy", "static", "--out", tmp_path / "out")
    plan = next((tmp_path / "out").rglob("plan*.jsonl*"))
    done = hosim("largest", longest("[resident, static]", f"[{plan}]"))
    assert done.code == 1
    assert "was not searched: a plan from a file is of one graph" in done.out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("largest:", "#", "largest.field: the key 'field' is needed here, found none"),
        ("field: sequence", "field: sequense", "a change names a field of the workload, found 'sequense'"),
        ("field: sequence", "field: phase", "(phase: 8,192): "),
        ("at_most: 8192", "at_most: 0", "at_most"),
        ("at_most: 8192", "at_most: 32", "at_most is at least 256, the least multiple that is tried, found 32"),
        ("at_most: 8192", "at_most: 64000000", "a KV cache has at most 500,000 blocks"),
        ("at_most: 8192", "at_mots: 8192", "at_mots"),
    ],
)
def test_a_wrong_question_is_one_message(old, new, said, hosim, longest):
    done = hosim("largest", longest(old, new))
    assert done.code == 1
    assert said in done.err
    assert done.err.count("hosim: ") == 1
