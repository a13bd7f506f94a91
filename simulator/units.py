"""Quantities: text with units in documents, whole numbers inside.

People write ``80 GiB``, ``33.6 GB/s``, ``10 us``, ``376 TFLOP/s``; the code has only whole bytes, bytes per second,
nanoseconds and FLOP per second. ``GB`` is always 10^9 bytes, ``GiB`` 2^30 bytes. ``inf`` is allowed where a limit may
be absent.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from simulator.errors import ConfigError


class _Dimension(NamedTuple):
    """A dimension: its name in messages, an example of how to write it, and the size of each of its units."""

    noun: str
    example: str
    sizes: dict[str, int]


_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_ROOM = {"nUSD/GB/month": 1, "USD/GB/month": 10**9, "USD/GB/h": 730 * 10**9}  # a month has 730 hours
# Unit inside -> its dimension; sizes are in that unit.
_DIMENSIONS = {
    "B": _Dimension("a size", "64 GB", {f"{prefix}B": size for prefix, size in (_DECIMAL | _BINARY).items()}),
    "B/s": _Dimension("a rate", "33.6 GB/s", {f"{prefix}B/s": size for prefix, size in (_DECIMAL | _BINARY).items()}),
    "ns": _Dimension("a time", "10 us", {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}),
    "FLOP/s": _Dimension("a rate of arithmetic", "376 TFLOP/s", {f"{k}FLOP/s": size for k, size in _DECIMAL.items()}),
    "mW": _Dimension("a power", "700 W", {"mW": 1, "W": 10**3, "kW": 10**6}),
    "fJ/B": _Dimension("an energy of a byte", "3.9 pJ/bit",
                       {"fJ/B": 1, "pJ/B": 10**3, "pJ/bit": 8 * 10**3, "nJ/B": 10**6}),
    "fJ/FLOP": _Dimension("an energy of arithmetic", "0.5 pJ/FLOP", {"fJ/FLOP": 1, "pJ/FLOP": 10**3}),
    "uUSD/h": _Dimension("a price of an hour", "3.5 USD/h", {"uUSD/h": 1, "USD/h": 10**6}),
    "nUSD/GB/month": _Dimension("a price of room", "2.5 USD/GB/month", _ROOM),
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-zµμ]\S*)")
# A lower-case b is a bit, as in the rate of a network.
_BITS = re.compile(r"([kKMGTP]i?)?(?:b|bit)(?:/s|ps)?")
_LARGEST = 2**63 - 1
# Relative rounding error allowed of a quantity: ``1.3 GiB`` is no whole number of bytes, but ``1.5 ns`` is a mistake.
_ROUNDED = Decimal("1e-6")
# With more names than this, only those that begin or end alike are compared, so that a message takes no time.
_MANY = 1000


class FieldError(ValueError):
    """A fault of one field; a caller that knows the file and the line turns it into a `ConfigError` (`at`).

    Parameters
    ----------
    must
        The rule that must hold, as a clause.
    found
        The value that breaks it.
    do
        The remedy, as an instruction.
    path
        Keys that lead to the field from the part that was checked.
    """

    def __init__(self, must: str, found: str, do: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(must, found, do, path)
        self.must, self.found, self.do, self.path = must, found, do, path

    def __str__(self) -> str:
        return f"{self.must}, found {self.found}; {self.do}"

    def at(self, where: str, names: Mapping[str, str] = {}) -> ConfigError:
        """Turn the fault into an error at a place, such as a file and line.

        Parameters
        ----------
        where
            The place.
        names
            What fields are called there: those of names with a ``_``, and of rules that are about two fields.
        """
        is_of_two = re.fullmatch(r"\w+ (divides|is at most) \w+", self.must)
        used = {name: other for name, other in names.items() if is_of_two or "_" in name}
        words = self.must, self.found, self.do
        return ConfigError(where, *(re.sub(r"\w+", lambda word: used.get(word[0], word[0]), text) for text in words))


def require(holds: object, must: str, found: object, *path: str, do: str = "correct it") -> None:
    """Raise a fault if a rule does not hold.

    Parameters
    ----------
    holds
        Whether the rule holds.
    must, found, path, do
        See `FieldError`.

    Raises
    ------
    FieldError
        If it does not hold.
    """
    if not holds:
        raise FieldError(must, str(found), do, path)


def named_in(name: str, names: Collection[str], must: str, *path: str) -> None:
    """Raise a fault that advises the nearest name if a name is none of these; parameters as for `require`."""
    if name not in names:
        raise FieldError(must, repr(name), nearest(name, tuple(names)), path)


@contextmanager
def in_field(*path: str) -> Iterator[None]:
    """Set the path of every fault that is raised inside."""
    try:
        yield
    except FieldError as error:
        raise FieldError(error.must, error.found, error.do, path) from None


def did_you_mean(name: object, names: Iterable[str], otherwise: str = "") -> str:
    """Ask ``did you mean 'x'?``, with the known name that is closest to an unknown one.

    Parameters
    ----------
    name, names
        The unknown name, and all known ones.
    otherwise
        The text to return if none is close.
    """
    text, candidates = str(name), list(names)
    if len(candidates) > _MANY:
        candidates = [other for other in candidates if other[:2] == text[:2] or other[-2:] == text[-2:]][: 10 * _MANY]
    same = [other for other in candidates if other.lower() == text.lower()]
    close = same or difflib.get_close_matches(text, candidates, n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise


def suggestion(name: object, names: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)``, or nothing if no name is close."""
    question = did_you_mean(name, names)
    return f" ({question})" if question else ""


def nearest(name: str, names: tuple[str, ...]) -> str:
    """Advise ``use one of a, b (did you mean 'a'?)`` for an unknown name, or ``remove it`` if there are no names."""
    return f"use one of {', '.join(names)}{suggestion(name, names)}" if names else "remove it"


def parse(text: object, unit: str) -> int | float:
    """Read a quantity.

    Parameters
    ----------
    text
        The text of the document, such as ``"33.6 GB/s"`` or ``"inf"``.
    unit
        The unit inside: ``B``, ``B/s``, ``ns``, ``FLOP/s``, or a unit of energy or price.

    Returns
    -------
    int or float
        The whole number of `unit`, or ``math.inf``.

    Raises
    ------
    FieldError
        If `text` is a bare number, has another dimension, is negative, or is not a whole number of `unit`.
    """
    noun, example, sizes = _DIMENSIONS[unit]
    stated = text.strip() if isinstance(text, str) else ""
    if stated == "inf":
        return math.inf
    match = _QUANTITY.fullmatch(stated)
    if not match:
        raise FieldError(f"{noun} is a number and a unit, such as {example!r}", repr(text), f"write it as {example!r}")
    name = match[2].replace("µ", "u").replace("μ", "u")
    if name not in sizes:
        do = "that counts bits: divide it by 8" if _BITS.fullmatch(name) else nearest(name, tuple(sizes))
        raise FieldError(f"{noun} is needed, such as {example!r}", repr(text), do)
    value = Decimal(match[1]) * sizes[name]
    whole = int(value.to_integral_value())
    must = f"{noun} is at least 0 {unit} and below 2^63"
    require(0 <= whole <= _LARGEST, must, repr(text), do="'inf' means no limit")
    exact = abs(value - whole) <= _ROUNDED * whole
    require(exact, f"{noun} is a whole number of {unit}", repr(text), do=f"write '{math.ceil(value)} {unit}'")
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
    match = _RATIO.fullmatch(stated.strip())
    if match is None:
        must = "a ratio is written as '2.7x', as a change such as '-26 %', or as a number"
        raise FieldError(must, repr(stated), "write it so")
    return float(match["times"]) if match["times"] else 1 + float(match["change"]) / 100


def unit_of(text: object) -> str | None:
    """Return the unit in which a quantity is held inside (any unit for ``inf``), or None if the text is no quantity."""
    for unit in _DIMENSIONS:
        with suppress(FieldError):
            parse(text, unit)
            return unit
    return None


@cache
def decimal(stated: float) -> Fraction:
    """Return exactly the number that a document states in decimals."""
    return Fraction(str(stated))


def exact(value: int | float, unit: str) -> str:
    """Write a quantity so that it reads back as the same number, in the largest unit that needs at most 3 decimals.

    Parameters
    ----------
    value
        Whole number of `unit`, or ``inf``.
    unit
        ``B``, ``B/s``, ``ns`` or ``FLOP/s``.
    """
    if value == math.inf:
        return "inf"
    for name, size in sorted(_DIMENSIONS[unit].sizes.items(), key=lambda name_and_size: -name_and_size[1]):
        scaled = Decimal(value) / size
        if size < 10**15 and scaled >= 1 and scaled == round(scaled, 3):
            return f"{scaled.normalize():f} {name}"
    return f"{value} {unit}"


def human(value: int | float, unit: str) -> str:
    """Write a quantity for people, with three significant digits and a decimal unit.

    Parameters
    ----------
    value
        Number of `unit`.
    unit
        ``B``, ``B/s``, ``ns`` or ``FLOP/s``.
    """
    if value == math.inf:
        return "unlimited"
    for name, size in reversed(_DIMENSIONS[unit].sizes.items()):
        if "i" not in name and 1 < size < 10**15 and abs(value) >= size * 0.9995:
            digits = max(0, 2 - math.floor(math.log10(abs(value / size) * 1.0005)))
            return f"{value / size:.{digits}f} {name}"
    return f"{value:.0f} {unit}"


def counted(count: int, noun: str) -> str:
    """Write a count with its noun: ``1 op``, ``1,644 ops``.

    Parameters
    ----------
    count, noun
        The count, and a singular noun whose plural ends in s.
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def would_divide(axis: str, length: int, parts: int) -> str:
    """Advise the nearest numbers of parts that divide `length`: ``set tensor to 4 or 8``.

    Parameters
    ----------
    axis
        Name of the field to set.
    length, parts
        A length, and a number of parts that does not divide it.
    """
    small = [d for d in range(1, math.isqrt(length) + 1) if length % d == 0]
    divisors = sorted({*small, *(length // d for d in small)})
    near = [max((d for d in divisors if d < parts), default=1), *(d for d in divisors if d > parts)][:2]
    return f"set {axis} to {' or '.join(map(str, near))}"


def total_of(words: str, value_of: Callable[[str], int]) -> int:
    """Return a sum of products of whole numbers and names: ``2 width / heads + 1``.

    Parameters
    ----------
    words
        The sum. What is behind a ``/`` must divide what is before it; ``//`` counts how often it fits in.
    value_of
        Gives the value of a name.

    Raises
    ------
    FieldError
        If a number does not divide another one, or does not fit in once; its path is that number's name, and what it
        should divide.
    """
    if " + " in words:
        return sum(total_of(part, value_of) for part in words.split(" + "))
    before, sign, word = re.findall(r"^(?:(.+?) (?:(//?) )?)?(\S+)$", words)[0]
    part, whole = int(word) if word.isdecimal() else value_of(word), total_of(before, value_of) if before else 1
    if not sign:
        return whole * part
    rule, fits = ("divides", whole % part == 0) if sign == "/" else ("is at most", part <= whole)
    both = f"{part:,} and {whole:,}", "correct one of them"
    found, do = (f"{whole:,}", "correct it") if word.isdecimal() else both
    require(fits, f"{word} {rule} {before}", found, word, before, do=do)
    return whole // part


def _quantity(unit: str, *, endless: bool = False, zero: bool = True) -> tuple[Any, ...]:
    noun, example, sizes = _DIMENSIONS[unit]

    def read(text: object) -> int | float:
        value = parse(text, unit)
        require(endless or value != math.inf, f"{noun} here is finite, such as {example!r}", "'inf'", do="write one")
        must = f"{noun} is more than 0 {unit}, such as {example!r}"
        require(zero or value, must, repr(text), do="write a positive rate")
        return value

    quantity = rf"[+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{{1,3}})?\s*({'|'.join(sizes)})"
    schema = {
        "type": "string",
        "description": f"{noun}{', or inf' if endless else ''}",
        "pattern": f"^({quantity}|inf)$" if endless else f"^{quantity}$",
        "examples": [example],
    }
    serializer = PlainSerializer(lambda value: exact(value, unit), return_type=str)
    return BeforeValidator(read), serializer, WithJsonSchema(schema)


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
"""The energy of moving a byte [fJ]."""
EnergyPerFlop = Annotated[int, *_quantity("fJ/FLOP")]
"""The energy of a floating-point operation [fJ]."""
PricePerHour = Annotated[int, *_quantity("uUSD/h")]
"""A price per hour [millionths of a dollar]."""
PriceOfRoom = Annotated[int, *_quantity("nUSD/GB/month")]
"""A price of 10^9 bytes for 730 hours [billionths of a dollar]."""


def in_yaml(value: object) -> str:
    """Write a value as people write it on one line of YAML.

    Parameters
    ----------
    value
        A number, a string, a boolean, None, or a mapping or list of these.
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


def listed(names: Sequence[str]) -> str:
    """Join names as in a sentence: a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
