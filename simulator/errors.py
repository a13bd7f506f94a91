"""The errors that hosim raises, as a tree.

::

    HosimError
    ├── ConfigError       a document is wrong: fix the file
    │   └── ScopeError    a policy cannot plan this: choose another one
    ├── PlanError         a plan breaks a rule: fix the plan
    ├── CapacityError     no such plan fits: its Shortfall has the missing bytes and the ways out
    └── InvariantError    a law was broken: a bug in hosim

Every message has one shape: *where: what must hold, found what; what to do*. It has less than 2,000 characters, all
printable, whatever it quotes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufffe\uffff]")
"""Characters that move a terminal's cursor, ring its bell, or reverse the order of text; not line ends and tabs."""

STATUSES = ("ok", "infeasible", "blocked", "refused", "failed")
"""How a row ends: it ran, or its plan waits for itself (``blocked``), or an error ended it (`HosimError.status`)."""

LONGEST_DO = 850
"""Most characters of what to do."""
_LONGEST = (350, 500, 250, LONGEST_DO)  # most characters of where, must, found and do


def quotable(text: str, most: int) -> str:
    """Make a text safe to print: cut the middle out of a long one, and escape characters that are not printable.

    Parameters
    ----------
    text
        A text of any origin; line ends are kept.
    most
        Most characters of the result.
    """
    if len(text) > most:
        kept = (most - 5) // 3
        start, end = text[: most - 5 - kept], text[-kept:]
        text = f"{start.rpartition(' ')[0] or start} ... {end.partition(' ')[2] or end}"
    if text.isprintable():
        return text
    shown = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
    return shown if len(shown) <= most else quotable(shown, most)


class HosimError(Exception):
    """Base class of all errors that hosim raises on purpose.

    Parameters
    ----------
    where
        File and line, field path, step or op that the message is about.
    must
        The rule that must hold, as a clause ("a size is at least 0 B").
    found
        The value that breaks it.
    do
        The remedy, as an instruction.

    Attributes
    ----------
    status
        That of a row that it ends: ``failed``, ``refused`` or ``infeasible``.

    Notes
    -----
    ``args`` equals the constructor's arguments: simpy rebuilds a failure as ``type(e)(*e.args)``.
    """

    status = "failed"

    def __init__(self, where: str, must: str, found: str, do: str) -> None:
        on_a_line = (text.replace("\n", "\\n") for text in (where, must, found))
        parts = [quotable(text, most) for text, most in zip((*on_a_line, do), _LONGEST, strict=True)]
        super().__init__(*parts)
        self.where, self.must, self.found, self.do = parts

    def __str__(self) -> str:
        return f"{self.where}: {self.must}, found {self.found}; {self.do}"

    @property
    def reason(self) -> str:
        """What the row that it ends says of it."""
        return str(self)


class ConfigError(HosimError):
    """A document, an option or an input file is wrong: correct it."""


def insist(holds: object, where: str, must: str, found: str, do: str = "correct it") -> None:
    """Raise an error if a rule does not hold.

    Parameters
    ----------
    holds
        Whether the rule holds.
    where, must, found, do
        See `HosimError`.

    Raises
    ------
    ConfigError
        If it does not hold.
    """
    if not holds:
        raise ConfigError(where, must, found, do)


def import_extra(where: str, must: str, do: str, *modules: str) -> list[Any]:
    """Import modules of an optional extra.

    Parameters
    ----------
    where, must, do
        As for `HosimError`.
    modules
        Names of the modules.

    Raises
    ------
    ConfigError
        If a module is not installed.
    """
    try:
        return [import_module(module) for module in modules]
    except ImportError as error:
        raise ConfigError(where, must, str(error), do) from None


class ScopeError(ConfigError):
    """A policy cannot plan this graph on this machine."""

    status = "refused"

    @property
    def reason(self) -> str:
        """The message without the name of the policy."""
        return f"{self.must}, found {self.found}; {self.do}"


class PlanError(HosimError):
    """A plan breaks a rule of the machine: which step, which tensor, which rule."""


class InvariantError(HosimError):
    """A trace breaks a law: a bug in hosim, never the user's fault."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A demand that exceeds a capacity, and the changes that would help.

    Attributes
    ----------
    demand_bytes, capacity_bytes
        The bytes that must be in the tier at once, and the bytes that may be used of it [B].
    at
        The moment of the largest demand, as a phrase (``op L03/fwd/norm1``).
    largest
        ``(tensor name, size [B])`` of the largest residents at that moment, largest first.
    levers
        Sentences, each with one change after which no known obstacle is left; the one with the least room comes first.
    rooms
        Alternatives, each of which is enough alone: tier -> bytes that must be usable of it [B]. In the result of a run
        each was tried, and one of the levers names it; before, each is a proven lower limit.
    full
        The place where the tier fills up, and the last allocation there that lasts until `at`, as a phrase (see
        `filling`); empty if that adds nothing to `at`, or is unknown.
    staged
        The bytes of the tier that staged links reserve, as a phrase; empty if they reserve none.
    """

    tier: str
    demand_bytes: int
    capacity_bytes: int
    at: str
    largest: tuple[tuple[str, int], ...] = ()
    levers: tuple[str, ...] = ()
    rooms: tuple[dict[str, int], ...] = ()
    full: str = ""
    staged: str = ""

    @property
    def short_bytes(self) -> int:
        """The excess of the demand over the capacity [B]."""
        return self.demand_bytes - self.capacity_bytes


def filling(first: str, worst: str, last: str) -> str:
    """Say where a tier fills up: ``at op t24/L02/decode/ffn.up, after L02/kv/s5/b0064 is allocated``.

    Parameters
    ----------
    first, worst
        The first moment without free memory, and the moment of the largest demand, as phrases.
    last
        Name of the last tensor that arrives before `first` and stays until `worst`; empty if there is none.
    """
    place = "there" if first == worst else f"at {first}"
    return f"{place}, after {last} is allocated" if last else place * (first != worst)


class CapacityError(HosimError):
    """No such plan fits; an answer rather than a failure.

    Parameters
    ----------
    report
        The demand, the capacity, the largest residents and the levers.
    """

    status = "infeasible"

    def __init__(self, report: Shortfall) -> None:
        Exception.__init__(self, report)
        self.report = report

    def __str__(self) -> str:
        r = self.report
        parts = [f"{r.tier} fills up {r.full}"] * bool(r.full) + [*filter(None, (r.staged, *r.levers[:1]))]
        return quotable(
            f"{r.at}: the data live at once must fit in {r.tier} ({r.capacity_bytes:,} B), "
            + "; ".join((f"found {r.demand_bytes:,} B, {r.short_bytes:,} B short", *parts)),
            sum(_LONGEST),
        )
