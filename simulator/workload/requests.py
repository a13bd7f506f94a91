"""Requests that arrive over time: when, how long they are, which prefixes they share, and how many run together."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from simulator.document import Count, CountOrNone, Part
from simulator.units import FieldError, Nanoseconds
from simulator.workload.attention import Gqa
from simulator.workload.models import DecoderModel

MOST = 100_000
"""Most requests of a run, and most prefixes that they share."""

Number = Annotated[int, Field(ge=1, le=MOST, strict=True)]
"""A whole number, at least 1 and at most so many."""


class Arrivals(Part):
    """When requests come.

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
    """How many tokens: drawn from a log-normal distribution, rounded, and at least 1.

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
    """What prompts begin with: one of some prefixes, such as instructions or a document.

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
        A ``.csv`` of requests (`simulator.formats.requests_csv`), relative to the workload, in place of `arrivals`,
        `prompt`, `output` and `prefixes`.
    count
        How many requests there are; of a file, the first ones, default: all, if they are not too many.
    arrivals, prompt, output, prefixes
        When they come, how many tokens they read and add, and what their prompts share; default: nothing.
    block
        Tokens of a block of the KV cache.
    max_sequences, max_tokens
        The most sequences that run together, and the most tokens of an iteration: each sequence that decodes has one,
        and parts of prompts fill the rest.
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
        needed = ("count", "arrivals", "prompt", "output")
        missing = [key for key in needed if getattr(self, key) is None]
        if self.file is None and missing:
            must = f"requests come from a file, or have {', '.join(needed)}"
            raise FieldError(must, f"no {missing[0]}", f"add {missing[0]}, or file", (missing[0],))
        extra = sorted(self.model_fields_set & {"arrivals", "prompt", "output", "prefixes"})
        if self.file is not None and extra:
            must = "a file says when requests come, how long they are and what they share"
            raise FieldError(must, extra[0], f"remove {extra[0]}, or file", (extra[0],))
        if self.prefixes is not None and self.prompt is not None and self.prefixes.tokens > self.prompt.mean:
            must, do = "a prefix is a part of the mean prompt", "lower tokens, or raise the mean of prompt"
            found = f"{self.prefixes.tokens:,} of {self.prompt.mean:,} tokens"
            raise FieldError(must, found, do, ("prefixes", "tokens"))
        if self.max_sequences >= self.max_tokens:
            must = "beside a token of each sequence that decodes, an iteration has room for one of a prompt"
            found = f"{self.max_sequences:,} sequences and {self.max_tokens:,} tokens"
            raise FieldError(must, found, "raise max_tokens, or lower max_sequences", ("max_sequences",))

    def check(self, model: object) -> None:
        """Refuse models whose iterations are not built: all but decoders that attend to all tokens, in groups.

        Raises
        ------
        FieldError
            If the model is another one.
        """
        if not isinstance(model, DecoderModel) or not isinstance(model.attention, Gqa):
            must, do = "requests are served by a model of the family decoder with gqa", "choose such a model"
            kind = model.attention.kind if isinstance(model, DecoderModel) else "another family"
            raise FieldError(must, kind, do, ("model",))
        if model.attention.window is not None or model.attention.sparse is not None:
            must, found = "tokens of requests attend to all before them", "a window or sparse attention"
            raise FieldError(must, found, "remove it", ("model", "attention"))


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
    """

    arrival_ns: int
    prompt: int
    output: int
    prefix: int = 0
    prefix_tokens: int = 0

    @property
    def shared(self) -> int:
        """How many tokens of its prompt others may have left: those of its prefix, but not the prompt's last one."""
        return min(self.prefix_tokens, self.prompt - 1)


class Arriving(NamedTuple):
    """Requests in the order in which they come.

    Attributes
    ----------
    requests
        Who is served.
    unanswered
        How many more a file has that add no token, and are left out.
    """

    requests: list[Request]
    unanswered: int = 0
