"""A row is free if its step is as long as if nothing moved, whatever a job waits for then, too; and what keeps it."""

import re

import pytest
import some_ranks
from pages import printed

import simulator as hosim_api
from simulator import catalog
from simulator.run import bisection
from simulator.run.case import prepare
from simulator.run.row import unmoved_row

WORKLOAD = """
schema: hosim/workload/1
name: w
phase: decode
batch: 8
sequence: 512
model: {family: llama, layers: 4, hidden: 1024, heads: 8, kv_heads: 8, ffn: 3584, vocabulary: 8000}
parallel: {ranks: all, tensor: 2}
"""
HALF = '"L0[23]/*.weight"'


@pytest.fixture(scope="module", autouse=True)
def runs_end_with_their_rows():
    """They end with what would make them free, too."""


def laid(folder):
    homes = f"[static]\nhomes: {{{HALF}: ddr}}"
    return some_ranks.lay(folder, WORKLOAD, some_ranks.SCENARIO.replace("[resident]", homes))


@pytest.fixture
def scenario(tmp_path):
    return laid(tmp_path)


def step(scenario, policy="static", **changes):
    return hosim_api.run(scenario, policies=[policy], set=changes or None)[policy].summary["step_ns"]


def unmoved(scenario, **changes):
    return unmoved_row(prepare(catalog.resolve(scenario, changes or None)))


def in_hbm(scenario):
    """The same with all homes in hbm."""
    text = scenario.read_text()
    path = scenario.with_name("in_hbm.yaml")
    path.write_text(text.replace(f"homes: {{{HALF}: ddr}}", ""))
    return path


def test_unmoved_is_the_step_with_everything_in_hbm_whatever_it_has(scenario):
    """Its collectives count, its homes and its room do not; and nothing moves."""
    whole = hosim_api.run(in_hbm(scenario), policies=["resident"])["resident"].summary
    found = unmoved(scenario, **{"tiers.hbm.capacity": "20 MB"})
    assert found["status"] == "ok"
    assert found["step_ns"] == whole["step_ns"]
    assert found["stall_ns"] == found["wait_collective_ns"] > 0
    assert found["moved_h2d_bytes"] == 0


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What a run of the scenario prints, with the searches at its end."""
    return printed(hosim_api.run(laid(tmp_path_factory.mktemp("said")), what_if=None))


def test_where_only_collectives_are_left_a_row_is_free(said, scenario):
    amount = re.search(r"static needs links.\*.bandwidth ([\d.]+ \w+/s) \(now .*\) to be as fast as if", said)
    assert amount, said
    fast, same = {"links.*.bandwidth": amount[1]}, unmoved(scenario)
    assert step(scenario, **fast) <= 1.001 * same["step_ns"]
    assert same["stall_ns"] > 0.001 * same["step_ns"], "of collectives, so that the row stalls and is free"
    less, longer = re.search(
        r"as if nothing moved; at ([\d.]+ \w+/s) its step takes ([\d.]+)x as long\.", said
    ).groups()
    assert step(scenario, **{"links.*.bandwidth": less}) == pytest.approx(float(longer) * same["step_ns"], rel=1e-4)
    assert float(longer) > 1.001


@pytest.mark.slow
def test_a_condition_on_stall_that_fails_for_collectives_alone_says_so(hosim, scenario):
    asked = ("frontier", scenario, "--of", "links.*.bandwidth", "--such-that")
    stall = hosim(*asked, "stall <= 0.1 %").out
    assert "static meets stall <= 0.1 % at no links.*.bandwidth tried" in stall
    assert ", all of it waits for collectives that remain if nothing moves; ask for" in stall
    done = hosim(*asked, "step <= 1.001x", "--over", "unmoved")
    assert done.code == 0
    assert "static meets step <= 1.001x at links.*.bandwidth " in done.out
    short = hosim(*asked, "stall <= 0.1 %", "--at-most", "30 GB/s").out
    assert "all of it waits" not in short, "at that bandwidth copies are waited for, too"


def test_a_home_that_forces_traffic_though_all_would_fit_is_named(said, scenario):
    free = step(in_hbm(scenario))
    told = "L0[23]/*.weight has its home in ddr but would fit in hbm: with free homes "
    assert f"{told}a step of static takes {free / 1e3:.0f} us.\n" in said
    assert "capacity" not in said.partition("without a source")[2], "no capacity is searched that cannot help"


def test_homes_that_have_no_room_are_left_in_peace(hosim, scenario):
    """Not all would fit, so that the home is no mistake; and no plan that keeps it is free with any room."""
    said = hosim("run", scenario, "--set", "tiers.hbm.capacity=95 MB").out
    assert "would fit" not in said
    kept = r"static is not as fast as if nothing moved at any capacity while L0.* in ddr"
    told = re.search(f"{kept}: its step takes at least ([\\d.]+)x as long", said)
    assert told, said
    large = step(scenario, **{"tiers.hbm.capacity": "1 TB"})
    assert 1.001 < float(told[1]) <= large / unmoved(scenario)["step_ns"] + 0.005


def test_a_home_that_costs_nothing_is_not_named(hosim, scenario):
    said = hosim("run", scenario, "--set", "links.*.bandwidth=10 TB/s").out
    assert "would fit" not in said
    assert "as fast as" not in said.partition("without a source")[2]


UPDATE = "of state over h2d; to run it on the host, write on: {optimizer: host} in the workload."


@pytest.mark.parametrize(("homes", "is_said"), [("{optimizer_state: ddr}", True), ("{optimizer_state: free}", False)])
def test_an_update_whose_states_are_at_home_elsewhere_is_told_to_run_on_the_device(homes, is_said, hosim, scenario):
    work = scenario.with_name("workload.yaml")
    work.write_text(WORKLOAD.replace("decode", "train").replace("parallel: {ranks: all, tensor: 2}", ""))
    scenario.write_text(some_ranks.SCENARIO.replace("[resident]", f"[static, reactive]\nhomes: {homes}"))
    said = hosim("run", scenario, "--no-what-if").out
    graph = prepare(catalog.resolve(scenario)).graph
    size = sum(tensor.size_bytes for tensor in graph.tensors if tensor.kind == "optimizer_state")
    assert (f"The update runs on the device and reads {size / 1e6:.0f} MB {UPDATE}" in said) == is_said
    assert (UPDATE in said) == is_said


@pytest.mark.slow
@pytest.mark.parametrize("are_several", [False, True], ids=["one rank", "ranks that meet"])
def test_where_nothing_crosses_the_links_that_vary_the_row_without_moves_runs_once(are_several, scenario, monkeypatch):
    begun = []
    monkeypatch.setattr(bisection, "unmoved_row", lambda case: begun.append(case) or unmoved_row(case))
    asked = {"of": "links.*.bandwidth", "such_that": ["step <= 1.001x"], "over": "unmoved"}
    hosim_api.frontier(scenario if are_several else "tiny_train_910c", policies=["static"], **asked)
    assert (len(begun) > 1) == are_several


def test_without_moves_a_rank_alone_takes_as_long_with_any_links():
    slow, fast = (unmoved("tiny_train_910c", **{"links.*.bandwidth": rate}) for rate in ("1 GB/s", "100 GB/s"))
    assert slow == fast
