"""Quantities with units at the door, whole numbers inside.

A person writes ``80 GiB``, ``33.6 GB/s``, ``10 us``, ``376 TFLOP/s``; inside there are only whole bytes,
bytes per second, nanoseconds and FLOP per second. ``GB`` is 10^9 bytes and ``GiB`` is 2^30 bytes, always.
``inf`` is allowed where a limit may be absent.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
# Unit inside -> the units that a document may use, and how many of it each is; a month has 730 hours.
_UNITS: dict[str, dict[str, int]] = {
    "B": {f"{prefix}B": size for prefix, size in (_DECIMAL | _BINARY).items()},
    "B/s": {f"{prefix}B/s": size for prefix, size in (_DECIMAL | _BINARY).items()},
    "ns": {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9},
    "FLOP/s": {f"{prefix}FLOP/s": size for prefix, size in _DECIMAL.items()},
    "mW": {"mW": 1, "W": 10**3, "kW": 10**6},
    "fJ/B": {"fJ/B": 1, "pJ/B": 10**3, "pJ/bit": 8 * 10**3, "nJ/B": 10**6},
    "fJ/FLOP": {"fJ/FLOP": 1, "pJ/FLOP": 10**3},
    "uUSD/h": {"uUSD/h": 1, "USD/h": 10**6},
    "nUSD/GB/month": {"nUSD/GB/month": 1, "USD/GB/month": 10**9, "USD/GB/h": 730 * 10**9},
}
_EXAMPLES = {
    "B": "64 GB", "B/s": "33.6 GB/s", "ns": "10 us", "FLOP/s": "376 TFLOP/s", "mW": "700 W", "fJ/B": "3.9 pJ/bit",
    "fJ/FLOP": "0.5 pJ/FLOP", "uUSD/h": "3.5 USD/h", "nUSD/GB/month": "2.5 USD/GB/month",
}  # fmt: skip
_WHAT = {
    "B": "a size", "B/s": "a rate", "ns": "a time", "FLOP/s": "a rate of arithmetic", "mW": "a power",
    "fJ/B": "an energy of a byte", "fJ/FLOP": "an energy of arithmetic", "uUSD/h": "a price of an hour",
    "nUSD/GB/month": "a price of room",
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-zµμ]\S*)")
# A lower-case b is a bit, as in the rate of a network.
_BITS = re.compile(r"([kKMGTP]i?)?(?:b|bit)(?:/s|ps)?")
_LARGEST = 2**63 - 1
# Relative error by which a quantity may miss a whole number: ``1.3 GiB`` does, ``1.5 ns`` is a mistake.
_ROUNDED = Decimal("1e-6")
# Of more names than these, only those that begin or end alike are compared, so that a message takes no time.
_MANY = 1000


class FieldError(ValueError):
    """What is wrong with one field; whoever knows the file and the line makes an error of it.

    Parameters
    ----------
    must
        The rule that must hold, as a clause.
    found
        What was found instead.
    do
        What the reader can do about it.
    at
        Path to the field from the part that found the flaw.
    """

    def __init__(self, must: str, found: str, do: str, at: tuple[str, ...] = ()) -> None:
        super().__init__(must, found, do, at)
        self.must, self.found, self.do, self.at = must, found, do, at

    def __str__(self) -> str:
        return f"{self.must}, found {self.found}; {self.do}"


def require(holds: object, must: str, found: object, *at: str, do: str = "") -> None:
    """Refuse what breaks a rule.

    Parameters
    ----------
    holds
        Whether the rule holds.
    must, found, at, do
        As of a `FieldError`; what to do is to correct it, unless that is said.

    Raises
    ------
    FieldError
        If it does not hold.
    """
    if not holds:
        raise FieldError(must, str(found), do or "correct it", at)


@contextmanager
def in_field(*at: str) -> Iterator[None]:
    """Say of what is found to be wrong inside which field it is about."""
    try:
        yield
    except FieldError as error:
        raise FieldError(error.must, error.found, error.do, at) from None


def closest(name: object, known: Iterable[str]) -> str | None:
    """The known name that `name` may have meant; None if none is near.

    Parameters
    ----------
    name
        An unknown name.
    known
        All names that would do.
    """
    text, names = str(name), list(known)
    if len(names) > _MANY:
        names = [other for other in names if other[:2] == text[:2] or other[-2:] == text[-2:]][: 10 * _MANY]
    same = [other for other in names if other.lower() == text.lower()]
    return next(iter(same or difflib.get_close_matches(text, names, n=1)), None)


def suggestion(name: object, known: Iterable[str]) -> str:
    """Say `` (did you mean 'x'?)`` if a known name is close to `name`, or nothing."""
    close = closest(name, known)
    return f" (did you mean {close!r}?)" if close else ""


def nearest(name: str, known: tuple[str, ...]) -> str:
    """Say what `name` may have meant: ``use one of a, b (did you mean 'a'?)``.

    Parameters
    ----------
    name
        An unknown name.
    known
        All names that would do.
    """
    return f"use one of {', '.join(known)}{suggestion(name, known)}" if known else "remove it"


def parse(text: object, unit: str) -> int | float:
    """Read a quantity.

    Parameters
    ----------
    text
        What the document holds, such as ``"33.6 GB/s"`` or ``"inf"``.
    unit
        The unit inside: ``B``, ``B/s``, ``ns``, ``FLOP/s``, or one of those of costs.

    Returns
    -------
    int or float
        The whole number of `unit`, or ``math.inf``.

    Raises
    ------
    FieldError
        If `text` is a bare number, has another dimension, is negative, or is no whole number of `unit`.
    """
    what, example, known = _WHAT[unit], _EXAMPLES[unit], _UNITS[unit]
    stated = text.strip() if isinstance(text, str) else ""
    if stated == "inf":
        return math.inf
    match = _QUANTITY.fullmatch(stated)
    if not match:
        raise FieldError(f"{what} is a number and a unit, such as {example!r}", repr(text), f"write it as {example!r}")
    name = match[2].replace("µ", "u").replace("μ", "u")
    do = "that counts bits: divide it by 8" if _BITS.fullmatch(name) else nearest(name, tuple(known))
    require(name in known, f"{what} is needed, such as {example!r}", repr(text), do=do)
    value = Decimal(match[1]) * known[name]
    whole = int(value.to_integral_value())
    require(0 <= whole <= _LARGEST, f"{what} is at least 0 {unit} and below 2^63", repr(text), do="'inf' is no limit")
    exact = abs(value - whole) <= _ROUNDED * whole
    require(exact, f"{what} is a whole number of {unit}", repr(text), do=f"write '{math.ceil(value)} {unit}'")
    return whole


_RATIO = re.compile(r"(?P<times>\d+(\.\d+)?) ?x|(?P<change>[+-]\d+(\.\d+)?) ?%")


def ratio(stated: str | float) -> float:
    """Read ``2.7x``, ``-26 %`` or a number.

    Raises
    ------
    FieldError
        If it is none of these.
    """
    if not isinstance(stated, str):
        return stated
    if stated.strip() == "inf":
        return math.inf
    found = _RATIO.fullmatch(stated.strip())
    must = "a ratio is written as '2.7x', as a change such as '-26 %', or as a number"
    if found is None:
        raise FieldError(must, repr(stated), "write it so")
    return float(found["times"]) if found["times"] else 1 + float(found["change"]) / 100


def unit_of(text: object) -> str | None:
    """The unit inside of a quantity (of ``inf`` any); None if the text is none."""
    for unit in _UNITS:
        with suppress(FieldError):
            parse(text, unit)
            return unit
    return None


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
    for name, size in sorted(_UNITS[unit].items(), key=lambda one: -one[1]):
        scaled = Decimal(value) / size
        if size < 10**15 and scaled >= 1 and scaled == round(scaled, 3):
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
    for name, size in reversed(_UNITS[unit].items()):
        if "i" not in name and 1 < size < 10**15 and abs(value) >= size * 0.9995:
            digits = max(0, 2 - math.floor(math.log10(abs(value / size) * 1.0005)))
            return f"{value / size:.{digits}f} {name}"
    return f"{value:.0f} {unit}"


def counted(number: int, noun: str) -> str:
    """Write how many there are: ``1 op``, ``1,644 ops``.

    Parameters
    ----------
    number
        How many.
    noun
        Of what, in the singular; its plural ends in s.
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def would_divide(what: str, length: int, parts: int) -> str:
    """Say which numbers near `parts` would divide `length`: ``set tensor to 4 or 8``.

    Parameters
    ----------
    what
        The axis.
    length, parts
        What does not divide.
    """
    small = [d for d in range(1, math.isqrt(length) + 1) if length % d == 0]
    known = {*small, *(length // d for d in small)}
    near = [max((d for d in known if d < parts), default=1), *sorted(d for d in known if d > parts)[:1]]
    return f"set {what} to {' or '.join(map(str, near))}"


def _quantity(unit: str, *, endless: bool = False, zero: bool = True) -> tuple[Any, ...]:
    what, example = _WHAT[unit], _EXAMPLES[unit]

    def read(text: object) -> int | float:
        value = parse(text, unit)
        require(endless or value != math.inf, f"{what} here is finite, such as {example!r}", "'inf'", do="write one")
        must = f"{what} is more than 0 {unit}, such as {example!r}"
        require(zero or value, must, repr(text), do="write a positive rate")
        return value

    number = r"[+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?"
    quantity = rf"{number}\s*({'|'.join(_UNITS[unit])})"
    schema = {
        "type": "string",
        "description": f"{what}{', or inf' if endless else ''}",
        "pattern": f"^({quantity}|inf)$" if endless else f"^{quantity}$",
        "examples": [example],
    }
    return (
        BeforeValidator(read),
        PlainSerializer(lambda value: exact(value, unit), return_type=str),
        WithJsonSchema(schema),
    )


Bytes = Annotated[int, *_quantity("B")]
"""A size [B]."""
Capacity = Annotated[int | float, *_quantity("B", endless=True)]
"""A size [B] or ``inf``."""
BytesPerSecond = Annotated[int | float, *_quantity("B/s", endless=True, zero=False)]
"""A rate above 0 [B/s], or ``inf``."""
Nanoseconds = Annotated[int, *_quantity("ns")]
"""A time [ns]."""
FlopsPerSecond = Annotated[int | float, *_quantity("FLOP/s", endless=True, zero=False)]
"""A rate of arithmetic above 0 [FLOP/s], or ``inf``."""
Milliwatts = Annotated[int, *_quantity("mW")]
"""A power [mW]."""
EnergyPerByte = Annotated[int, *_quantity("fJ/B")]
"""What a byte takes [fJ]."""
EnergyPerFlop = Annotated[int, *_quantity("fJ/FLOP")]
"""What an operation takes [fJ]."""
PricePerHour = Annotated[int, *_quantity("uUSD/h")]
"""A millionth of a dollar for an hour."""
PriceOfRoom = Annotated[int, *_quantity("nUSD/GB/month")]
"""A billionth of a dollar for 10^9 bytes over 730 hours."""


def in_yaml(value: object) -> str:
    """Write a value as people write it in a line of YAML.

    Parameters
    ----------
    value
        A number, a text, a truth value, None, or a mapping or list of such.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {in_yaml(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(in_yaml, value))}]"
    return repr(value)
