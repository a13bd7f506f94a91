"""How a framework gives out the addresses of the compute tier, and what it costs to make room in one piece."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from simulator.document import Part
from simulator.units import Bytes, FieldError, Nanoseconds

MIB = 1 << 20


class Compaction(Part):
    """What it takes to make one hole of all holes, once nothing runs: so much for each page, or for each time.

    Attributes
    ----------
    per_page_ns
        For each page that is unmapped and mapped again [ns].
    per_event_ns
        For each compaction, whatever it moves [ns].
    pages
        Which pages count: all that are ``in_use`` (a remap lays the whole pool out anew), or those whose places are
        ``moved``.
    """

    per_page_ns: Nanoseconds | None = Field(None, alias="per_page")
    per_event_ns: Nanoseconds | None = Field(None, alias="per_event")
    pages: Literal["in_use", "moved"] = "in_use"

    def cost_ns(self, pages: int) -> int:
        """What a compaction of so many pages takes [ns]."""
        return (self.per_page_ns or 0) * pages if self.per_event_ns is None else self.per_event_ns

    @model_validator(mode="after")
    def _has_one_price(self) -> Self:
        if (self.per_page_ns is None) == (self.per_event_ns is None):
            found = "neither" if self.per_page_ns is None else "both"
            raise FieldError("a compaction costs so much per_page, or per_event", found, "write one of them")
        return self


class Allocator(Part):
    """Figures of the allocators that a row may name; see `simulator.scenario.PolicyChoice`.

    Attributes
    ----------
    page_bytes
        What is mapped at a time [B].
    compaction
        What it costs; None: the framework knows none, and what fits in no hole waits for one.
    """

    page_bytes: Bytes = Field(2 * MIB, alias="page")
    compaction: Compaction | None = None

    @model_validator(mode="after")
    def _pages_have_a_size(self) -> Self:
        if not self.page_bytes:
            raise FieldError("a page has a size", "0 B", "write one, such as 2 MiB", ("page",))
        return self
