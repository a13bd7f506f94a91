"""Quantities with units at the door, whole numbers inside.

A person writes ``80 GiB``, ``33.6 GB/s``, ``10 us``, ``376 TFLOP/s``; inside there are only whole bytes,
bytes per second, nanoseconds and FLOP per second. ``GB`` is 10^9 bytes and ``GiB`` is 2^30 bytes, always.
``inf`` is allowed where a limit may be absent. pint converts the units; its default registry is not loaded,
because the few units below are all that a document may use (and reading them takes no time).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from decimal import Decimal
from functools import cache
from operator import itemgetter
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_DEFINITIONS = (
    *(f"{prefix}- = 1e{power}" for prefix, power in zip("numkMGTP", (-9, -6, -3, 3, 6, 9, 12, 15), strict=True)),
    *(f"{prefix}i- = 2**{10 * number}" for number, prefix in enumerate("KMGT", 1)),
    *("byte = [information] = B", "second = [time] = s", "FLOP = [work]"),
)

_SIZES = ("B", "kB", "MB", "GB", "TB", "PB", "KiB", "MiB", "GiB", "TiB")
_ALLOWED: dict[str, tuple[str, ...]] = {
    "B": _SIZES,
    "B/s": tuple(f"{size}/s" for size in _SIZES),
    "ns": ("ns", "us", "ms", "s"),
    "FLOP/s": tuple(f"{prefix}FLOP/s" for prefix in ("", "k", "M", "G", "T", "P")),
}
_EXAMPLES = {"B": "64 GB", "B/s": "33.6 GB/s", "ns": "10 us", "FLOP/s": "376 TFLOP/s"}
_WHAT = {"B": "a size", "B/s": "a rate", "ns": "a time", "FLOP/s": "a rate of arithmetic"}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-zµμ]\S*)")
_BITS = re.compile(r"([kKMGTP]i?)?(?:b|bit)(?:/s|ps)?")
"""A lower-case b is a bit, as in the rate of a network."""
_LARGEST = 2**63 - 1
_ROUNDED = Decimal("1e-6")
"""Relative error by which a quantity may miss a whole number: ``1.3 GiB`` does, ``1.5 ns`` is a mistake."""


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


@contextmanager
def in_field(*at: str) -> Iterator[None]:
    """Say of what is found to be wrong inside which field it is about."""
    try:
        yield
    except FieldError as error:
        raise FieldError(error.must, error.found, error.do, at) from None


def nearest(name: str, known: tuple[str, ...]) -> str:
    """Say what `name` may have meant: ``use one of a, b (did you mean 'a'?)``.

    Parameters
    ----------
    name
        An unknown name.
    known
        All names that would do.
    """
    if not known:
        return "remove it"
    close = closest(name, known)
    return f"use one of {', '.join(known)}" + (f" (did you mean {close!r}?)" if close else "")


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` may have meant; None if none is near.

    Parameters
    ----------
    name
        An unknown name.
    known
        All names that would do.
    """
    names = list(known)
    same = [other for other in names if other.lower() == name.lower()]
    return next(iter(same or difflib.get_close_matches(name, names, n=1)), None)


def suggestion(name: object, known: Iterable[str]) -> str:
    """Say `` (did you mean 'x'?)`` if a known name is close to `name`, or nothing."""
    text = str(name)
    near = [k for k in known if k[:2] == text[:2] or k[-2:] == text[-2:]][:10_000]
    close = difflib.get_close_matches(text, near, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


@cache
def _registry() -> Any:
    import pint  # noqa: PLC0415 - only when a document is read: most of the start-up time otherwise

    return pint.UnitRegistry(_DEFINITIONS, non_int_type=Decimal, cache_folder=None)


def parse(text: object, unit: str, example: str = "") -> int | float:
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
    FieldError
        If `text` is a bare number, has another dimension, is negative, or is no whole number of `unit`.
    """
    what, example = _WHAT[unit], example or _EXAMPLES[unit]
    if not isinstance(text, str):
        raise FieldError(f"{what} has a unit, such as {example!r}", f"the bare value {text!r}", "write its unit")
    if text.strip() == "inf":
        return math.inf
    match = _QUANTITY.fullmatch(text.strip())
    if not match:
        must = f"{what} is a number and a unit, such as {example!r}"
        raise FieldError(must, repr(text), f"write it as {example!r}")
    name = match[2].replace("µ", "u").replace("μ", "u")
    if bits := _BITS.fullmatch(name):
        raise _of_bits(Decimal(match[1]), bits[1] or "", unit, text)
    if name not in _ALLOWED[unit]:
        raise FieldError(f"{what} is needed, such as {example!r}", repr(text), nearest(name, _ALLOWED[unit]))
    return _whole(Decimal(match[1]), name, unit, text)


def _of_bits(number: Decimal, prefix: str, unit: str, text: str) -> FieldError:
    what, per = _WHAT[unit], "/s" if unit.endswith("/s") else ""
    must = f"{what} is needed, such as {_EXAMPLES[unit]!r}"
    if unit not in ("B", "B/s"):
        return FieldError(must, f"{text!r}, which counts bits", "write what is needed here")
    whole = f"{(number / 8).normalize():.12g} {'k' if prefix == 'K' else prefix}B{per}"
    return FieldError(f"{must}, and in bytes", f"{text!r}, which counts bits", f"write '{whole}'")


def _whole(number: Decimal, name: str, unit: str, text: str) -> int:
    what = _WHAT[unit]
    if number < 0:
        raise FieldError(f"{what} is at least 0 {unit}", repr(text), "remove the sign")
    if number and number.adjusted() > 20:
        raise FieldError(f"{what} is below 2^63 {unit}", repr(text), "write 'inf' for no limit")
    value = _registry().Quantity(number, name).to(unit).magnitude
    whole = int(value.to_integral_value())
    if whole > _LARGEST:
        raise FieldError(f"{what} is below 2^63 {unit}", repr(text), "write 'inf' for no limit")
    if abs(value - whole) > _ROUNDED * whole:
        raise FieldError(f"{what} is a whole number of {unit}", repr(text), f"write '{math.ceil(value)} {unit}'")
    return whole


_DECIMAL = (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 1000))
_BINARY = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_SHOWN: dict[str, list[tuple[str, int]]] = {
    "B": sorted([*_BINARY, *((f"{prefix}B", size) for prefix, size in _DECIMAL)], key=itemgetter(1), reverse=True),
    "B/s": [(f"{prefix}B/s", size) for prefix, size in _DECIMAL],
    "ns": [("s", 10**9), ("ms", 10**6), ("us", 1000)],
    "FLOP/s": [(f"{prefix}FLOP/s", size) for prefix, size in _DECIMAL[:2]],
}


def unit_of(text: object) -> str | None:
    """The unit inside of a quantity (of ``inf`` any); None if the text is none."""
    for unit in ("B/s", "FLOP/s", "ns", "B"):
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


def divisors(number: int) -> list[int]:
    """All divisors of a whole number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def would_divide(what: str, length: int, parts: int) -> str:
    """Say which numbers near `parts` would divide `length`: ``set tensor to 4 or 8``.

    Parameters
    ----------
    what
        The axis.
    length, parts
        What does not divide.
    """
    known = divisors(length)
    below = max((d for d in known if d < parts), default=1)
    above = min((d for d in known if d > parts), default=None)
    return f"set {what} to {below}" + (f" or {above}" if above is not None else "")


def _three_digits(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(abs(value) * 1.0005)))
    return f"{value:.{digits}f}"


def _quantity(unit: str, *, endless: bool = False, zero: bool = True) -> tuple[Any, ...]:
    what, example = _WHAT[unit], _EXAMPLES[unit]

    def read(text: object) -> int | float:
        value = parse(text, unit, example)
        if value == math.inf and not endless:
            raise FieldError(f"{what} here is finite, such as {example!r}", "'inf'", "write a number and a unit")
        if value == 0 and not zero:
            raise FieldError(f"{what} is more than 0 {unit}, such as {example!r}", repr(text), "write a positive rate")
        return value

    schema = {
        "type": "string",
        "description": f"{what}{', or inf' if endless else ''}",
        "pattern": _pattern(unit, endless=endless),
        "examples": [example],
    }
    return (
        BeforeValidator(read),
        PlainSerializer(lambda value: exact(value, unit), return_type=str),
        WithJsonSchema(schema),
    )


def _pattern(unit: str, *, endless: bool) -> str:
    number = r"[+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?"
    quantity = rf"{number}\s*({'|'.join(_ALLOWED[unit])})"
    return f"^({quantity}|inf)$" if endless else f"^{quantity}$"


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
