"""Enumerations take too long for a test: a fixed sample of their settings is selected, or not, as recorded."""

from __future__ import annotations

import re

import pytest
from choices import SELECTS, _choices, judged_setting
from pages import PAGES
from sensitivity import count_besides
from unstated import open_claim

from simulator import builders, catalog
from simulator.errors import HosimError

SAMPLES = {
    "deepseek_v3_nsa_deployments": (100, 331),
    "deepseek_v3_nsa_deployments_chunked": (40, 607),
    "deepseek_v3_train_baseline": (20, 71),
    "llama3_8b_runtime_910c": (50, 173),
    "llama3_8b_runtime_pinned_910c": (30, 127),
}
"""Scenario -> the first setting that is run again, and how many there are from one to the next."""


def printed(name):
    """What the PAGES show of the enumeration of a scenario."""
    command = rf"<!-- measured by: python tests/choices.py [^\n]*\b{name}\b[^\n]* -->\n.*?```text\n(.*?)```"
    (shown,) = re.findall(command, PAGES, re.DOTALL)
    return shown


def selected(name):
    """The settings that are shown as selected, and how many there are in all."""
    choices = [one.choice for one in open_claim(name).choices]
    shown = printed(name).split(f"{name}: ", 1)[1]
    more, table = re.search(r"^Selected settings(?:, \d+ of (\d+))?[^\n]*\n(.*?)\n\n", shown, re.DOTALL | re.M).groups()
    found = [tuple(re.split("  +", line)[: len(choices)]) for line in table.splitlines()[1:]]
    return found, int(more or len(found))


@pytest.mark.parametrize("name", SAMPLES)
def test_as_many_are_selected_as_are_recorded(name):
    found, many = selected(name)
    (counted, *_) = catalog.read_scenario(name).claim.counted
    assert counted.startswith(f"{name}: {many} of ")
    _, settings = _choices(catalog.resolve(name))
    assert set(found) <= set(settings)
    assert len(set(found)) == len(found) == min(many, 24)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_selected_or_not_as_it_is_recorded(name):
    loaded, (known, _), (first, step) = catalog.resolve(name), selected(name), SAMPLES[name]
    axes, settings = _choices(loaded)
    for setting in [*known[:2], *settings[first::step]]:
        assert is_selected(catalog.at(loaded, dict(zip(axes, setting, strict=True))), setting) == (setting in known)


def is_selected(loaded, setting):
    """Whether a setting reproduces all that selects, by a run; what screens must have told its peak to the byte."""
    try:
        rows = judged_setting(loaded, setting)
    except HosimError:
        return False
    if screens := open_claim(loaded.scenario.name).screens:
        (peak,) = (row for row in rows if row["figure"] == screens)
        ((told),) = count_besides(loaded, setting)
        ahead = sum(weight.size_bytes for weight in builders.layouts(loaded.workload).values()) + told["besides_bytes"]
        assert ahead == pytest.approx((1 + peak["error"]) * 61.2e9, rel=1e-12)
    return all(row["holds"] for row in rows if row["role"] == SELECTS)
