"""Requests as a table of commas, one a line; the first line names the columns, and says so whose they are.

========================  =====================================================================================
hosim's own               ``arrival,prompt,output``, and if prompts share prefixes ``prefix,prefix_tokens``
Azure LLM inference       ``TIMESTAMP,ContextTokens,GeneratedTokens`` (github.com/Azure/AzurePublicDataset)
BurstGPT                  ``Timestamp,Model,Request tokens,Response tokens,...`` (arXiv 2401.17644)
========================  =====================================================================================

Arrivals are seconds, or such as ``2023-11-16 18:17:03.9799600`` or ``2024-05-10 00:00:00.009930+00:00`` (UTC without an
offset), and count from the first one; requests are put in the order of their arrival. ``prefix`` is any name; two
prompts with the same one have as many of their first tokens in common as the shorter of both ``prefix_tokens`` says.
Other columns are not read. Requests without an output token (BurstGPT lists what failed with none) are left out, and
counted. A file may be larger than the memory: kept are only the requests that are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from heapq import nsmallest
from pathlib import Path
from typing import NamedTuple

from simulator.errors import ConfigError
from simulator.formats.routing_csv import Table
from simulator.workload import Arriving, Request
from simulator.workload.requests import MOST

_MOST_TOKENS = 10_000_000
_LONGEST_S = 10**9
_NS = 10**9
_SELDOM = 1 << 12
"""After so many lines each it is told how many were read."""


class _Columns(NamedTuple):
    """What the columns of a trace are called."""

    arrival: str
    prompt: str
    output: str


_KNOWN = (
    _Columns("arrival", "prompt", "output"),
    _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    _Columns("Timestamp", "Request tokens", "Response tokens"),
)
_MOMENT = re.compile(r"(?P<seconds>[^.Z+]*?)(\.(?P<part>[0-9]+))? ?(?P<offset>Z|[+-][0-9]{2}:?[0-9]{2}|)", re.ASCII)
_PREFIX, _PREFIX_TOKENS = "prefix", "prefix_tokens"


def read(path: Path, count: int | None = None, tell: Callable[[int], None] = lambda _: None) -> Arriving:
    """Read requests.

    Parameters
    ----------
    path
        The file.
    count
        How many are read, the first ones by arrival; None: all, and a file has no more than a run serves.
    tell
        Called now and then with the lines that were read.

    Returns
    -------
    Arriving
        The first one at 0.

    Raises
    ------
    ConfigError
        If it cannot be read, has other columns, or a line is wrong; the message names the line. Or if all are to be
        served, and are too many.
    """
    lines = _Requests(path)
    answered = lines.answered(tell)
    kept = nsmallest(count or MOST, answered if count else _few(answered, path), key=lambda one: one.arrival_ns)
    if not kept:
        raise ConfigError(str(path), "a file of requests has some that add a token", "none", "add lines")
    first_ns = kept[0].arrival_ns
    return Arriving([one._replace(arrival_ns=one.arrival_ns - first_ns) for one in kept], lines.unanswered)


def _few(requests: Iterable[Request], path: Path) -> Iterator[Request]:
    """Refuse more than a run serves."""
    for number, request in enumerate(requests):
        if number == MOST:
            do = f"say in the workload how many of the first ones are served, such as 'count: {MOST}'"
            raise ConfigError(str(path), f"a run serves at most {MOST:,} requests", "a file with more", do)
        yield request


class _Requests(Table):
    """A file of requests.

    Attributes
    ----------
    unanswered
        Requests that added no token, and were left out.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "a file of requests")
        self.head = [name.strip() for name in self.head]
        names = next((names for names in _KNOWN if set(names) <= set(self.head)), None)
        if names is None:
            must = f"the first line names {' or '.join(','.join(names) for names in _KNOWN)}"
            raise self.error(1, must, repr(",".join(self.head)), "name the columns")
        self._names, self._shares = names, {_PREFIX, _PREFIX_TOKENS} <= set(self.head)
        self._prefixes: dict[str, int] = {}
        self.unanswered = 0

    def answered(self, tell: Callable[[int], None]) -> Iterator[Request]:
        """Requests that add a token, line by line."""
        for number, row in enumerate(self.rows, 2):
            if not number % _SELDOM:
                tell(number)
            if row:
                request = self._request(number, row)
                self.unanswered += not request.output
                if request.output:
                    yield request

    def _request(self, number: int, row: list[str]) -> Request:
        if len(row) != len(self.head):
            raise self.error(number, f"a line has {len(self.head)} fields", f"{len(row)}")
        field = dict(zip(self.head, row, strict=True))
        prompt = self.whole(number, self._names.prompt, field[self._names.prompt], 1, _MOST_TOKENS)
        output = self.whole(number, self._names.output, field[self._names.output], 0, _MOST_TOKENS)
        arrival = self._time(number, field[self._names.arrival].strip())
        if not self._shares or not field[_PREFIX].strip():
            return Request(arrival, prompt, output)
        tokens = self.whole(number, _PREFIX_TOKENS, field[_PREFIX_TOKENS], 0, _MOST_TOKENS)
        if tokens > prompt:
            raise self.error(number, "a prefix is a part of its prompt", f"{tokens:,} of {prompt:,} tokens")
        prefix = self._prefixes.setdefault(field[_PREFIX].strip(), len(self._prefixes))
        return Request(arrival, prompt, output, prefix, tokens)

    def _time(self, number: int, text: str) -> int:
        """A number of seconds, or a day with its time, as whole nanoseconds."""
        must = f"{self._names.arrival} is a number of seconds from 0, or a day and a time"
        try:
            seconds = Decimal(text)
        except InvalidOperation:
            return self._moment(number, text, must)
        if not seconds.is_finite() or not 0 <= seconds <= _LONGEST_S:
            raise self.error(number, must, repr(text))
        return int(seconds * _NS)

    def _moment(self, number: int, text: str, must: str) -> int:
        found = _MOMENT.fullmatch(text)
        try:
            if found is None:
                raise ValueError
            offset = datetime.fromisoformat(f"1970-01-01T00:00:00{found['offset']}").utcoffset() or timedelta()
            past = datetime.fromisoformat(found["seconds"]) - datetime(1970, 1, 1) - offset
        except (ValueError, TypeError):
            raise self.error(number, must, repr(text)) from None
        return (past.days * 86_400 + past.seconds) * _NS + int((found["part"] or "").ljust(9, "0")[:9])
