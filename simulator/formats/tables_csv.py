"""CSV tables of requests and of routers' choices; the first line names the columns, which identify the kind of file.

**Requests**, one per line:

========================  =====================================================================================
hosim's own               ``arrival,prompt,output``, and if prompts share prefixes ``prefix,prefix_tokens``
Azure LLM inference       ``TIMESTAMP,ContextTokens,GeneratedTokens`` (github.com/Azure/AzurePublicDataset)
BurstGPT                  ``Timestamp,Model,Request tokens,Response tokens,...`` (arXiv 2401.17644)
Vidur                     ``arrived_at,num_prefill_tokens,num_decode_tokens`` (github.com/microsoft/vidur)
========================  =====================================================================================

Arrivals are seconds, or timestamps such as ``2023-11-16 18:17:03.9799600`` or ``2024-05-10 00:00:00.009930+00:00`` (UTC
if there is no offset), and count from the first one; requests are sorted by arrival. ``prefix`` is any name; two
prompts with the same prefix share as many of their first tokens as the smaller of their ``prefix_tokens``. Prefixes may
form a tree, as when several conversations continue from one document, or each block of tokens has a name::

    arrival,prompt,output,prefix,prefix_tokens
    0,9000,20,system manual,500 8000
    1,9500,20,system manual turn2,500 8000 900

If ``prefix_tokens`` has several numbers, ``prefix`` has as many names, separated by blanks: one for each part of the
prompt. Two prompts share a part if they also share all parts before it, with equal lengths. The last part may go on
into the answer, so that the next turn of a conversation, which begins with prompt and answer, finds both::

    arrival,prompt,output,prefix,prefix_tokens
    0,9000,200,system turn1,500 8700
    60,9500,80,system turn1 turn2,500 8700 380

Other columns are ignored. Requests without a prompt or an output token (BurstGPT lists failures so) are left out and
counted. A file may be larger than memory: only the requests that are asked for are kept.

**Routing**: the share of each expert, or what was chosen step by step::

    layer,expert,share        step,op,chosen
    0,0,0.0071                0,L00/decode/ffn.experts,3 17 40
    0,1,0.0213                0,L01/decode/ffn.experts,0 17 99

Shares of a layer need not add up to 1; layers are matched with ops in program order. ``chosen`` lists positions among
the op's candidates; steps and positions count from 0.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from itertools import accumulate, pairwise
from pathlib import Path

from simulator import inputs
from simulator.draws import Routing, Shares
from simulator.errors import ConfigError
from simulator.units import FieldError, require
from simulator.workload import Arriving, Request
from simulator.workload.requests import MOST

# Columns of arrival, prompt tokens and output tokens, for each kind of file.
_REQUESTS = (
    ("arrival", "prompt", "output"),
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("Timestamp", "Request tokens", "Response tokens"),
    ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
)
_SHARES, _ROUTING = ("layer", "expert", "share"), ("step", "op", "chosen")
# Most tokens of a prompt or an answer (beyond any model's context); largest step, layer or candidate; latest arrival
# [s] (30 years).
_MOST_TOKENS, _MOST_CHOICES, _LONGEST_S = 10_000_000, 1_000_000, 10**9
# Most prefixes per prompt, and in all: each takes 300 B, and a small compressed file must not fill the memory.
_MOST_PARTS, _MOST_PREFIXES = 10_000, 5_000_000
_NS = 10**9
# Lines between two reports of progress.
_SELDOM = 1 << 12
# What may stand between a time and its offset: a fraction of a second (Python reads only six digits), and a space.
_FRACTION = re.compile(r"(?:\.([0-9]+))? ?(?=(?:Z|[+-][0-9]{2}:?[0-9]{2})?$)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Numbers(dict[object, int]):
    """Ids of a trace's prefixes, numbered from 0 in order of first lookup."""

    def __missing__(self, name: object) -> int:
        require(len(self) < _MOST_PREFIXES, f"a trace names at most {_MOST_PREFIXES:,} prefixes", "more", do="cut it")
        return self.setdefault(name, len(self))


class _Table:
    """A file of rows (column -> text), read one at a time, as the file may be larger than memory."""

    def __init__(self, path: Path, *heads: tuple[str, ...]) -> None:
        self.path = path
        lines = (line.decode("utf-8") for block in inputs.blocks(path) for line in block)
        self._rows = csv.reader(lines)
        self.columns = [name.strip() for name in next(self._read(), [])]
        names, found = set(self.columns), repr(",".join(self.columns))
        self.names = max(heads, key=lambda head: len(names.intersection(head)))
        if absent := [name for name in self.names if name not in names]:
            found += f" without {', '.join(absent)}" if len(absent) < len(self.names) else ""
            must = f"the first line names {' or '.join(map(','.join, heads))}"
            raise ConfigError(self.where, must, found, "name the columns")
        if twice := [name for name in names if name and self.columns.count(name) > 1]:
            raise ConfigError(self.where, "each column is named once", f"{min(twice)!r} again", "remove one of them")

    @property
    def number(self) -> int:
        """Number of the last line read."""
        return max(1, self._rows.line_num)

    @property
    def where(self) -> str:
        """File and number of the last line read, for errors."""
        return f"{self.path}:{self.number}"

    def _read(self) -> Iterator[list[str]]:
        try:
            yield from self._rows
        except (UnicodeDecodeError, csv.Error) as error:
            line, do = self._rows.line_num + isinstance(error, UnicodeDecodeError), "correct the path or the file"
            raise ConfigError(f"{self.path}:{line}", "a table can be read", str(error), do) from None

    def rows(self) -> Iterator[dict[str, str]]:
        """Yield the rows below the header, skipping empty lines."""
        for row in filter(None, self._read()):
            if len(row) != len(self.columns):
                raise ConfigError(self.where, f"a line has {len(self.columns)} fields", f"{len(row)}", "correct it")
            yield dict(zip(self.columns, map(str.strip, row), strict=True))


def _whole(column: str, text: str, most: int) -> int:
    """Read a whole number from 0, such as ``177``, or ``177.0`` as in columns of floats."""
    digits, _, rest = text.partition(".")
    is_short = text.isascii() and digits.isdigit() and not rest.strip("0") and len(digits.lstrip("0")) <= len(str(most))
    value = int(digits.lstrip("0") or "0") if is_short else -1
    require(0 <= value <= most, f"{column} is a whole number from 0 to {most:,}", repr(text))
    return value


def read_routing(path: Path) -> Shares | Routing:
    """Read a file of routing: shares, or choices.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    ConfigError
        If it cannot be read, has other columns, or a line is wrong; the message names the line.
    """
    table = _Table(path, _SHARES, _ROUTING)
    shares, routing = dict[int, dict[int, float]](), dict[tuple[int, str], tuple[int, ...]]()
    try:
        for row in table.rows():
            if table.names == _SHARES:
                layer, expert = (_whole(key, row[key], _MOST_CHOICES) for key in ("layer", "expert"))
                of_layer = shares.setdefault(layer, {})
                require(expert not in of_layer, "a layer names each expert once", f"{expert} twice")
                of_layer[expert] = _share(row["share"])
            else:
                key = _whole("step", row["step"], _MOST_CHOICES), row["op"]
                require(key not in routing, "a step names each op once", f"{row['op']!r} twice")
                routing[key] = tuple([_whole("chosen", index, _MOST_CHOICES) for index in row["chosen"].split()])
        require(shares or routing, "a file of routing has lines", "none", do="add them")
    except FieldError as error:
        raise error.at(table.where) from None
    return Shares(shares, str(path)) if shares else Routing(routing, str(path))


def _share(text: str) -> float:
    value = math.nan
    with suppress(ValueError):
        value = float(text)
    require(0 <= value < math.inf, "a share is a number from 0", repr(text))
    return value


def read_requests(path: Path, count: int | None = None, tell: Callable[[int], None] = lambda _: None) -> Arriving:
    """Read requests.

    Parameters
    ----------
    path
        The file.
    count
        Number of requests to read, the first ones by arrival; None: all, up to as many as a run serves.
    tell
        Called now and then with the number of lines read so far.

    Returns
    -------
    Arriving
        The requests, the first one at 0.

    Raises
    ------
    ConfigError
        If the file cannot be read, has other columns, or a line is wrong (the message names it), or it has more
        requests than a run serves and `count` is None.
    """
    table = _Table(path, *_REQUESTS)
    unanswered, prefixes = 0, Numbers()

    def answered() -> Iterator[Request]:
        nonlocal unanswered
        for position, row in enumerate(table.rows(), 1):
            if not table.number % _SELDOM:
                tell(table.number)
            request = _request(table, row, prefixes)
            if request.prompt and request.output:
                do = f"say in the workload how many of the first ones are served, such as 'count: {MOST}'"
                is_served = count or position - unanswered <= MOST
                require(is_served, f"a run serves at most {MOST:,} requests", "a file with more", do=do)
                yield request
            else:
                unanswered += 1

    try:
        come = Arriving.first(answered(), count or MOST)
        require(come.requests, "a file of requests has some that add a token", "none", do="add lines")
    except FieldError as error:
        raise error.at(table.where) from None
    return come._replace(unanswered=unanswered)


def requests_csv(requests: Iterable[Request]) -> bytes:
    """Write requests as hosim's own table, with prefix ids as names.

    Parameters
    ----------
    requests
        In any order.
    """
    lines = [b"arrival,prompt,output,prefix,prefix_tokens"]
    for request in requests:
        chain = (*request.above, (request.prefix, request.prefix_tokens)) if request.prefix_tokens else ()
        names = " ".join(str(prefix) for prefix, _ in chain)
        sizes = " ".join(str(end - before) for (_, before), (_, end) in pairwise(((0, 0), *chain)))
        seconds = Decimal(request.arrival_ns).scaleb(-9).normalize()
        lines.append(f"{seconds:f},{request.prompt},{request.output},{names},{sizes}".encode())
    return b"\n".join([*lines, b""])


def _request(table: _Table, row: dict[str, str], prefixes: Numbers) -> Request:
    """Make a request from a row; `prefixes` maps parent prefix, its end [tokens] and a name to an id."""
    arrival, prompt, output = table.names
    tokens, added = (_whole(name, row[name], _MOST_TOKENS) for name in (prompt, output))
    request = Request(_time(arrival, row[arrival]), tokens, added)
    if "prefix_tokens" not in row or not row.get("prefix"):
        return request
    sizes = [_whole("prefix_tokens", size, _MOST_TOKENS) for size in row["prefix_tokens"].split()]
    names = row["prefix"].split() if len(sizes) > 1 else [row["prefix"]]
    must = f"each of several prefix_tokens is named in prefix, and of at most {_MOST_PARTS:,}"
    require(len(names) == len(sizes) <= _MOST_PARTS, must, f"{len(names):,} names and {len(sizes):,} numbers")
    must, found = (
        "a prefix is a part of its prompt, or of prompt and answer",
        f"{sum(sizes):,} of {tokens + added:,} tokens",
    )
    require(sum(sizes) <= tokens + added, must, found)
    chain, above = list[tuple[int, int]](), (-1, 0)
    for name, end in zip(names, accumulate(sizes), strict=True):
        above = prefixes[*above, name], end
        chain.append(above)
    return request._replace(prefix=chain[-1][0], prefix_tokens=chain[-1][1], above=tuple(chain[:-1]))


def _time(column: str, text: str) -> int:
    """Read a number of seconds, or a date with its time, as whole nanoseconds."""
    must = f"{column} is a number of seconds from 0, or a day and a time"
    try:
        seconds = Decimal(text)
        require(seconds.is_finite() and 0 <= seconds <= _LONGEST_S, must, repr(text))
        return int(seconds * _NS)
    except InvalidOperation:
        day, fraction, offset = _FRACTION.split(text, maxsplit=1)
    try:
        moment = datetime.fromisoformat(day + offset)
    except ValueError:
        raise FieldError(must, repr(text), "correct it") from None
    past = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return (past.days * 86_400 + past.seconds) * _NS + int((fraction or "").ljust(9, "0")[:9])
