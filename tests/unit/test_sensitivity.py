"""Where a figure holds, and how it is told: stretches, ends, and what goes up and down."""

import pytest
from matplotlib.colors import to_hex

from simulator.catalog import multiplied, read_hardware, resolve
from simulator.report.expectations import Verdict
from simulator.report.sensitivity import Dependence, rows, sentences, text
from simulator.report.tornado import tornado
from simulator.scenario import Unstated
from simulator.units import FieldError, parse

LENGTH = Unstated(parameter="length", fields=("workload.sequence",), low=1.0, high=9.0, multiple_of=2, why="a test")


def verdict(error: float | None, within: float = 0.05) -> Verdict:
    """Of a figure of 1 s."""
    holds = error is not None and abs(error) <= within
    found = "none, as the row is infeasible" if error is None else f"{1 + error:.2f} s"
    return Verdict("a", "step_ns", "about 1 s", found, holds, "the step", asks="a: step", printed="1 s", error=error,
                   tolerance="5.0 %")  # fmt: skip


def dependence(errors: dict[float, float | None], taken: float = 4) -> Dependence:
    return Dependence("s", LENGTH, taken, {value: verdict(error) for value, error in errors.items()})


@pytest.mark.parametrize(
    ("errors", "holds", "is_monotone"),
    [
        ({2: -0.2, 4: 0.0, 6: 0.04, 8: 0.3}, "4 to 6", True),
        ({2: 0.2, 4: 0.0, 6: -0.04, 8: -0.3}, "4 to 6", True),
        ({2: 0.01, 4: 0.0, 6: 0.3, 8: 0.02}, "2 to 4 and 8", False),
        ({2: 0.3, 4: 0.2}, "nowhere", True),
        ({2: 0.0, 4: 0.0}, "all", True),
        ({2: -0.1, 4: 0.0, 6: None}, "4", True),
    ],
)
def test_stretches_in_which_a_figure_holds(errors, holds, is_monotone):
    found = dependence(errors)
    assert (found.holds, found.is_monotone) == (holds, is_monotone)


def test_what_goes_up_and_down_is_said_with_its_extremes():
    found = [dependence({2: 0.01, 4: 0.0, 6: 0.3, 8: 0.02})]
    assert "+1.0 % to +2.0 %, 0 % to +30 % between" in text(found)
    assert "the step goes up and down with length, so that where it holds is no range." in sentences(found)


def test_what_does_not_hold_as_taken_would_elsewhere_or_nowhere():
    assert sentences([dependence({2: 0.0, 4: 0.2})])[0] == "the step would hold for length 2."
    assert sentences([dependence({2: 0.3, 4: 0.2})])[0] == "the step holds with no value that was tried."


def test_a_value_with_which_no_step_ends_has_no_error_and_comes_first():
    ends = Dependence("s", LENGTH.model_copy(update={"parameter": "other"}), 4, {2: verdict(-0.9), 4: verdict(0.9)})
    lost = dependence({2: 0.0, 4: 0.0, 6: None})
    (row,) = rows([lost])
    assert (row["error_high"], row["swing"], row["obtained_high"]) == (None, None, "none, as the row is infeasible")
    assert text([ends, lost]).splitlines()[2].split()[0] == "length"


def test_dark_is_only_what_holds_also_where_bars_would_lie_over_each_other():
    found = dependence({2: 0.3, 4: 0.0, 6: 0.3, 8: 0.0, 10: 0.3})
    (ax,) = tornado([found], "x").axes
    bars = [(to_hex(bar.get_facecolor(), keep_alpha=True), bar.get_width()) for bar in ax.patches if bar.get_width()]
    assert [round(width) for _, width in bars] == [10, 30], "what is accepted, and one pale bar"
    assert len(ax.lines[-2].get_xdata()) == 5, "a point for each value"


def test_values_are_multiples_or_equal_parts_with_both_ends():
    assert LENGTH.values == (2, 4, 6, 8)
    with pytest.raises(ValueError, match="a range has at most 100,000 multiples, found 2,305,843,009,213,693,952"):
        _ = Unstated.model_validate(LENGTH.model_dump() | {"to": 2.0**62}).values
    rate = Unstated(parameter="r", fields=("x",), low="1 GB/s", high="2 GB/s", why="a test")
    assert (rate.values[0], rate.values[-1], len(rate.values)) == (10**9, 2 * 10**9, 65)
    assert all(rate.number(rate.written(value)) == value for value in rate.values)
    factor = Unstated(parameter="f", fields=("x",), low="0.5x", high="2x", why="a test")
    assert (factor.values[0], factor.values[-1], factor.written(0.5)) == (0.5, 2.0, 0.5)
    with pytest.raises(FieldError, match="both ends of a range are factors"):
        factor.number("2 GB/s")


def test_what_is_multiplied_stays_a_whole_quantity():
    machine = read_hardware("ascend_910c_die")
    factors = {"host.reactive.update": 1.8751, "links.h2d.bandwidth": 0.333333333333, "compute.achieved_bandwidth": 0.5}
    found = multiplied(machine, factors)
    assert found["host.reactive.update"] == "8.813 us"
    assert parse(found["links.h2d.bandwidth"], "B/s") == 11_200_000_000
    assert found["compute.achieved_bandwidth"] == 0.841 / 2
    assert resolve("tiny_train_910c", scale=factors).hardware.host.reactive.update_ns == 8813
