"""Parameters that a claim leaves open: what a scenario takes for them, and how they vary."""

from __future__ import annotations

from simulator.catalog.axes import Axis, at
from simulator.catalog.loaded import Loaded
from simulator.catalog.settings import matches, stated
from simulator.errors import ConfigError
from simulator.scenario import Unstated
from simulator.scenario.unstated import WORKLOAD
from simulator.units import FieldError


def taken(loaded: Loaded, number: int) -> float:
    """Read what a scenario takes for a parameter that its claim leaves open, as a number of the parameter's unit.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.
    number
        Which parameter, in the order of the claim.

    Raises
    ------
    ConfigError
        If a path names no field, the fields have several values, or one outside of the range; or if a row sets one.
    """
    one = unstated(loaded)[number]
    where = loaded.place("claim", "unstated", str(number))
    found: dict[float, str] = {}
    try:
        for field in one.fields:
            in_workload = field.startswith(WORKLOAD)
            for path, value in stated(
                loaded.workload if in_workload else loaded.hardware, field.removeprefix(WORKLOAD)
            ):
                found[1.0 if one.is_factor else one.number(value)] = ".".join(path)
                _check_rows(loaded, where, () if in_workload or one.is_factor else path)
    except FieldError as error:
        raise ConfigError(where, error.must, error.found, error.do) from None
    if len(found) > 1:
        values = " and ".join(f"{one.written(value)} ({path})" for value, path in found.items())
        raise ConfigError(
            where, "the fields of a parameter have one value", values, "make parameters of their own of them"
        )
    (value,) = found
    if not one.number(one.low) <= value <= one.number(one.high):
        must = "what the scenario takes lies in the range"
        raise ConfigError(where, must, f"{one.written(value)} outside {one.low} to {one.high}", "widen the range")
    return value


def axis(loaded: Loaded, number: int) -> Axis:
    """Return the axis of a parameter that the claim leaves open, by its place in the claim."""
    one = unstated(loaded)[number]
    return Axis(one.parameter, one.fields, loaded.place("claim", "unstated", str(number)), one.unit)


def check_open(loaded: Loaded) -> None:
    """Refuse a parameter that is left open but cannot be varied, before anything runs.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.

    Raises
    ------
    ConfigError
        As of `taken`; or if the machine or the workload is not valid at an end of the range.
    """
    for number, one in enumerate(unstated(loaded)):
        taken(loaded, number)
        for end in (one.values[0], one.values[-1]):
            at(loaded, {axis(loaded, number): end})


def unstated(loaded: Loaded) -> tuple[Unstated, ...]:
    """The parameters that the claim of a scenario leaves open; none if it has no claim."""
    return loaded.scenario.claim.unstated if loaded.scenario.claim else ()


def _check_rows(loaded: Loaded, where: str, path: tuple[str, ...]) -> None:
    """Refuse what a row sets for itself: another value would not reach it."""
    for choice in loaded.scenario.policies:
        for key in choice.set_:
            parts = key.split(".")
            if path and all(matches(part, own) for part, own in zip(parts, path, strict=False)):
                must = "what a row sets is stated, and no parameter that is left open"
                do = f"drop it from unstated, or {key!r} from the row; or vary it by a factor, such as 0.5x to 2x"
                raise ConfigError(where, must, f"{'.'.join(path)} set by {choice.row!r}", do)
