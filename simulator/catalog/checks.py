"""What the documents of a scenario must hold beside one another."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.catalog.shelf import Entry
from simulator.document import Document
from simulator.errors import ConfigError
from simulator.hardware import Hardware
from simulator.scenario import Scenario
from simulator.units import human, nearest


def place(scenario: Scenario, entry: Entry[Scenario] | None, *keys: str) -> str:
    """Say where a field of a scenario stands; its name and the path if it was read from no file."""
    return entry.place(*keys) if entry else f"scenario {scenario.name!r}, {'.'.join(keys)}"


def check_tiers(scenario: Scenario, hardware: Hardware, entry: Entry[Scenario] | None) -> None:
    """Refuse homes, and tiers for KV blocks, that the machine does not have."""
    known = (*hardware.tiers, "free")
    for pattern, tier in scenario.homes.items():
        if tier not in known:
            where = place(scenario, entry, "homes", pattern)
            raise ConfigError(where, "a home is a tier, or free", repr(tier), nearest(tier, known))
    for tier in scenario.kv_tiers:
        if tier not in hardware.tiers:
            where, must = place(scenario, entry, "kv_tiers", tier), "a tier of the machine keeps KV blocks"
            raise ConfigError(where, must, repr(tier), nearest(tier, (*hardware.tiers,)))


def check_budget(scenario: Scenario, hardware: Hardware, where: str) -> None:
    """Refuse a budget above what the compute tier has; `where` is what an error points at."""
    usable = hardware.tiers[hardware.compute_tier].usable_bytes
    if scenario.budget_bytes is not None and scenario.budget_bytes > usable:
        must = f"a budget is at most what {hardware.compute_tier} has ({human(usable, 'B')})"
        do = f"lower it, or set tiers.{hardware.compute_tier}.capacity"
        raise ConfigError(where, must, human(scenario.budget_bytes, "B"), do)


def check_figures(scenario: Scenario, documents: Sequence[Document], entry: Entry[Scenario] | None) -> None:
    """Refuse to predict what something was fitted to, and to hold a fit that nobody made."""
    fits = {fit.figure: (path, document) for document in documents for path, fit in document.fitted.items()}
    for number, one in enumerate(scenario.expect):
        if one.kind == "predicted" and one.figure in fits:
            path, document = fits[one.figure]
            must = "no scenario predicts a printed figure that something in it was fitted to"
            found = f"{one.figure!r}, which {path} of {document.name} was fitted to"
            where = place(scenario, entry, "expect", str(number), "figure")
            raise ConfigError(where, must, found, "set kind: fitted, or name another figure")
        if one.kind == "fitted" and one.figure not in fits:
            must = "a fitted figure is named in the table fitted of the scenario, its machine or its workload"
            where = place(scenario, entry, "expect", str(number), "figure")
            do = nearest(one.figure or "", tuple(fits)) if fits else "add what was fitted to it, or drop kind"
            raise ConfigError(where, must, repr(one.figure), do)
