"""What a message names as enough is enough: every amount of room is set, and the row runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from examples import examples
from hypothesis import event, given, settings
from hypothesis import strategies as st
from strategies import graphs, homes, machines

from simulator import catalog
from simulator.catalog import settings as settings_of_machine
from simulator.errors import CapacityError, Shortfall
from simulator.graph import Job
from simulator.hardware import Hardware
from simulator.plan import NOWHERE, Plan
from simulator.policies import POLICIES, Problem
from simulator.run import Result, run_case
from simulator.run.case import Case, prepare
from simulator.run.row import row_of
from simulator.run.sweep import silent
from simulator.scenario import Scenario
from simulator.workload import Workload

pytestmark = pytest.mark.usefixtures("quick_plans")

ROWS = ("resident", "reactive", "lookahead", "offload_saved", "recompute", "static", "upstream_greedy")
SHIPPED = (
    ("tiny_train_910c", 0.9),
    ("tiny_train_910c", 0.2),
    ("tiny_train_t4", 0.5),
    ("llama3_8b_train_910c", 0.05),
    ("llama3_8b_8x1x1", 0.2),
    *(
        pytest.param(*one, marks=pytest.mark.slow)
        for one in (
            ("llama3_8b_layer_scaling", 0.05),
            ("residency_acceptance", 0.2),
            ("llama3_8b_train_h100", 0.05),
            ("llama3_8b_2x2x2", 0.15),
            ("cloudmatrix384_pool", 0.02),
            ("prefill_decode_pools", 0.05),
        )
    ),
)
"""Scenarios, and the share of the usable compute tier that is left to them; long models with fewer layers."""

FEWER_LAYERS = 4
"""Layers of a model that ships with more: what is true of a layer is true of many, and many take minutes."""


def set_room(case: Case, room: dict[str, int]) -> Case:
    """Do as the message says: write the amounts into the documents, and read these again."""
    scenario, hardware = case.loaded.scenario, case.hardware.model_dump(by_alias=True, exclude_unset=True)
    for name, usable in room.items():
        tier = case.hardware.tiers[name]
        if usable > tier.usable_bytes:
            hardware["tiers"][name]["capacity"] = f"{usable + tier.reserved_bytes + tier.staging_bytes} B"
    if case.hardware.compute_tier in room and scenario.budget_bytes is not None:
        scenario = scenario.model_copy(update={"budget_bytes": room[case.hardware.compute_tier]})
    return prepare(replace(case.loaded, scenario=scenario, hardware=Hardware.model_validate(hardware)), case.job)


def alone(case: Case, decide: Callable[[Problem], Plan]) -> Result:
    """The row of a policy that is none of the scenario's, without those."""
    return row_of(case, "row", decide, silent)


def check(case: Case, row: Result) -> None:
    """Every amount that the row names is the one in its words, and enough."""
    assert row.shortfall is not None
    for lever, room in zip(row.shortfall.levers, row.shortfall.rooms, strict=False):
        told = {int(number.replace(",", "")) for number in re.findall(r" to (?:[^(,]*\()?([\d,]+) B", lever)}
        tiers = ((case.hardware.tiers[name], amount) for name, amount in room.items())
        capacities = {amount + tier.reserved_bytes + tier.staging_bytes for tier, amount in tiers}
        assert told
        assert told <= capacities | set(room.values())
        enough = set_room(case, room)
        if " for static" in lever:
            options = {"recompute": "with recompute" in lever}
            witness = alone(enough, partial(POLICIES["static"].plan, options=options))
            assert witness.status == "ok", lever
        else:
            assert run_case(enough, [row.label])[row.label].status == "ok", lever


def test_an_amount_above_what_is_lacking_says_why():
    """A policy whose plan with what it lacked is another one, which lacks more."""

    def decide(problem: Problem) -> Plan:
        least = {400: 410, 410: 430}.get(problem.budget_bytes // 10**6, 0) * 10**6
        if problem.budget_bytes < least:
            raise CapacityError(Shortfall("hbm", least, int(problem.budget_bytes), "op 'a'"))
        return POLICIES["static"].plan(problem, {})

    loaded = catalog.resolve("tiny_train_t4")
    for budget, said in (
        (400, "by 30.0 MB to 430 MB (430,000,000 B) for row to run"),
        (410, "by 20.0 MB to 430 MB"),
    ):
        scenario = loaded.scenario.model_copy(update={"budget_bytes": budget * 10**6})
        row = alone(prepare(replace(loaded, scenario=scenario)), decide)
        assert row.shortfall is not None
        assert row.shortfall.levers[0].startswith(f"raise the budget in hbm {said}")
        assert row.shortfall.levers[0].endswith("for row to run") == (budget == 400)


def shortened(name: str) -> catalog.Loaded:
    """A shipped scenario whose model has few layers."""
    loaded = catalog.resolve(name)
    model = loaded.workload.model
    if getattr(model, "layers", 0) <= FEWER_LAYERS:
        return loaded
    model = model.model_copy(update={"layers": FEWER_LAYERS})
    parallel = loaded.workload.parallel.model_copy(update={"layers": None})
    return replace(loaded, workload=loaded.workload.model_copy(update={"model": model, "parallel": parallel}))


@pytest.mark.parametrize(("name", "share"), SHIPPED)
def test_every_amount_of_a_shipped_scenario_is_enough(name, share):
    loaded = shortened(name)
    usable = loaded.hardware.tiers[loaded.hardware.compute_tier].usable_bytes
    changes = {"budget_bytes": int(share * (loaded.scenario.budget_bytes or usable)), "expect": ()}
    case = prepare(replace(loaded, scenario=loaded.scenario.model_copy(update=changes)))
    rows = [row for row in run_case(case, ["resident", "static"]).values() if row.shortfall is not None]
    assert any(row.shortfall.rooms for row in rows if row.shortfall)
    for row in rows:
        check(case, row)


@pytest.mark.parametrize("lacking", [680_000, 40_000_000])
def test_room_that_chunks_keep_is_told(lacking):
    """DDR lacks less than the chunks of two staged links keep there, or more."""
    loaded = shortened("llama3_70b_stream_ssd")
    scenario = loaded.scenario.model_copy(update={"expect": (), "sweep": {}})
    loaded = replace(loaded, scenario=scenario)
    graph, ddr = prepare(loaded).graph, loaded.hardware.tiers["ddr"]
    at_home = sum(tensor.size_bytes for tensor in graph.tensors if tensor.persistent and tensor.kind == "kv_cache")
    capacity = ddr.capacity_for(at_home) - lacking
    case = changed(prepare(loaded), {"tiers.ddr.capacity": capacity})
    row = run_case(case, ["static"])["static"]
    assert row.shortfall is not None
    assert row.shortfall.short_bytes == lacking
    assert row.shortfall.staged == "ssd_to_hbm and hbm_to_ssd keep 33.6 MB of ddr for chunks under way"
    assert f"({capacity + lacking:,} B)" in row.shortfall.levers[0]
    assert "; ssd_to_hbm and hbm_to_ssd keep 33.6 MB" in str(CapacityError(row.shortfall))
    check(case, row)


def changed(case: Case, sizes: dict[str, int]) -> Case:
    """The case on its machine with other sizes, as ``--set`` writes them."""
    changes = {key: settings_of_machine.FieldChange(f"{size} B", "-", "assumed", "-") for key, size in sizes.items()}
    machine = settings_of_machine.apply(case.hardware, changes)
    return prepare(replace(case.loaded, hardware=machine), case.job)


@st.composite
def tight(draw) -> Case:
    """A random job of a rank or two with little room in the compute tier, and perhaps below."""
    graph, hardware = draw(graphs(max_ops=8)), draw(machines())
    names = hardware.tier_names
    home = {
        tensor.name: draw(st.sampled_from(["free", names[0] if tier == NOWHERE else names[tier]]))
        for tensor, tier in zip(graph.tensors, draw(homes(graph, hardware)), strict=True)
    }
    tiers = dict(hardware.tiers)
    if draw(st.booleans()):
        tiers["ddr"] = tiers["ddr"].model_copy(update={"capacity_bytes": draw(st.integers(0, 120))})
    if draw(st.booleans()):
        tiers["hbm"] = tiers["hbm"].model_copy(update={"capacity_bytes": 100, "reserved_bytes": 10})
    topology = hardware.topology.model_copy(update={"devices_per_node": 2})
    hardware = hardware.model_copy(update={"tiers": tiers, "topology": topology})
    budget = None if tiers["hbm"].reserved_bytes else f"{draw(st.integers(1, 90))} B"
    origins = {"assumed": {"budget": "random"}} if budget else {}
    scenario = Scenario.model_validate(
        {"name": "random", "hardware": "-", "workload": "-", "homes": home, "policies": ROWS}
        | ({"budget": budget} if budget else {}) | origins
    )  # fmt: skip
    workload = Workload.model_validate(
        {"name": "random", "graph": "-", "steps": graph.steps, "assumed": {"steps": "-"}}
    )
    loaded = catalog.Loaded(scenario, hardware, workload, Path(), Path())
    return prepare(loaded, Job.of(graph, draw(st.sampled_from([1, 1, 2]))))


@settings(max_examples=examples(15))
@given(tight())
def test_every_amount_that_is_named_is_enough(case):
    rows = [row for row in run_case(case).values() if row.shortfall is not None]
    for row in rows:
        check(case, row)
        event("an amount is named" if row.shortfall and row.shortfall.rooms else "none is")


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(tight())
def test_one_byte_less_of_the_least_budget_does_not_do(case):
    """Where no plan fits and what lacks is in the compute tier alone: premise, one rank."""
    unfit = case.unfit()
    if unfit is None or set(unfit.rooms[0]) != {"hbm"} or case.job.ranks > 1:
        return
    row = run_case(case, ["static"])["static"]
    assert row.shortfall is not None
    if row.shortfall.rooms[:1] == unfit.rooms[:1]:
        event("the least")
        less = {"hbm": unfit.rooms[0]["hbm"] - 1}
        if less["hbm"] > case.problem.budget_bytes:
            assert {one.status for one in run_case(set_room(case, less)).values()} == {"infeasible"}
    else:
        event("more than the least" if row.shortfall.rooms else "none was found")
