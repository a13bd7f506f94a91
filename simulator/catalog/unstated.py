"""Parameters that a claim leaves open: what a scenario takes for them, and the scenario with another value."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simulator.catalog.checks import check_budget
from simulator.catalog.settings import Change, apply, matches, multiplied, stated
from simulator.errors import ConfigError
from simulator.scenario import Unstated
from simulator.scenario.unstated import WORKLOAD
from simulator.units import FieldError

if TYPE_CHECKING:
    from simulator.catalog.loaded import Loaded
    from simulator.hardware import Hardware
    from simulator.workload import Workload


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
    one = open_of(loaded)[number]
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
    for number, one in enumerate(open_of(loaded)):
        taken(loaded, number)
        for end in (one.values[0], one.values[-1]):
            machine, _ = changed(loaded, number, end)
            check_budget(loaded.scenario, machine, _where(loaded, number, end))


def changed(loaded: Loaded, number: int, value: float) -> tuple[Hardware, Workload]:
    """Give a parameter that a claim leaves open another value, in the machine and in the workload.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.
    number, value
        Which parameter, in the order of the claim; and its value, as a number of its unit.

    Raises
    ------
    ConfigError
        If the machine or the workload is not valid with the value.
    """
    one, where = open_of(loaded)[number], _where(loaded, number, value)
    change = Change(one.written(value), where, "assumed", one.why)
    in_workload = {field.removeprefix(WORKLOAD): change for field in one.fields if field.startswith(WORKLOAD)}
    in_machine = {field: change for field in one.fields if not field.startswith(WORKLOAD)}
    if one.is_factor:
        try:
            figures = multiplied(loaded.hardware, dict.fromkeys(one.fields, value))
        except ConfigError as error:
            raise ConfigError(where, error.must, error.found, error.do) from None
        in_machine = {path: replace(change, value=figure) for path, figure in figures.items()}
    return apply(loaded.hardware, in_machine), apply(loaded.workload, in_workload)


def open_of(loaded: Loaded) -> tuple[Unstated, ...]:
    """The parameters that the claim of a scenario leaves open; none if it has no claim."""
    return loaded.scenario.claim.unstated if loaded.scenario.claim else ()


def _where(loaded: Loaded, number: int, value: float) -> str:
    """Where a parameter is left open, and which value it has."""
    one = open_of(loaded)[number]
    shown = f"{value:g}x" if one.is_factor else one.written(value)
    return f"{loaded.place('claim', 'unstated', str(number))} ({one.parameter}: {shown})"


def _check_rows(loaded: Loaded, where: str, path: tuple[str, ...]) -> None:
    """Refuse what a row sets for itself: another value would not reach it."""
    for choice in loaded.scenario.policies:
        for key in choice.set_:
            parts = key.split(".")
            if path and all(matches(part, own) for part, own in zip(parts, path, strict=False)):
                must = "what a row sets is stated, and no parameter that is left open"
                do = f"drop it from unstated, or {key!r} from the row; or vary it by a factor, such as 0.5x to 2x"
                raise ConfigError(where, must, f"{'.'.join(path)} set by {choice.row!r}", do)
