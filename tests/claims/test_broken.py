"""A model that is broken on purpose turns the rows red that depend on what was broken, and no others."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from pages import PAGES

import simulator as hosim
from simulator import catalog
from simulator.catalog import Axis
from simulator.policies.runtime_cache import RuntimeCache
from simulator.policies.writer import Writer

pytestmark = pytest.mark.slow
"""What a small scenario shows by default: `tests/e2e/test_validate.py`."""
TRAINING = ["llama3_8b_2x2x2", "llama3_8b_no1_910c", "llama3_8b_offload_bandwidths", "llama3_8b_runtime_910c"]
PEAK = "our own peak of the deployment"
OFFLOADED = "our own peak of the deployment, offloaded"
SAVING = "peak, offloaded over resident, a deployment"
NO_SLOWER = "the deployment is no slower than with everything resident"
NOT_HIDDEN = "step with nothing hidden, over the compiled one"
COMPACTIONS = "our own compactions"
NINE_SECONDS = "computation, nothing hidden"
NOTHING_ELSE = "waits of the runtime for all but transfers, compaction, host"
FIXED = "compactions with offsets that are fixed before the run"
HOST = "our own wait for the host"
SLOWDOWN = "slowdown over the printed baseline"
BROKEN_BELOW = {PEAK, OFFLOADED, SAVING, NO_SLOWER, NOT_HIDDEN, COMPACTIONS, NINE_SECONDS, NOTHING_ELSE, FIXED, HOST}
BY_BANDWIDTH = {
    "step at 33.6 GB/s, comparable to No.2",
    "step at 40 GB/s",
    "step at 50 GB/s, of the sweep",
    "step at 60 GB/s, of the sweep",
    "step at 70 GB/s",
    "nothing is left to gain at 70 GB/s",
    "stores at 60 GB/s, over compute",
    "stores at 70 GB/s, over compute",
    "exposed store time, at this bandwidth",
    "exposed store time",
    "computation, nothing hidden",
    "our own compute and transfers under the runtime",
    "our own compiled step",
    "our own step under the runtime",
    NOT_HIDDEN,
}
BY_COMPACTION = {"our own step of No.1", "our own step under the runtime", COMPACTIONS}


def broken(found):
    """What fails of what is told."""
    assert found.is_broken
    return {row["claim"] for row in found.rows if row["verdict"] == "BROKEN"}


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ({"links.*.bandwidth": 0.5}, BY_BANDWIDTH),
        ({"allocator.compaction.per_page": 0}, BY_COMPACTION),
    ],
)
def test_a_broken_model_turns_the_right_rows_red_and_no_others(scale, expected):
    assert broken(hosim.validate(TRAINING, scale=scale)) == expected


def test_the_headlines_hold():
    found = hosim.validate(headline=True)
    assert not found.is_broken
    assert {row["scenario"] for row in found.rows} == {"deepseek_v3_nsa_deployments", "llama3_8b_runtime_910c"}
    assert {row["claim"]: row["verdict"] for row in found.rows if row["claim"] not in BROKEN_BELOW} == {
        SLOWDOWN: "missed"
    }, "what nothing below breaks"
    assert found.view.sentences[-1] == (
        "Of 11 headline expectations 2 shown, 7 guarded, 1 by construction and 1 missed."
    )
    assert "0 printed figures predicted and held." in found.view.sentences
    assert "40 of 763 settings that fit the device (5.2 %; 3,024 are listed) reproduce" in " ".join(str(found).split())
    (shown,) = re.findall(r"<!-- output of: hosim validate --headline -->\n```text\n(.*?)```", PAGES, re.DOTALL)
    assert f"{found}\n" == shown


@pytest.mark.parametrize(
    ("names", "scale", "expected"),
    [
        (None, {"links.*.bandwidth": 0.5}, {NOT_HIDDEN, NINE_SECONDS}),
        (None, {"links.*.bandwidth": 0.01}, {OFFLOADED, SAVING, NO_SLOWER, NOT_HIDDEN, NINE_SECONDS}),
        (None, {"allocator.compaction.per_page": 0}, {COMPACTIONS}),
        (TRAINING[-1:], {"host.reactive.*": 100}, {HOST}),
    ],
)
def test_headlines_turn_red_with_the_machine_that_they_stand_on(names, scale, expected):
    found = hosim.validate(names, headline=True, scale=scale)
    assert broken(found) == expected
    assert f"choices.py {TRAINING[-1]}" not in str(found), "what was counted once was not counted on this machine"
    if scale == {"links.*.bandwidth": 0.01}:
        obtained = {row["claim"]: row["obtained"] for row in found.rows}
        assert {obtained[NINE_SECONDS], obtained[NOT_HIDDEN]} == {"none, as the row is infeasible"}


def test_headlines_turn_red_if_plans_do_not_look_ahead(monkeypatch):
    """Every copy of a plan begins when the op before it has ended, and the host waits for it."""
    copy = Writer.copy

    def alone(writer: Writer, tensor: int, source: int, target: int) -> None:
        writer.drain()
        copy(writer, tensor, source, target)
        writer.sync(tensor)

    monkeypatch.setattr(Writer, "copy", alone)
    assert broken(hosim.validate(headline=True)) == {NO_SLOWER, NOT_HIDDEN}


def test_the_account_of_waits_turns_red_if_the_host_runs_ahead_of_its_copies(monkeypatch):
    """A runtime that shall wait for each copy, and does not, waits for room instead."""
    made = RuntimeCache.__init__

    def ahead(cache: RuntimeCache, *what: object, synchronous: bool = False, **more: object) -> None:
        made(cache, *what, synchronous=False, **more)

    monkeypatch.setattr(RuntimeCache, "__init__", ahead)
    found = hosim.validate(TRAINING[-1:], headline=True)
    assert broken(found) == {NOTHING_ELSE, HOST}
    assert {row["obtained"] for row in found.rows if row["claim"] == NOTHING_ELSE} == {"2.38 s"}


def test_fixed_offsets_turn_red_if_their_places_are_given_out_at_run_time(monkeypatch):
    """The plan with fixed offsets alone is not what compacts nothing: with a pool it compacts like the others."""
    resolve = catalog.resolve

    def at_run_time(name):
        loaded = resolve(name)
        rows = [
            row.model_copy(update={"allocator": "best_fit" if row.allocator == "fixed" else row.allocator})
            for row in loaded.scenario.policies
        ]
        return replace(loaded, scenario=loaded.scenario.model_copy(update={"policies": tuple(rows)}))

    monkeypatch.setattr(catalog, "resolve", at_run_time)
    found = hosim.validate(TRAINING[-1:], headline=True)
    assert broken(found) == {FIXED}
    assert {row["obtained"] for row in found.rows if row["claim"] == FIXED} == {"18"}


def test_headlines_turn_red_if_the_three_views_share_a_cache(monkeypatch):
    resolve, axis = catalog.resolve, Axis("caches", ("workload.model.attention.sparse.caches",), "a test")

    def shared(name):
        return catalog.at(resolve(name), {axis: "shared"}) if "deepseek" in name else resolve(name)

    monkeypatch.setattr(catalog, "resolve", shared)
    assert broken(hosim.validate(headline=True)) == {PEAK, OFFLOADED, SAVING}
