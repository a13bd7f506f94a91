"""Sliders in a notebook: one row of a scenario at other bandwidths, capacities and sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator import catalog
from simulator.catalog import Axis, Named
from simulator.errors import import_extra, insist
from simulator.run.grid import Cells
from simulator.run.results import Results
from simulator.run.row import rows_of
from simulator.units import human

if TYPE_CHECKING:
    from ipywidgets import Widget

TIMES = {
    "bandwidth": (0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4, 8),
    "capacity": (0.5, 0.625, 0.75, 0.875, 1, 1.25, 1.5, 2, 3, 4),
    "sequence": (0.125, 0.25, 0.5, 1, 2, 4),
}
"""Slider -> its values, as multiples of the documents' values: as far as the next machines, or models, may go."""


class WhatIf:
    """One row of a scenario with other values than the documents'; the graph of each sequence is built once.

    Parameters
    ----------
    scenario, set
        As in `simulator.run`.
    policy
        The row.

    Attributes
    ----------
    usual
        The values in the documents by slider: a multiple of the bandwidth of each link of the machine, the capacity of
        its compute tier [B] (the budget, if there is one), and the sequence, if the workload has one [tokens]; programs
        of a job have each their own.
    result
        The last answer.
    """

    def __init__(
        self,
        scenario: Named,
        *,
        policy: str = "static",
        set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    ) -> None:
        loaded = catalog.resolve(scenario, set)
        self._loaded, self._policy = loaded.without_questions(), policy
        self._cells = Cells([policy], with_bounds=False)
        tier, budget = loaded.hardware.compute_tier, loaded.scenario.budget_bytes
        room = f"tiers.{tier}.capacity"
        rooms = (room,) if budget is None else (room, "scenario.budget")
        fields = {"bandwidth": ("links.*.bandwidth",), "capacity": rooms, "sequence": ("workload.sequence",)}
        units = {"bandwidth": "x", "capacity": "B"}
        self._axes = {name: Axis(name, paths, f"interact, {name}", units.get(name)) for name, paths in fields.items()}
        capacity = loaded.hardware.tiers[tier].capacity_bytes if budget is None else budget
        self.usual: dict[str, Any] = {"bandwidth": 1, "capacity": capacity}
        if loaded.workload.decoder is not None:
            self.usual["sequence"] = loaded.workload.sequence
        self.result: Results | None = None

    def __call__(self, **values: Any) -> Results:
        """Run the row with other values.

        Parameters
        ----------
        **values
            By slider, in the units of `usual`; sliders that are not named keep the documents' values.

        Raises
        ------
        ConfigError
            If there is no such slider, or a document is not valid with these values.
        """
        must, do = "a slider is one of the scenario", f"use one of {', '.join(self.usual)}"
        for name in values:
            insist(name in self.usual, "interact", must, repr(name), do)
        point = {self._axes[name]: value for name, value in values.items() if value != self.usual[name]}
        case = self._cells.case(catalog.at(self._loaded, point))
        self.result = Results(case, rows_of(case, [self._policy], advice=False))
        return self.result

    def written(self, name: str, value: Any) -> str:
        """Write a slider's value for people; for the bandwidth, each distinct bandwidth of the links."""
        if name != "bandwidth":
            return human(value, "B") if name == "capacity" else f"{value:,}"
        rates = {link.bandwidth_bytes_per_s: None for link in self._loaded.hardware.links.values()}
        return ", ".join(human(round(rate * value), "B/s") for rate in rates)


def interact(
    scenario: Named,
    *,
    policy: str = "static",
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
) -> Widget:
    """Show sliders for bandwidth, capacity and sequence, and below them a scenario's result with their values.

    Parameters
    ----------
    scenario, set
        As in `simulator.run`.
    policy
        The row to run.

    Returns
    -------
    Widget
        A widget for a notebook; its ``ask`` is the `simulator.run.sliders.WhatIf` that runs the row.

    Raises
    ------
    ConfigError
        If a document is wrong, or ipywidgets is not installed.
    """
    do = "install it: pip install 'hosim[notebook]'"
    (ipywidgets,) = import_extra("interact", "ipywidgets draws sliders", do, "ipywidgets")
    ask, shown, sliders = WhatIf(scenario, policy=policy, set=set), ipywidgets.HTML(), {}
    for name, usual in ask.usual.items():
        values = [usual if times == 1 else round(usual * times, 2) for times in TIMES[name]]
        values = values if name == "bandwidth" else [int(value) for value in values]
        options = [(ask.written(name, value), value) for value in values]
        look = {"layout": {"width": "36rem"}, "continuous_update": False}
        sliders[name] = ipywidgets.SelectionSlider(options=options, value=usual, description=name, **look)

    def answer(_: object = None) -> None:
        shown.value = ask(**{name: slider.value for name, slider in sliders.items()})._repr_html_()

    for slider in sliders.values():
        slider.observe(answer, "value")
    answer()
    box = ipywidgets.VBox([*sliders.values(), shown])
    box.ask = ask
    return box
