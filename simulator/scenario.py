"""The scenario: a workload on a machine under some policies, and what is expected of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from simulator.document import Document, Part
from simulator.units import Bytes


class PolicyChoice(Part):
    """One row of the table: a policy with its options.

    Attributes
    ----------
    policy
        Name of the policy, or of a ``hosim-plan/1`` file (a value that ends in ``.jsonl``).
    label
        Name of the row; default: the policy's name.
    options
        Options of the policy.
    """

    policy: str
    label: str = ""
    options: dict[str, Any] = {}

    @property
    def row(self) -> str:
        """Name of the row."""
        return self.label or self.policy


class Switches(Part):
    """Readings of the machine that are a choice; recorded in the result.

    Attributes
    ----------
    copies_wait_for
        A copy becomes eligible when the last compute issued before it has started (``start``), or ended (``end``).
    hbm_contention
        Whether a copy takes bandwidth of the compute tier from memory-bound kernels.
    """

    copies_wait_for: Literal["start", "end"] = "start"
    hbm_contention: bool = False


class Expectation(Part):
    """A figure that must hold; `hosim run` ends with exit code 1 if it does not.

    Attributes
    ----------
    row
        Label of the policy row.
    column
        Column of the summary, such as ``step_ns`` or ``peak_hbm_bytes``.
    about, within
        The expected value, as a quantity (``5.36 s``) or a bare share or text, and the accepted relative error.
    at_most, at_least
        Bounds, as a quantity or a bare share.
    equals
        The exact text or number (``status: ok``).
    faster_than
        Label of a row that this row must beat in ``step_ns``.
    why
        The sentence or printed figure behind it.
    """

    row: str
    column: str = "step_ns"
    about: str | float | None = None
    within: Annotated[float, Field(gt=0, lt=1)] = 0.05
    at_most: str | float | None = None
    at_least: str | float | None = None
    equals: str | float | None = None
    faster_than: str | None = None
    why: str = ""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if all(x is None for x in (self.about, self.at_most, self.at_least, self.equals, self.faster_than)):
            raise ValueError("an expectation has about, at_most, at_least, equals or faster_than, found none")
        return self


class Claim(Part):
    """A published sentence that the scenario puts to the test."""

    sentence: str
    source: str


class Scenario(Document):
    """A workload on a machine under some policies.

    Attributes
    ----------
    hardware, workload
        Names in the catalogue, or paths that end in ``.yaml``, relative to this document.
    set_
        Changes to the hardware: field path -> value (``links.d2h.bandwidth: 40 GB/s``).
    homes
        Tensor kind, or shell pattern of tensor names -> tier, or ``free`` (the policy chooses). The last match wins.
        Default: persistent tensors in the compute tier, all else free.
    budget_bytes
        What may be used of the compute tier [B]; default: its capacity less what is reserved.
    policies
        Rows of the table. A bare name stands for the policy with its default options.
    switches, expect, claim
        See there.
    """

    schema_: Literal["hosim/scenario/1"] = Field("hosim/scenario/1", alias="schema")
    hardware: str
    workload: str
    set_: dict[str, Any] = Field({}, alias="set")
    homes: dict[str, str] = {}
    budget_bytes: Bytes | None = Field(None, alias="budget")
    policies: tuple[PolicyChoice, ...] = Field(min_length=1)
    switches: Switches = Switches()
    expect: tuple[Expectation, ...] = ()
    claim: Claim | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare_names(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("policies"), list):
            named = [{"policy": p} if isinstance(p, str) else p for p in data["policies"]]
            return {**data, "policies": named}
        return data

    @model_validator(mode="after")
    def _rows_are_distinct(self) -> Self:
        rows = [choice.row for choice in self.policies]
        for row in rows:
            if rows.count(row) > 1:
                raise ValueError(f"each policy row has its own label, found {row!r} twice")
        for expectation in self.expect:
            for row in filter(None, (expectation.row, expectation.faster_than)):
                if row not in rows:
                    raise ValueError(f"an expectation names a policy row ({', '.join(rows)}), found {row!r}")
        return self
