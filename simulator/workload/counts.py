"""Whole numbers, as documents state them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1, strict=True)]
"""A whole number, at least 1."""
CountOrNone = Annotated[int, Field(ge=0, strict=True)]
"""A whole number, at least 0."""
