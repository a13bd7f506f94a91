"""Requests that arrive over time: when, how long they are, which prefixes they share, and how many run together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import repeat
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from simulator.document import Count, CountOrNone, Part
from simulator.units import Nanoseconds, require

MOST = 100_000
"""Most requests of a run, and most prefixes that they share."""

Number = Annotated[int, Field(ge=1, le=MOST, strict=True)]
"""A whole number, at least 1 and at most so many."""


class Arrivals(Part):
    """Arrivals of requests.

    Attributes
    ----------
    process
        ``poisson``: intervals are drawn, exponentially; ``even``: all are alike.
    interval_ns
        Mean time from one arrival to the next [ns]; 0: all come at once.
    """

    process: Literal["poisson", "even"] = "poisson"
    interval_ns: Nanoseconds = Field(alias="interval")


class Lengths(Part):
    """Numbers of tokens: drawn from a log-normal distribution, rounded, and at least 1.

    Attributes
    ----------
    mean
        Of all that are drawn.
    spread
        Coefficient of variation, the standard deviation over the mean; 0: all are alike.
    """

    mean: Count
    spread: Annotated[float, Field(ge=0, le=10)] = 0.0


class Prefixes(Part):
    """Beginnings of prompts: one of some prefixes, such as instructions or a document.

    Attributes
    ----------
    number
        How many there are.
    tokens
        How long each is, at most as the mean prompt; of a shorter prompt, all of it.
    skew
        The r-th most frequent one has a share like r to the power of minus this; 0: all are equally frequent.
    """

    number: Number
    tokens: Count
    skew: Annotated[float, Field(ge=0, le=4)] = 0.0


class Requests(Part):
    """Sequences that arrive and leave, and how many of them run together.

    Attributes
    ----------
    file
        A ``.csv`` of requests (`simulator.formats.tables_csv`), relative to the workload, in place of `arrivals`,
        `prompt`, `output` and `prefixes`.
    count
        How many requests there are; of a file, the first ones, default: all, if they are not too many.
    arrivals
        When requests come; default: all at once at the start.
    prompt
        How many tokens each of them reads.
    output
        How many tokens each of them adds.
    prefixes
        What their prompts share; default: nothing.
    block
        Tokens of a block of the KV cache.
    max_sequences
        The most sequences that run together.
    max_tokens
        The most tokens of an iteration: each sequence that decodes has one, and parts of prompts fill the rest.
    queued_blocks
        Blocks that may be on their way into the compute tier when ops are launched. An engine submits these copies from
        the thread that launches its ops, which cannot go on while the queue of copies is full: the rest is waited for
        before the first op. Default: any number, and the row's policy says when each is copied.
    """

    file: str | None = None
    count: Number | None = None
    arrivals: Arrivals | None = None
    prompt: Lengths | None = None
    output: Lengths | None = None
    prefixes: Prefixes | None = None
    block: Count = 16
    max_sequences: Count = 256
    max_tokens: Count = 8192
    queued_blocks: CountOrNone | None = None

    def _check(self) -> None:
        for key in ("count", "arrivals", "prompt", "output"):
            stated = self.file is not None or getattr(self, key) is not None
            require(stated, "requests come from a file, or are drawn", f"no {key}", key, do=f"add {key}, or file")
        for key in sorted(self.model_fields_set & {"arrivals", "prompt", "output", "prefixes"}):
            must = "a file says when requests come, how long they are and what they share"
            require(self.file is None, must, key, key, do=f"remove {key}, or file")
        prefix, prompt = self.prefixes.tokens if self.prefixes else 0, self.prompt.mean if self.prompt else math.inf
        must, found = "a prefix is a part of the mean prompt", f"{prefix:,} of {prompt:,} tokens"
        require(prefix <= prompt, must, found, "prefixes", "tokens", do="lower it, or raise the mean of prompt")
        must = "beside a token of each sequence that decodes, an iteration has room for one of a prompt"
        found = f"{self.max_sequences:,} sequences and {self.max_tokens:,} tokens"
        do = "raise max_tokens, or lower max_sequences"
        require(self.max_sequences < self.max_tokens, must, found, "max_sequences", do=do)


class Request(NamedTuple):
    """One request.

    Attributes
    ----------
    arrival_ns
        When it comes [ns].
    prompt, output
        How many tokens it reads, and how many it adds.
    prefix, prefix_tokens
        Which prefix its prompt begins with, and how many of its tokens that is; 0 tokens if it shares none.
    above
        Prefixes form a tree: those above that one, from the root down, and with how many tokens each ends.
    """

    arrival_ns: int
    prompt: int
    output: int
    prefix: int = 0
    prefix_tokens: int = 0
    above: Sequence[tuple[int, int]] = ()

    def prefixes(self, block: int) -> Iterator[int]:
        """Yield for each full block of its prefix, of so many tokens, the prefix that the last token is of."""
        end = 0
        for prefix, tokens in (*self.above, (self.prefix, self.prefix_tokens)):
            begin, end = end, tokens // block
            yield from repeat(prefix, end - begin)

    @property
    def shared(self) -> int:
        """Number of tokens of its prompt that others may have left: its prefix without the prompt's last token."""
        return min(self.prefix_tokens, self.prompt - 1)


class Arriving(NamedTuple):
    """Requests in the order in which they come.

    Attributes
    ----------
    requests
        Who is served.
    unanswered
        How many more a file has that have no prompt or add no token, and are left out.
    further, late
        How many come after those who are served; and how many stood behind a later one.
    """

    requests: list[Request]
    unanswered: int = 0
    further: int = 0
    late: int = 0

    @classmethod
    def first(cls, requests: Iterable[Request], most: int) -> Arriving:
        """Take the first requests by arrival, at most so many, from the first one's on; `requests` may be many more."""
        count = late = last_ns = 0

        def counted() -> Iterator[Request]:
            nonlocal count, late, last_ns
            for request in requests:
                late += request.arrival_ns < last_ns
                count, last_ns = count + 1, max(last_ns, request.arrival_ns)
                yield request

        kept = nsmallest(most, counted(), key=lambda request: request.arrival_ns)
        kept = [request._replace(arrival_ns=request.arrival_ns - kept[0].arrival_ns) for request in kept]
        return cls(kept, further=count - len(kept), late=late)
