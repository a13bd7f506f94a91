"""Where a figure holds, and how it is told: stretches, ends, and what goes up and down."""

import pytest
from pydantic import ValidationError
from sensitivity import dependences, sensitivity_view
from unstated import Unstated

from simulator.catalog import Axis, at, read_hardware, resolve
from simulator.catalog.settings import scaled
from simulator.report.pictures import curves
from simulator.units import FieldError, parse

LENGTH = Unstated(parameter="length", fields=("workload.sequence",), low=1.0, high=9.0, multiple_of=2, why="a test")


def verdict(error: float | None) -> dict:
    """Of a figure of 1 s."""
    holds = error is not None and abs(error) <= 0.05
    found = "none, as the row is infeasible" if error is None else f"{1 + error:.2f} s"
    return {"scenario": "s", "row": "a", "column": "step_ns", "claim": "the step", "figure": "", "asks": "a: step",
            "printed": "1 s", "obtained": found, "error": error, "tolerance": "5.0 %", "kind": "predicted",
            "range": "", "verdict": "holds" if holds else "BROKEN", "holds": holds}  # fmt: skip


def outcomes(errors: dict[float, float | None], taken: float = 4, parameter: str = "length") -> list[dict]:
    about = {"parameter": parameter, "unit": "", "taken": taken}
    return [about | verdict(error) | {"value": value} for value, error in errors.items()]


def view(*groups: list[dict]):
    every = [row for group in groups for row in group]
    return sensitivity_view(dependences(every), every)


@pytest.mark.parametrize(
    ("errors", "holds"),
    [
        ({2: -0.2, 4: 0.0, 6: 0.04, 8: 0.3}, "4 to 6"),
        ({2: 0.2, 4: 0.0, 6: -0.04, 8: -0.3}, "4 to 6"),
        ({2: 0.01, 4: 0.0, 6: 0.3, 8: 0.02}, "2 to 4 and 8"),
        ({2: 0.3, 4: 0.2}, "nowhere"),
        ({2: 0.0, 4: 0.0}, "all"),
        ({2: -0.1, 4: 0.0, 6: None}, "4"),
    ],
)
def test_stretches_in_which_a_figure_holds(errors, holds):
    (section,) = view(outcomes(errors)).sections
    assert section.columns[-1].cells == (holds,)


def test_a_value_with_which_no_step_ends_has_no_error_and_comes_first():
    ends, lost = outcomes({2: -0.9, 4: 0.9}, parameter="other"), outcomes({2: 0.0, 4: 0.0, 6: None})
    (row,) = dependences(lost)
    assert (row["error_high"], row["swing"], row["obtained_high"]) == (None, None, "none, as the row is infeasible")
    assert str(view(ends, lost)).splitlines()[2].split()[0] == "length"


def test_the_picture_has_a_curve_for_each_figure_and_large_dots_where_it_holds():
    (panel,) = view(outcomes({2: 0.3, 4: 0.0, 6: 0.3, 8: 0.0, 10: 0.3})).panels
    (ax,) = (ax for ax in curves("x", [panel]).figure.axes if ax.lines)
    assert [len(line.get_xdata()) for line in ax.lines] == [5, 2, 2], "the curve, the dots, and what is printed"
    assert list(ax.lines[0].get_ydata()) == pytest.approx([30, 0, 30, 0, 30])
    assert list(ax.lines[1].get_xdata()) == [4, 8]


def test_values_are_multiples_or_equal_parts_with_both_ends():
    assert LENGTH.tried == (2, 4, 6, 8)
    rate = Unstated(parameter="r", fields=("x",), low="1 GB/s", high="2 GB/s", why="a test")
    assert (rate.tried[0], rate.tried[-1], len(rate.tried)) == (10**9, 2 * 10**9, 65)
    factor = Unstated(parameter="f", fields=("x",), low="0.5x", high="2x", why="a test")
    assert (factor.tried[0], factor.tried[-1]) == (0.5, 2.0)
    with pytest.raises(FieldError, match="both ends of a range"):
        factor.read("2 GB/s")


@pytest.mark.parametrize("end", [2.0**62, "inf", "2x"])
def test_a_range_that_does_not_end_is_refused(end):
    with pytest.raises(ValidationError, match=r"a range (goes|are)|both ends of a range"):
        Unstated.model_validate(LENGTH.model_dump() | {"to": end})


def test_what_is_multiplied_stays_a_whole_quantity():
    machine = read_hardware("ascend_910c_die")
    factors = {"host.reactive.update": 1.8751, "links.h2d.bandwidth": 0.333333333333, "compute.achieved_bandwidth": 0.5}
    found = scaled(machine, factors)
    assert found["host.reactive.update"] == "8.813 us"
    assert parse(found["links.h2d.bandwidth"], "B/s") == 11_200_000_000
    assert found["compute.achieved_bandwidth"] == 0.841 / 2
    point = {Axis(path, (path,), "a test", "x"): factor for path, factor in factors.items()}
    assert at(resolve("tiny_train_910c"), point).hardware.host.reactive.update_ns == 8813
