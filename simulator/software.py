"""The software profile: a document that says how a framework drives a machine.

The machine's figures are those of its best case: pinned copies, the best kernels' shares, memory that holds tensors
alone. A software profile says what a framework makes of them: how it copies, what its host does between ops, which
shares its kernels reach, and what else it keeps in memory. `simulator.catalog.driven` applies it to the machine.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from simulator.document import Document, Part, Share
from simulator.units import Nanoseconds, require

Pattern = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_*?\[\]-]+$")]
"""A shell pattern of names."""


class CopyMode(Part):
    """How copies over a link are made.

    Attributes
    ----------
    mode
        ``pinned``: the device copies by itself between page-locked memory and its own; the rate of a link is that.
        ``pageable``: the driver copies pageable memory through its own pinned buffer. ``bounced``: the program copies
        through pinned buffers of its own. ``staged``: tensor by tensor, each waited for before it is used. ``unified``:
        pages move when they are touched.
    share
        Share of the link's bandwidth that such copies reach.
    latency_ns
        Time of each copy on top of the link's latency [ns]; it holds the channel, and takes no bandwidth.
    """

    mode: Literal["pinned", "pageable", "bounced", "staged", "unified"] = "pinned"
    share: Share = 1.0
    latency_ns: Nanoseconds = Field(0, alias="latency")

    def _check(self) -> None:
        stated = self.mode == "pinned" or "share" in self.model_fields_set
        must = "copies that are not pinned reach a share of the link's bandwidth"
        require(stated, must, f"{self.mode} without it", "share", do="add share, or write mode: pinned")


class Copies(Part):
    """How each link copies; the best case where nothing is said.

    Attributes
    ----------
    default
        Links that nothing below names.
    into, out
        Links that end in the compute tier, and links that begin there.
    links
        Pattern of names of links -> how these copy; the last match wins, and all of these win over the others.
    """

    default: CopyMode = CopyMode()
    into: CopyMode | None = Field(None, alias="in")
    out: CopyMode | None = None
    links: dict[Pattern, CopyMode] = {}


class Software(Document):
    """How a framework drives a machine.

    Attributes
    ----------
    for_
        Patterns of names of machines that the profile is for; default: all.
    copies
        How it copies.
    """

    schema_: Literal["hosim/software/1"] = Field("hosim/software/1", alias="schema")
    for_: Annotated[tuple[Pattern, ...], Field(min_length=1)] = Field(("*",), alias="for")
    copies: Copies = Copies()
