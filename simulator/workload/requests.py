"""Requests that arrive over time: when, how long they are, which prefixes they share, and how many run together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import repeat
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, StrictBool

from simulator.document import Count, CountOrNone, Part
from simulator.units import Nanoseconds, require

MOST = 100_000
"""Most requests of a run, and most prefixes that they share."""

Number = Annotated[int, Field(ge=1, le=MOST, strict=True)]
"""A whole number from 1 to `MOST`."""


class Arrivals(Part):
    """When requests arrive.

    Attributes
    ----------
    process
        ``poisson``: intervals are drawn from an exponential distribution; ``even``: all are equal.
    interval_ns
        Mean time from one arrival to the next [ns]; 0: all arrive at once.
    """

    process: Literal["poisson", "even"] = "poisson"
    interval_ns: Nanoseconds = Field(alias="interval")


class Lengths(Part):
    """Numbers of tokens: drawn from a log-normal distribution, rounded, and at least 1.

    Attributes
    ----------
    mean
        Mean of the distribution.
    spread
        Coefficient of variation, the standard deviation over the mean; 0: all are equal.
    """

    mean: Count
    spread: Annotated[float, Field(ge=0, le=10)] = 0.0

    def drawn(self, count: int, seed: Sequence[int]) -> list[int]:
        """Draw so many numbers of tokens."""
        import numpy as np  # noqa: PLC0415 - slow to import, and only draws need it

        sigma, normal = math.sqrt(math.log1p(self.spread**2)), np.random.default_rng(seed).standard_normal(count)
        return [max(1, round(self.mean * math.exp(sigma * z - sigma**2 / 2))) for z in normal]


class Answers(Lengths):
    """Numbers of tokens that the sequences of a batch add until they end.

    Attributes
    ----------
    seed
        Seed of the draw.
    """

    seed: CountOrNone = 0


class Prefixes(Part):
    """Prefixes that prompts share, such as instructions or a document: each prompt begins with one of them.

    Attributes
    ----------
    number
        Number of prefixes.
    tokens
        Length of each, at most the mean prompt; a shorter prompt is all prefix.
    skew
        The r-th most frequent prefix has a share proportional to r to the power of minus this; 0: all are equally
        frequent.
    """

    number: Number
    tokens: Count
    skew: Annotated[float, Field(ge=0, le=4)] = 0.0


class Clients(Part):
    """Clients that converse: each sends its next request once the one before was answered.

    In each round a client sends the conversation so far, which is a prefix that may be found, and `prompt` more tokens.

    Attributes
    ----------
    number
        Number of clients.
    rounds
        Number of requests that each sends.
    think_ns
        Time from the last token of an answer to the client's next request [ns].
    in_flight
        The most requests that are sent and not answered; others wait at their clients until places become free.
        Default: each client may have one.
    order
        Which of the requests that wait is sent next: the one that waits longest (``first``), or any (``random``).
    barrier
        Whether all clients have their answers of a round before any goes on to the next.
    """

    number: Number
    rounds: Number = 1
    think_ns: Nanoseconds = Field(0, alias="think")
    in_flight: Number | None = None
    order: Literal["first", "random"] = "first"
    barrier: StrictBool = False

    def _check(self) -> None:
        must, found = f"clients send at most {MOST:,} requests", f"{self.number:,} clients with {self.rounds:,} rounds"
        require(self.number * self.rounds <= MOST, must, found, "rounds", do="lower one of them")
        must, found = "each client has at most one request in flight", f"{self.in_flight or 0:,} of {self.number:,}"
        require((self.in_flight or 0) <= self.number, must, found, "in_flight", do="lower it, or remove it")
        must, do = "clients think between rounds", "remove it, or add rounds"
        require(self.rounds > 1 or "think_ns" not in self.model_fields_set, must, "one round", "think", do=do)
        must, do = "a barrier stands between rounds", "remove it, or add rounds"
        require(self.rounds > 1 or not self.barrier, must, "one round", "barrier", do=do)
        must, found = "requests have an order where fewer than all clients may send", "a place for each"
        is_limited = self.in_flight is not None and self.in_flight < self.number
        require(is_limited or self.order == "first", must, found, "order", do="remove it, or add in_flight")


class Requests(Part):
    """Sequences that arrive and leave, and how many of them run together.

    Attributes
    ----------
    file
        A ``.csv`` of requests (`simulator.formats.tables_csv`), relative to the workload, in place of `arrivals`,
        `prompt`, `output` and `prefixes`.
    count
        Number of requests; from a file the first ones, by default all, up to a limit.
    arrivals
        When requests arrive.
    clients
        In place of `count` and `arrivals`: clients that send a request once the one before was answered.
    prompt
        Number of tokens that each request reads.
    output
        Number of tokens that each request adds.
    prefixes
        The prefixes that prompts share; default: none.
    block
        Tokens of a block of the KV cache.
    max_sequences
        The most sequences that run together.
    max_tokens
        The most tokens of an iteration: each decoding sequence takes one, and parts of prompts fill the rest.
    queued_blocks
        Blocks that may still be on their way into the compute tier when the first op is launched: a serving engine
        submits copies from the thread that launches ops, which blocks while the queue of copies is full, and so waits
        for all others. Default: no limit, and the row's policy decides when each block is copied.
    loads
        ``by_layer``: a request is admitted at once, and its blocks in lower tiers come in beside the layers of its
        first iteration; ``before_admission``: beside the iterations of others, while it waits until all are there.
    preemption
        ``never``: a request is admitted once all that it may cache fits, which is kept for it. Else once its prompt
        fits; answers get blocks as they grow, and where none is left, the request that was admitted last is interrupted
        and waits before all others. What it had cached is then found, or computed again (``recompute``), or is copied
        to the next tier at once (``swap``). An incomplete block is always computed again.
    """

    file: str | None = None
    count: Number | None = None
    arrivals: Arrivals | None = None
    clients: Clients | None = None
    prompt: Lengths | None = None
    output: Lengths | None = None
    prefixes: Prefixes | None = None
    block: Count = 16
    max_sequences: Count = 256
    max_tokens: Count = 8192
    queued_blocks: CountOrNone | None = None
    loads: Literal["by_layer", "before_admission"] = "by_layer"
    preemption: Literal["never", "recompute", "swap"] = "never"

    def _check(self) -> None:
        for key in ("file", "count", "arrivals") if self.clients else ():
            must = "clients set the arrivals and the number of requests"
            require(getattr(self, key) is None, must, key, key, do=f"remove {key}, or clients")
        for key in ("prompt", "output") if self.clients else ("count", "arrivals", "prompt", "output"):
            stated = self.file is not None or getattr(self, key) is not None
            require(stated, "requests come from a file, or are drawn", f"no {key}", key, do=f"add {key}, or file")
        must, do = "only loads by layer wait in a queue of copies", "remove it, or loads"
        is_by_layer = self.queued_blocks is None or self.loads == "by_layer"
        require(is_by_layer, must, "loads: before_admission", "queued_blocks", do=do)
        for key in sorted(self.model_fields_set & {"arrivals", "prompt", "output", "prefixes"}):
            must = "a file states arrivals, lengths and shared prefixes of requests"
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
    prompt, output
        How many tokens it reads, and how many it adds.
    prefix, prefix_tokens
        The prefix that its prompt begins with, and how many tokens that covers; 0 if it shares none. Of a conversation
        it covers the answer, too, with which the next prompt begins.
    above
        Prefixes form a tree: the ancestors of `prefix`, from the root down, and the token at which each ends.
    """

    arrival_ns: int
    prompt: int
    output: int
    prefix: int = 0
    prefix_tokens: int = 0
    above: Sequence[tuple[int, int]] = ()

    def prefixes(self, block: int) -> Iterator[int]:
        """Yield, for each full block (of `block` tokens) of its prefix, the prefix that the last token belongs to."""
        end = 0
        for prefix, tokens in (*self.above, (self.prefix, self.prefix_tokens)):
            begin, end = end, tokens // block
            yield from repeat(prefix, end - begin)


class Arriving(NamedTuple):
    """Requests in the order in which they arrive.

    Attributes
    ----------
    unanswered
        How many requests of a file have no prompt or add no token, and are left out.
    further, late
        How many arrive after those that are served; and how many came after a later one in the file.
    seed
        Seed of the order in which clients send.
    """

    requests: list[Request]
    unanswered: int = 0
    further: int = 0
    late: int = 0
    seed: int = 0

    @classmethod
    def first(cls, requests: Iterable[Request], most: int) -> Arriving:
        """Take the `most` first requests by arrival, with the first arrival as time 0; `requests` may be many more."""
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
