"""Plain numbers of a profile."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Fraction = Annotated[float, Field(gt=0, le=1, strict=True)]
"""A share in (0, 1]."""
