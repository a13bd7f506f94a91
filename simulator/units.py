"""Quantities with units at the door, whole numbers inside.

A person writes ``80 GiB``, ``33.6 GB/s``, ``10 us``, ``376 TFLOP/s``; inside there are only whole bytes,
bytes per second, nanoseconds and FLOP per second. ``GB`` is 10^9 bytes and ``GiB`` is 2^30 bytes, always.
``inf`` is allowed where a limit may be absent. pint reads the units; its default registry is not loaded,
because the few units below are all that a document may use (and reading them takes no time).
"""

from __future__ import annotations

import math
from decimal import Decimal
from functools import cache
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_DEFINITIONS = """
n- = 1e-9
u- = 1e-6 = µ-
m- = 1e-3
k- = 1e3
M- = 1e6
G- = 1e9
T- = 1e12
P- = 1e15
Ki- = 2**10
Mi- = 2**20
Gi- = 2**30
Ti- = 2**40
byte = [information] = B
second = [time] = s
FLOP = [work]
"""

_INT = int | float
"""A whole number, or ``inf``."""


@cache
def _registry() -> Any:
    import pint  # noqa: PLC0415 - only when a document is read: half of the start-up time otherwise

    return pint.UnitRegistry(_DEFINITIONS.strip().splitlines(), non_int_type=Decimal, cache_folder=None)


def parse(text: object, unit: str, example: str) -> int | float:
    """Read a quantity.

    Parameters
    ----------
    text
        What the document holds, such as ``"33.6 GB/s"`` or ``"inf"``.
    unit
        The unit inside: ``B``, ``B/s``, ``ns`` or ``FLOP/s``.
    example
        A well-formed quantity, quoted in the error.

    Returns
    -------
    int or float
        The whole number of `unit`, or ``math.inf``.

    Raises
    ------
    ValueError
        If `text` is a bare number, has another dimension, is negative, or is no whole number of `unit`.
    """
    if not isinstance(text, str):
        raise ValueError(f"a quantity has a unit, such as {example!r}, found the bare value {text!r}")
    if text.strip() == "inf":
        return math.inf
    import pint  # noqa: PLC0415

    try:
        value = _registry().Quantity(text).to(unit).magnitude
    except (pint.PintError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError):
        raise ValueError(f"a quantity in {unit} such as {example!r} is needed, found {text!r}") from None
    except Exception as error:  # pint passes its tokenizer's errors through
        raise ValueError(f"a quantity in {unit} such as {example!r} is needed, found {text!r}") from error
    if not value.is_finite() or value < 0:
        raise ValueError(f"a quantity is at least 0 {unit}, found {text!r}")
    whole = int(value.to_integral_value())
    if abs(value - whole) > Decimal("1e-9") * max(whole, 1):
        raise ValueError(f"a whole number of {unit} is needed, found {text!r}")
    return whole


_SHOWN: dict[str, tuple[tuple[str, int], ...]] = {
    "B": (
        ("TiB", 2**40),
        ("TB", 10**12),
        ("GiB", 2**30),
        ("GB", 10**9),
        ("MiB", 2**20),
        ("MB", 10**6),
        ("KiB", 2**10),
        ("kB", 1000),
    ),
    "B/s": (("TB/s", 10**12), ("GB/s", 10**9), ("MB/s", 10**6), ("kB/s", 1000)),
    "ns": (("s", 10**9), ("ms", 10**6), ("us", 1000)),
    "FLOP/s": (("TFLOP/s", 10**12), ("GFLOP/s", 10**9)),
}


def exact(value: int | float, unit: str) -> str:
    """Write a quantity so that reading it gives the same number: the largest unit with at most 3 decimals.

    Parameters
    ----------
    value
        Whole number of `unit`, or ``inf``.
    unit
        ``B``, ``B/s``, ``ns`` or ``FLOP/s``.
    """
    if value == math.inf:
        return "inf"
    for name, size in _SHOWN[unit]:
        scaled = Decimal(value) / size
        if scaled >= 1 and scaled == round(scaled, 3):
            return f"{scaled.normalize():f} {name}"
    return f"{value} {unit}"


def human(value: int | float, unit: str) -> str:
    """Write a quantity for people: three significant digits and a decimal unit.

    Parameters
    ----------
    value
        Number of `unit`.
    unit
        ``B``, ``B/s``, ``ns`` or ``FLOP/s``.
    """
    if value == math.inf:
        return "unlimited"
    for name, size in _SHOWN[unit]:
        if "i" not in name and abs(value) >= size * 0.9995:
            return f"{_three_digits(value / size)} {name}"
    return f"{value:.0f} {unit}"


def _three_digits(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(abs(value) * 1.0005)))
    return f"{value:.{digits}f}"


def _quantity(unit: str, example: str, *, endless: bool) -> tuple[Any, ...]:
    def read(text: object) -> int | float:
        value = parse(text, unit, example)
        if value == math.inf and not endless:
            raise ValueError(f"a finite quantity in {unit} is needed, found 'inf'")
        return value

    schema = {"type": "string", "description": f"a quantity in {unit}", "examples": [example]}
    return (
        BeforeValidator(read),
        PlainSerializer(lambda value: exact(value, unit), return_type=str),
        WithJsonSchema(schema),
    )


Bytes = Annotated[int, *_quantity("B", "64 GB", endless=False)]
"""A size [B]."""
Capacity = Annotated[_INT, *_quantity("B", "64 GB", endless=True)]
"""A size [B] or ``inf``."""
BytesPerSecond = Annotated[_INT, *_quantity("B/s", "33.6 GB/s", endless=True)]
"""A rate [B/s] or ``inf``."""
Nanoseconds = Annotated[int, *_quantity("ns", "10 us", endless=False)]
"""A time [ns]."""
FlopsPerSecond = Annotated[_INT, *_quantity("FLOP/s", "376 TFLOP/s", endless=True)]
"""A rate of arithmetic [FLOP/s] or ``inf``."""
