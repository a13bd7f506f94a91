"""What every YAML document has in common: strictness, a name, and a source for every number."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""A catalogue name: letters, digits, ``_``, ``.`` and ``-``."""


class Part(BaseModel):
    """A frozen piece of a document that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)


class Citation(Part):
    """Where a figure comes from, and what the source printed."""

    text: str = Field(alias="from", description="the source, so that a reader can find it")
    value: str | None = Field(None, description="what this source prints, where sources disagree")
    basis: str | None = Field(None, description="peak, measured, quoted, derived or inferred")


class Document(Part):
    """A document that people write; each of its figures is cited, assumed or fitted.

    Attributes
    ----------
    name, title
        Its catalogue name, and one line for people.
    sources
        Field path (``links.d2h.bandwidth``, or a prefix of it) -> citations; conflicting figures are all listed.
    assumed
        Field path -> why this figure was assumed.
    fitted
        Field path -> which printed figure this one was fitted to.
    """

    name: Name
    title: str = ""
    sources: dict[str, tuple[Citation, ...]] = {}
    assumed: dict[str, str] = {}
    fitted: dict[str, str] = {}

    def origin(self, path: str) -> str | None:
        """Say whether the figure at `path` is ``cited``, ``assumed`` or ``fitted``; None if nothing is said of it."""
        for kind, table in (("fitted", self.fitted), ("assumed", self.assumed), ("cited", self.sources)):
            if any(path == known or path.startswith(known + ".") for known in table):
                return kind
        return None
